package host_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// TestLettersStayWithTheirTenant checks that the dead letters of a worker are not found
// under a worker of the same id that another tenant has made since, also when a publisher
// forges the headers that say so, and that they are there when the first tenant has the id again.
func TestLettersStayWithTheirTenant(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) { c.OutputPatience = time.Millisecond }
	var fixed atomic.Bool
	w := r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		switch {
		case fixed.Load():
			return text("fine"), nil
		case string(m.Data) == "out":
			return []engine.Output{{Topic: "nowhere.w", Data: []byte("x")}}, nil
		}
		return nil, engine.Reject("no")
	})
	w.Tenant = "a"
	h := r.startWith(w)
	forged := nats.Header{host.HeaderWorker: {"other"}, host.HeaderOutput: {"o"}}
	for _, data := range []string{"1", "out", strings.Repeat("x", 1<<20-200)} {
		m := &nats.Msg{Subject: "work.w", Data: []byte(data)}
		if data != "out" {
			m.Header = forged
		}
		_, err := r.js.PublishMsg(t.Context(), m)
		must(t, err)
	}
	r.letters(h, "w", 3)
	must(t, h.Delete(t.Context(), "w"))
	found := r.letters(h, "w", 3) // they outlive their worker
	var seqs []uint64
	var output uint64
	for _, d := range found {
		seqs = append(seqs, d.Seq)
		if d.Output != "" {
			output = d.Seq
		}
		if (d.Output != "") != (d.Topic == "nowhere.w") {
			t.Errorf("the letter of %s has the output %q", d.Topic, d.Output)
		}
	}
	look := func(id string, want int) {
		t.Helper()
		list := r.letters(h, "w", want)
		groups, err := h.LetterGroups(t.Context(), "w")
		must(t, err)
		n := 0
		for _, g := range groups {
			n += len(g.Seqs)
		}
		digests, err := h.LetterDigests(t.Context(), "w")
		must(t, err)
		for _, count := range digests {
			n += count
		}
		dry, err := h.Discard(t.Context(), "w", true)
		if err != nil || n != 2*want || dry != want || len(list) != want {
			t.Errorf("%s: %d letters, %d in groups and versions, %d in a dry run, %v, want %d", id, len(list), n, dry, err, want)
		}
		rec, err := h.Get(t.Context(), "w")
		if errors.Is(err, host.ErrNotFound) {
			return
		}
		must(t, err)
		for range 2 {
			waiting, err := h.Waiting(t.Context(), rec)
			if err != nil || waiting["w"].DeadLetters != want {
				t.Errorf("%s: the worker has %d dead letters, %v, want %d", id, waiting["w"].DeadLetters, err, want)
			}
		}
	}
	look("no worker", 3)

	for _, tenant := range []string{"b", ""} {
		w.Tenant = tenant
		create(t, h, w)
		look("another tenant", 0)
		for _, seq := range seqs {
			if _, err := h.DeadLetter(t.Context(), "w", seq); !errors.Is(err, host.ErrNoLetter) {
				t.Errorf("read: %v", err)
			}
			if _, err := h.RedriveEdited(t.Context(), "w", seq, []byte("2")); !errors.Is(err, host.ErrNoLetter) {
				t.Errorf("edit: %v", err)
			}
		}
		for _, some := range [][]uint64{nil, seqs} {
			if n, err := h.Redrive(t.Context(), "w", some...); n != 0 || err != nil {
				t.Errorf("redrive: %d, %v", n, err)
			}
			if n, err := h.Discard(t.Context(), "w", false, some...); n != 0 || err != nil {
				t.Errorf("discard: %d, %v", n, err)
			}
		}
		must(t, h.Delete(t.Context(), "w"))
	}

	w.Tenant = "a"
	create(t, h, w)
	look("the first tenant", 3)
	fixed.Store(true)
	if n, err := h.Discard(t.Context(), "w", false, output); n != 1 || err != nil {
		t.Errorf("discard: %d, %v", n, err)
	}
	if n, err := h.Redrive(t.Context(), "w"); n != 2 || err != nil {
		t.Errorf("redrive: %d, %v", n, err)
	}
	r.eventually("nothing is left behind", func() bool { return r.stored() == 0 })
}

// TestLettersAreCountedByTenant checks that a worker's count has its own letters only, also
// when the limit of letters has removed some of an earlier tenant, and when the tenants take
// turns.
func TestLettersAreCountedByTenant(t *testing.T) {
	r := newRig(t)
	w := r.native("w", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) {
		return nil, engine.Reject("no")
	})
	w.Tenant = "a"
	h := r.startWith(w)
	seen := 0
	for i, turn := range []struct {
		tenant       string
		letters, own int
	}{{"a", 3, 3}, {"b", 1, 1}, {"a", 1, 4}, {"b", 0, 1}, {"c", 0, 0}, {"a", 0, 2}} {
		if i > 0 {
			must(t, h.Delete(t.Context(), "w"))
			w.Tenant = turn.tenant
			create(t, h, w)
		}
		for range turn.letters {
			r.publish("work.w", "x")
		}
		seen += turn.letters
		stream, err := r.js.Stream(t.Context(), "HOST_DEAD")
		must(t, err)
		r.eventually("the letters", func() bool {
			info, err := stream.Info(t.Context())
			return err == nil && int(info.State.Msgs) == seen
		})
		rec, err := h.Get(t.Context(), "w")
		must(t, err)
		count := func(want int) {
			t.Helper()
			list := r.letters(h, "w", want)
			if waiting, err := h.Waiting(t.Context(), rec); err != nil || waiting["w"].DeadLetters != want || len(list) != want {
				t.Errorf("turn %d: the worker of %s has %d dead letters, %v, and %d in the list, want %d", i, turn.tenant, waiting["w"].DeadLetters, err, len(list), want)
			}
		}
		count(turn.own)
		if i == 3 { // as the limit does it: the oldest letters, all of a
			must(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject("$host.dead.t-a.w"), jetstream.WithPurgeKeep(2)))
			seen -= 2
			count(turn.own)
		}
	}
}
