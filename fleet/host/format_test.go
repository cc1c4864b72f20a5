package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// formats has what a release stores, in one file for each. A later version reads all of them.
const formats = "testdata/stored"

// formatEnv names a file. When it is set, [TestStoredFormats] writes what this version
// stores into it: do that for each release that stores anything in another form.
const formatEnv = "HOST_WRITE_FORMAT"

// storedFormat is what hosts have stored.
type storedFormat struct {
	Source   string // of the messages: the stream, and when it was made
	Messages []storedMessage
}

type storedMessage struct {
	Stream, Subject string
	Header          nats.Header `json:",omitempty"`
	Data            string
}

// formatStreams are the streams in a file of formats, in the order in which they are read.
var formatStreams = []string{"WORK", "HOST_CODE", "KV_HOST_WORKERS", "HOST_STATE", "HOST_LOG", "HOST_DEAD", "HOST_LINES"}

// formatWorker is the worker whose messages are in a file of formats: "done" is handled and
// "rejected" is a dead letter; "fails" has failed twice; "output" has an output that no stream
// takes.
func formatWorker(r *rig, failing bool) host.Spec {
	w := r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		switch string(m.Data) {
		case "rejected":
			return nil, engine.Reject("never")
		case "fails":
			if failing {
				return nil, errors.New("not yet")
			}
			return text(fmt.Sprintf("attempt %d", m.Attempt)), nil
		case "output":
			return []engine.Output{{Topic: "later.w", Data: []byte("late")}}, nil
		}
		set := engine.TimersOf(s).SetTimer(ctx, engine.Timer{Name: "report", At: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC), Data: []byte("x")})
		return nil, errors.Join(set, s.Put(ctx, "last", m.Data))
	})
	w.Tenant, w.Key, w.Limits = "shop", "Customer", engine.Limits{Time: time.Minute}
	w.By, w.Note = "alice", "first"
	return w
}

// TestStoredFormats checks that a host goes on from what each release has stored: records,
// code, values, timers, logs and dead letters.
func TestStoredFormats(t *testing.T) {
	if file := os.Getenv(formatEnv); file != "" {
		writeFormat(t, file)
	}
	files, err := filepath.Glob(filepath.Join(formats, "*.json"))
	must(t, err)
	if len(files) == 0 {
		t.Fatal("there is no file")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { readFormat(t, file) })
	}
}

func writeFormat(t *testing.T, file string) {
	r := newRig(t)
	r.tune = func(c *host.Config) { c.RetryBase, c.RetryMax = 100*time.Millisecond, time.Hour }
	h := r.startWith(formatWorker(r, true))
	must(t, h.LoadCodeFromContent(t.Context(), "w", []byte(" w "), host.By("bob", "second")))
	for i, data := range []string{"done", "rejected", "output"} {
		_, err := r.js.PublishMsg(t.Context(), &nats.Msg{Subject: "work.w", Header: nats.Header{"Customer": {fmt.Sprint("c", i)}}, Data: []byte(data)})
		must(t, err)
	}
	r.letters(h, "w", 1)
	r.eventually("the value is stored", func() bool { return r.value(h, "w", "last") == "done" })
	r.publish("work.w", "fails")
	r.eventually("two attempts have failed", func() bool {
		lines, err := h.Logs(t.Context(), "w", 0, 100)
		must(t, err)
		return slices.ContainsFunc(lines, func(l host.Line) bool { return strings.Contains(l.Text, "attempt 2: not yet") })
	})
	r.stop(h)
	var f storedFormat
	for _, name := range formatStreams {
		stream, err := r.js.Stream(t.Context(), name)
		must(t, err)
		for seq := stream.CachedInfo().State.FirstSeq; seq <= stream.CachedInfo().State.LastSeq; seq++ {
			m, err := stream.GetMsg(t.Context(), seq)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				continue
			}
			must(t, err)
			header := nats.Header{}
			for key, values := range m.Header {
				if !strings.HasPrefix(key, "Nats-") {
					header[key] = values
				}
			}
			if i := strings.Index(string(m.Data), `"source":"WORK@`); i >= 0 {
				f.Source, _, _ = strings.Cut(string(m.Data)[i+len(`"source":"`):], `"`)
			}
			f.Messages = append(f.Messages, storedMessage{name, m.Subject, header, string(m.Data)})
		}
	}
	out, err := json.MarshalIndent(f, "", "\t")
	must(t, err)
	must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must(t, os.WriteFile(file, append(out, '\n'), 0o644))
}

func readFormat(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	must(t, err)
	var f storedFormat
	must(t, json.Unmarshal(text, &f))
	r := newRig(t)
	formatWorker(r, false)
	h := r.host("h")
	_, err = h.List(t.Context()) // makes the streams
	must(t, err)
	work, err := r.js.Stream(t.Context(), "WORK")
	must(t, err)
	source := host.SourceOf("WORK", work.CachedInfo().Created)
	for _, m := range f.Messages {
		data := strings.ReplaceAll(m.Data, f.Source, source)
		_, err := r.js.PublishMsg(t.Context(), &nats.Msg{Subject: m.Subject, Header: m.Header, Data: []byte(data)})
		must(t, err)
	}
	_, err = r.js.CreateConsumer(t.Context(), "WORK", jetstream.ConsumerConfig{
		Durable:       "HOST_w-w",
		Metadata:      map[string]string{"lifecycle.host": "HOST"},
		FilterSubject: "work.w",
		AckPolicy:     jetstream.AckExplicitPolicy,
	})
	must(t, err)
	must(t, broker.Ensure(t.Context(), r.js, nil, []jetstream.StreamConfig{{Name: "LATER", Subjects: []string{"later.>"}, Replicas: r.replicas}}))

	rec, err := h.Get(t.Context(), "w")
	must(t, err)
	if rec.Tenant != "shop" || rec.Key != "Customer" || rec.State != host.StateRunning || rec.Limits.Time != time.Minute || len(rec.History) != 2 {
		t.Errorf("the record: %+v", rec)
	}
	if v := rec.History[0]; v.By != "alice" || v.Source != "content" || v.Digest == rec.Digest {
		t.Errorf("its first version: %+v", v)
	}
	if d := r.letters(h, "w", 1)[0]; d.Reason != "rejected: never" || string(d.Data) != "rejected" || d.Header["Customer"][0] != "c1" {
		t.Errorf("the dead letter: %+v", d)
	}
	if got := r.value(h, "w", "last"); got != "done" {
		t.Errorf("the value is %q", got)
	}
	timers, _, err := h.Timers(t.Context(), "w", 0, 10)
	if err != nil || len(timers) != 1 || timers[0].Name != "report" || timers[0].Key != "c0" || timers[0].Due.Year() != 2100 || string(timers[0].Data) != "x" {
		t.Errorf("the timers: %+v, %v", timers, err)
	}
	lines, err := h.Logs(t.Context(), "w", 0, 100)
	if err != nil || len(lines) < 3 || !lines[0].Error {
		t.Errorf("the log: %+v, %v", lines, err)
	}
	must(t, h.Start(t.Context()))
	r.wantOutputs("out.w", "attempt 3") // and "done" is not handled again
	later, err := r.js.Stream(t.Context(), "LATER")
	must(t, err)
	r.eventually("the output is published", func() bool {
		m, err := later.GetLastMsgForSubject(t.Context(), "later.w")
		return err == nil && string(m.Data) == "late"
	})
	must(t, h.Rollback(t.Context(), "w", rec.History[0].Digest))
}
