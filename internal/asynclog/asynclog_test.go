package asynclog_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/asynclog"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// gate is a handler that waits, and panics when told to.
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
	log.Info("zero") // directly, still
	if !strings.Contains(out.String(), "msg=zero a=1") {
		t.Error("before Start it is not written at once")
	}
	q.Start()
	log.WithGroup("g").Info("one", "b", 2)
	log.With("c", 3).Info("two")
	log.Debug("not enabled")
	if !q.Close(time.Minute) || !q.Close(time.Minute) {
		t.Error("not everything was written")
	}
	log.Info("three") // directly, now
	got := out.String()
	for _, want := range []string{"msg=one a=1 g.b=2", "msg=two a=1 c=3", "msg=three a=1"} {
		i := strings.Index(got, want)
		if i < 0 {
			t.Fatalf("no %q, in order, in\n%s", want, out.String())
		}
		got = got[i:]
	}
}

func TestStuckHandlerCostsRecordsAndNoTime(t *testing.T) {
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
			t.Errorf("%d lines, and nothing of those dropped", strings.Count(got, "msg=line"))
		}
	})
}
