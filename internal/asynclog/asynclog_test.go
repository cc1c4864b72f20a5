package asynclog_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/asynclog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gate is a handler that blocks, and panics on request.
type gate struct {
	slog.Handler
	open chan struct{}
}

func (g gate) Handle(ctx context.Context, r slog.Record) error {
	<-g.open
	if r.Message == "panic" {
		panic("handler")
	}
	return g.Handler.Handle(ctx, r)
}

func TestRecordsArriveInOrder(t *testing.T) {
	var out bytes.Buffer
	log, q := asynclog.New(slog.New(slog.NewTextHandler(&out, nil)).With("a", 1))
	log.Info("zero") // still directly to the handler
	if !strings.Contains(out.String(), "msg=zero a=1") {
		t.Error("a record before Start is not written at once")
	}
	q.Start()
	log.WithGroup("g").Info("one", "b", 2)
	log.With("c", 3).Info("two")
	log.Debug("not enabled")
	for range 2 {
		if !q.Close(time.Minute) {
			t.Error("not everything was written")
		}
	}
	log.Info("three") // directly to the handler again
	got := out.String()
	for _, want := range []string{"msg=one a=1 g.b=2", "msg=two a=1 c=3", "msg=three a=1"} {
		i := strings.Index(got, want)
		if i < 0 {
			t.Fatalf("no %q, in order, in\n%s", want, out.String())
		}
		got = got[i:]
	}
}

func TestStuckHandlerLosesRecordsAndDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		open := make(chan struct{})
		log, q := asynclog.New(slog.New(gate{slog.NewTextHandler(&out, nil), open}))
		q.Start()
		began := time.Now()
		log.Info("panic")
		for range 2000 {
			log.Info("line")
		}
		if time.Since(began) != 0 {
			t.Error("logging waited")
		}
		if q.Close(time.Second) || time.Since(began) != time.Second {
			t.Errorf("Close took %v and has written everything", time.Since(began))
		}
		close(open)
		synctest.Wait()
		if got := out.String(); !strings.Contains(got, "dropped=") || strings.Count(got, "msg=line") < 1000 {
			t.Errorf("%d lines, and no word about dropped records", strings.Count(got, "msg=line"))
		}
	})
}

func TestLogAfterAFailedCloseDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		open := make(chan struct{})
		log, q := asynclog.New(slog.New(gate{slog.NewTextHandler(&out, nil), open}))
		q.Start()
		log.Info("one")
		if q.Close(time.Second) {
			t.Error("a stuck handler has written everything")
		}
		log.Info("two") // would wait for ever if it went to the handler
		close(open)
		if !q.Close(time.Second) {
			t.Error("not everything was written")
		}
		log.Info("three")
		if got := strings.Count(out.String(), "msg="); got != 3 {
			t.Errorf("%d records, want 3:\n%s", got, out.String())
		}
	})
}

// quitter is a handler that ends the goroutine of its caller, for one message.
type quitter struct{ slog.Handler }

func (h quitter) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "quit" {
		runtime.Goexit()
	}
	return h.Handler.Handle(ctx, r)
}

func TestHandlerThatExitsLosesItsRecordAndNoOther(t *testing.T) {
	var out bytes.Buffer
	log, q := asynclog.New(slog.New(quitter{slog.NewTextHandler(&out, nil)}))
	q.Start()
	log.Info("one")
	log.Info("quit")
	log.Info("quit")
	log.Info("two")
	if !q.Close(time.Minute) {
		t.Error("not everything was written")
	}
	if got := out.String(); !strings.Contains(got, "msg=one") || !strings.Contains(got, "msg=two") {
		t.Errorf("got\n%s", got)
	}
}

type valuesKey struct{}

// valued is a handler that logs a value of the context.
type valued struct{ slog.Handler }

func (h valued) Handle(ctx context.Context, r slog.Record) error {
	r.AddAttrs(slog.Any("value", ctx.Value(valuesKey{})), slog.Any("err", ctx.Err()))
	return h.Handler.Handle(ctx, r)
}

func TestRecordKeepsTheValuesOfItsContext(t *testing.T) {
	var out bytes.Buffer
	log, q := asynclog.New(slog.New(valued{slog.NewTextHandler(&out, nil)}))
	q.Start()
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valuesKey{}, "kept"))
	cancel()
	log.InfoContext(ctx, "one")
	q.Close(time.Minute)
	if got := out.String(); !strings.Contains(got, "value=kept err=<nil>") {
		t.Errorf("got %s", got)
	}
}

// Records that come during Close are not lost, and keep their order.
func TestEveryRecordIsWrittenOnceWhileItCloses(t *testing.T) {
	var out bytes.Buffer
	log, q := asynclog.New(slog.New(slog.NewTextHandler(&out, nil)))
	q.Start()
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 100 {
				log.Info("line")
			}
		})
	}
	closed := q.Close(time.Minute)
	writers.Wait()
	if got := strings.Count(out.String(), "msg=line"); !closed || got != 400 {
		t.Errorf("closed %v, %d records of 400", closed, got)
	}
}

func BenchmarkLog(b *testing.B) {
	log, q := asynclog.New(slog.New(slog.NewTextHandler(io.Discard, nil)))
	q.Start()
	defer q.Close(time.Minute)
	b.ReportAllocs()
	for b.Loop() {
		log.Info("line", "a", 1)
	}
}

// A handler that panics does not end the goroutine that logs, also before Start and after Close.
func TestHandlerThatPanicsWithoutTheQueue(t *testing.T) {
	open := make(chan struct{})
	close(open)
	log, q := asynclog.New(slog.New(gate{slog.DiscardHandler, open}))
	rec := slog.NewRecord(time.Time{}, slog.LevelInfo, "panic", 0)
	_ = log.Handler().Handle(t.Context(), rec)
	q.Start()
	q.Close(time.Minute)
	_ = log.Handler().Handle(t.Context(), rec)
}
