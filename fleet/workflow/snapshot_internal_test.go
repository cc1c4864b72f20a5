package workflow

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// kept is a bucket with entities of many kinds, and the folder of a view's file.
type kept struct {
	js  jetstream.JetStream
	ctx context.Context
	dir string
	log *lines
}

// lines keeps what is logged.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// take returns what was logged since the last call.
func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

func (k *kept) open(t *testing.T, opts ...RegisterOption) *Manager {
	t.Helper()
	m := NewManager(k.js, slog.New(slog.NewTextHandler(k.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	t.Cleanup(func() { _ = m.Close() })
	if err := m.Register("notes", func() Participant { return new(hot) }, Transitions{"a": {"b"}, "b": {"a"}}, append(opts, WithDeadline("b", "a", time.Hour))...); err != nil {
		t.Fatal(err)
	}
	if err := m.Ready(k.ctx); err != nil {
		t.Fatal(err)
	}
	return m
}

func newKept(t *testing.T) *kept {
	t.Helper()
	b := brokertest.NewSite(t).Connect(t, broker.Config{Buckets: []jetstream.KeyValueConfig{Bucket("NOTES")}})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	k := &kept{js: b.JetStream(), ctx: ctx, dir: t.TempDir(), log: new(lines)}
	k.fill(t)
	return k
}

func (k *kept) fill(t *testing.T) {
	t.Helper()
	m := k.open(t, WithoutView())
	for i := range 40 {
		id := fmt.Sprint("n", i)
		check(t, m.Create(k.ctx, &hot{ID: id, State: "a", Tags: []string{id}}, WithKey("create"+id)))
		switch i % 4 {
		case 0:
			check(t, m.Transition(k.ctx, "notes", id, "b", TransitionSourceRule, "", SetTimer(Timer{Name: "t", After: time.Hour})))
		case 1:
			check(t, m.Update(k.ctx, "notes", id, func(p Participant) error { return tag("u")(p.(*hot)) }))
		case 2:
			check(t, m.Delete(k.ctx, "notes", id))
		}
	}
	for key, record := range map[string]string{"bad": `{`, "odd": `{"id":"odd","phase":"z"}`, "plain": `{"id":"plain","phase":"a","more":[1,{}]}`} {
		_, err := k.js.Publish(k.ctx, "$KV.NOTES."+key, []byte(record))
		check(t, err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// told returns all that a Manager knows of its entities.
func (k *kept) told(t *testing.T, m *Manager) string {
	t.Helper()
	page, err := m.Query(k.ctx, "notes", ListOptions{Fresh: true})
	check(t, err)
	degraded, err := m.Degraded(k.ctx, "notes")
	check(t, err)
	var text strings.Builder
	for _, rec := range append(page.Records, degraded...) {
		p, _ := rec.Participant.(*hot)
		if rec.Participant != nil {
			fmt.Fprint(&text, *p)
		}
		r, _ := m.registration("notes")
		if en := r.bucket.view.entities[rec.Key]; en != nil {
			fmt.Fprint(&text, en.keys, en.version, string(en.data), en.own)
		}
		rec.Participant = nil
		rec.UpdatedAt, rec.Since, rec.Due = rec.UpdatedAt.UTC(), rec.Since.UTC(), rec.Due.UTC()
		fmt.Fprintf(&text, " %+v\n", rec)
	}
	fmt.Fprint(&text, page.Total)
	return text.String()
}

// TestStartFromAFile closes a Manager, changes the bucket in every way, and starts
// another one with its file: it knows what one without a file knows.
func TestStartFromAFile(t *testing.T) {
	k := newKept(t)
	first := k.open(t, WithSnapshot(k.dir))
	check(t, first.Transition(k.ctx, "notes", "n3", "b", TransitionSourceRule, "own")) // just before the end
	check(t, first.Close())
	other := k.open(t, WithoutView())
	check(t, other.Create(k.ctx, &hot{ID: "new", State: "a"}))
	check(t, other.Delete(k.ctx, "notes", "n0"))
	check(t, other.Transition(k.ctx, "notes", "n1", "b", TransitionSourceRule, ""))
	check(t, other.Create(k.ctx, &hot{ID: "n2", State: "a"})) // it was deleted
	stream, err := k.js.Stream(k.ctx, "KV_NOTES")
	check(t, err)
	for _, gone := range []string{"n5", "n6"} { // no message says so, and n6 was a deletion
		check(t, stream.Purge(k.ctx, jetstream.WithPurgeSubject("$KV.NOTES."+gone)))
	}
	k.log.take()
	again, plain := k.open(t, WithSnapshot(k.dir)), k.open(t)
	if log := k.log.take(); !strings.Contains(log, "the view begins with its file") {
		t.Errorf("the file was not used:\n%s", log)
	}
	if got, want := k.told(t, again), k.told(t, plain); got != want {
		t.Errorf("with a file\n%s\nwithout\n%s", got, want)
	}
	// It follows from there.
	check(t, other.Update(k.ctx, "notes", "n1", func(p Participant) error { return tag("later")(p.(*hot)) }))
	check(t, again.Update(k.ctx, "notes", "n4", func(p Participant) error { return tag("own")(p.(*hot)) }))
	if got, want := k.told(t, again), k.told(t, plain); got != want {
		t.Errorf("later, with a file\n%s\nwithout\n%s", got, want)
	}
}

// TestFileThatDoesNotFitIsIgnored starts with files that are damaged, or of something
// else: the bucket is read as if there were none.
func TestFileThatDoesNotFitIsIgnored(t *testing.T) {
	k := newKept(t)
	check(t, k.open(t, WithSnapshot(k.dir)).Close())
	path := filepath.Join(k.dir, "NOTES.view")
	whole, err := os.ReadFile(path)
	check(t, err)
	same := func(what string, opts ...RegisterOption) {
		t.Helper()
		k.log.take()
		m, plain := k.open(t, append(opts, WithSnapshot(k.dir))...), k.open(t, opts...)
		if log := k.log.take(); strings.Contains(log, "the view begins with its file") {
			t.Errorf("%s: the file was used", what)
		}
		if got, want := k.told(t, m), k.told(t, plain); got != want {
			t.Errorf("%s: with a file\n%s\nwithout\n%s", what, got, want)
		}
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for range 10 {
		data := bytes.Clone(whole)
		at := r.IntN(len(data))
		data[at] ^= 1 << r.IntN(8)
		check(t, os.WriteFile(path, data, 0o600))
		same(fmt.Sprintf("seed %d: bit of byte %d", seed, at))
	}
	for _, n := range []int{0, 1, 40, len(whole) / 2, len(whole) - 1} {
		check(t, os.WriteFile(path, whole[:n], 0o600))
		same(fmt.Sprintf("the first %d bytes", n))
	}
	check(t, os.WriteFile(path, whole, 0o600))
	same("of a view with fewer phases", WithViewOf("b"))
	// Another bucket of the same name, with the same entities.
	check(t, k.js.DeleteKeyValue(k.ctx, "NOTES"))
	_, err = k.js.CreateKeyValue(k.ctx, Bucket("NOTES"))
	check(t, err)
	k.fill(t)
	check(t, os.WriteFile(path, whole, 0o600))
	same("an earlier bucket's")
}
