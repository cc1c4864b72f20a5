package host_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/fetch"
)

// TestCodeIsBounded checks that the hosts store as many versions of a worker's code as it
// can be rolled back to, and that the record's history is bounded in bytes.
func TestCodeIsBounded(t *testing.T) {
	r := newRig(t)
	r.funcs["f"] = func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) { return nil, nil }
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", Code: prefix("first")})
	const updates = host.MaxHistory + 20
	for i := range updates {
		must(t, h.LoadCodeFromContent(t.Context(), "w", prefix(fmt.Sprint(i)), host.By(strings.Repeat("who ", 1000), "")))
	}
	rec, err := h.Get(t.Context(), "w")
	must(t, err)
	stored := func() (digests []string) {
		code, err := r.js.Stream(t.Context(), "HOST_CODE")
		must(t, err)
		info, err := code.Info(t.Context(), jetstream.WithSubjectFilter("$host.code.w.>"))
		must(t, err)
		for subject := range info.State.Subjects {
			parts := strings.Split(subject, ".")
			digests = append(digests, parts[len(parts)-2])
		}
		return sorted(digests)
	}
	var known []string
	size := 0
	for _, v := range rec.History {
		known = append(known, v.Digest)
		size += len(v.By)
	}
	if got := stored(); !slices.Equal(got, sorted(known)) {
		t.Errorf("%d versions are stored, and the history has %d", len(got), len(known))
	}
	if len(known) < 10 || len(known) > host.MaxHistory || rec.Dropped+len(known) != updates+1 || size > 24<<10 {
		t.Errorf("the history has %d versions and %d bytes of names; %d were dropped", len(known), size, rec.Dropped)
	}
	must(t, h.Rollback(t.Context(), "w", rec.History[0].Digest))
	must(t, h.Rollback(t.Context(), "w", fetch.Digest(prefix(fmt.Sprint(updates-1)))))
}

// TestDeadLettersAreBounded checks that a host keeps a worker's newest dead letters, and
// counts the letters that it removes.
func TestDeadLettersAreBounded(t *testing.T) {
	r := newRig(t)
	const limit = 20
	r.tune = func(c *host.Config) { c.MaxDeadLetters = limit }
	h := r.startWith(r.native("w", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) {
		return nil, engine.Reject("never")
	}))
	const n = 3 * limit
	for i := range n {
		r.publish("work.w", fmt.Sprint(i))
	}
	r.eventually("the oldest are removed", func() bool {
		rows := h.Tallies()
		found, err := h.DeadLetters(t.Context(), "w", 0, n)
		must(t, err)
		return len(rows) == 1 && rows[0].DeadLetters == n && uint64(len(found))+rows[0].Evicted == n && len(found) <= limit+limit/10+2 && len(found) >= limit && string(found[len(found)-1].Data) == fmt.Sprint(n-1)
	})
}

// TestOutputsOfADeletedWorker checks that outputs that were committed and not published
// become letters when their worker is deleted.
func TestOutputsOfADeletedWorker(t *testing.T) {
	r := newRig(t)
	req := r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		return text(string(m.Data)), nil
	})
	req.OutputTopic = "far.w"
	h := r.startWith(req)
	r.publish("work.w", "1", "2")
	r.eventually("the messages are handled", func() bool {
		rows := h.Tallies() // the server counts the messages a moment later
		return len(rows) == 1 && rows[0].Succeeded == 2
	})
	must(t, h.Delete(t.Context(), "w"))
	for i, d := range r.letters(h, "w", 2) {
		if string(d.Data) != fmt.Sprint(i+1) || d.Topic != "far.w" || d.Reason != "its worker was deleted before it was published" {
			t.Errorf("%+v", d)
		}
	}
	if left := r.leftovers(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
