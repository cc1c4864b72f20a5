package presence

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// rig feeds a registry with announcements of one id.
type rig struct {
	t        *testing.T
	b        *registry
	now      time.Time
	revision uint64
}

func newRig(t *testing.T) *rig { return &rig{t: t, b: newRegistry(15 * time.Second), now: time.Now()} }

// announce stores announcement number n of a key. want is a part of Suspect; "" for none.
func (r *rig) announce(key string, n uint64, alive bool, want string) {
	r.t.Helper()
	r.revision++
	p, ok := r.b.announced(r.now, &Process{ID: "orders.a", Host: key, Number: n, AnnouncedAt: r.now, SeenAt: r.now}, announcement{key: key, stamp: stamp{Number: n}}, r.revision)
	if ok != alive || (want == "") != (p.Suspect == "") || !strings.Contains(p.Suspect, want) || p.ID != "orders.a" {
		r.t.Errorf("%s announces %d: alive %v, want %v; suspect %q, want %q", key, n, ok, alive, p.Suspect, want)
	}
}

func (r *rig) after(d time.Duration) { r.now = r.now.Add(d) }

func TestRegistryAcceptsRestarts(t *testing.T) {
	r := newRig(t)
	for life := range 50 { // a crash loop
		for n := range uint64(3) {
			r.announce(fmt.Sprint("life ", life), n+1, true, "")
			r.after(time.Second)
		}
	}
}

// An operator has to know which two processes, and the page of the id shows one of them.
func TestRegistryNamesBothProcessesOfOneID(t *testing.T) {
	r := newRig(t)
	r.announce("node-b", 1, true, "")
	r.announce("node-a", 1, true, "") // it may be a restart
	const both = "two processes announce themselves under this id, or another client forges its announcements: node-a, pid 0; node-b, pid 0"
	r.announce("node-b", 2, true, both)
	r.announce("node-a", 2, false, both)
	r.announce("node-b", 3, true, both)
}

func TestRegistryKnowsTheProcessFromItsForger(t *testing.T) {
	r := newRig(t)
	r.announce("real", 1, true, "")
	r.after(time.Second)
	r.announce("forger", 1, true, "") // it may be a restart
	r.after(time.Second)
	r.announce("real", 2, true, "two processes") // no: the process lives
	for n := range uint64(20) {
		r.announce("forger", n+2, false, "two processes")
		r.announce("forger", 1<<40+n, false, "two processes")
		r.after(time.Second)
		r.announce("real", n+3, true, "two processes")
	}
	r.after(time.Minute) // the forger is gone, and so is the warning
	r.announce("real", 100, true, "")
	r.after(time.Minute) // the process is gone: a rival may be its next life
	r.announce("forger", 1<<41, true, "")
}

// A forger has any number of keys. None of them takes the id from a process that lives for longer than
// until its next announcement.
func TestRegistryKnowsTheProcessAmongManyKeys(t *testing.T) {
	for _, keys := range []int{2, maxOthers, 2 * maxOthers, 100} {
		r := newRig(t)
		r.announce("real", 1, true, "")
		for i := range keys {
			if i < maxOthers {
				r.announce(fmt.Sprint("forger ", i), 1, true, "") // it may be a restart
			} else {
				r.announce(fmt.Sprint("forger ", i), 1, false, "again and again")
			}
		}
		for n := range uint64(10) {
			r.after(5 * time.Second)
			r.announce("real", n+2, true, "two processes")
			for i := range min(keys, maxOthers) {
				r.announce(fmt.Sprint("forger ", i), n+2, false, "two processes")
			}
		}
	}
}

func TestRegistryRefusesReplays(t *testing.T) {
	r := newRig(t)
	for n := range uint64(5) {
		r.announce("real", n+1, true, "")
	}
	r.announce("real", 3, false, "old announcement")
	r.announce("real", 5, false, "old announcement")
	r.after(time.Minute)
	r.announce("real", 5, false, "old announcement") // it does not keep a dead process alive
	r.announce("real", 6, true, "old announcement")
	// An announcement of an earlier life does not take the id from the next one.
	r.announce("next", 1, true, "old announcement")
	r.announce("real", 6, false, "earlier life")
	r.announce("next", 2, true, "earlier life")
}

// An entry that is read again does not count as a replay.
func TestRegistryReadsAnEntryTwice(t *testing.T) {
	r := newRig(t)
	r.announce("real", 1, true, "")
	r.revision--
	r.announce("real", 1, true, "")
	r.announce("real", 2, true, "")
	r.revision -= 2
	r.announce("real", 1, true, "") // a slow reader
	r.revision = 0                  // the server has lost the bucket
	r.announce("real", 3, true, "")
	r.revision = 0
	r.announce("real", 3, true, "")
}

func TestRegistryBelievesOnlyTheProcessThatItLeaves(t *testing.T) {
	r := newRig(t)
	if !r.b.left("orders.a", announcement{}) {
		t.Error("an unknown process cannot leave")
	}
	r.announce("real", 1, true, "")
	r.announce("real", 2, true, "")
	for _, bad := range []struct {
		key string
		n   uint64
	}{{"", 0}, {"", 9}, {"forger", 9}, {"real", 1}} {
		if r.b.left("orders.a", announcement{key: bad.key, stamp: stamp{Number: bad.n}}) {
			t.Errorf("%q removes the process with number %d", bad.key, bad.n)
		}
	}
	if !r.b.left("orders.a", announcement{key: "real", stamp: stamp{Number: 3}}) {
		t.Error("the process cannot leave")
	}
	r.announce("real", 2, false, "old announcement") // stored again
	r.announce("next", 1, true, "old announcement")  // the next life comes at once
}

func TestRegistrySaysThatAClockIsOff(t *testing.T) {
	b, now := newRegistry(15*time.Second), time.Now()
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		p, alive := b.announced(now, &Process{ID: fmt.Sprint("orders.", off), Number: 9, AnnouncedAt: now.Add(-off), SeenAt: now}, announcement{key: "k", stamp: stamp{Number: 1}}, 1)
		if !alive || !strings.Contains(p.Suspect, off.String()) {
			t.Errorf("%v: %v, %q", off, alive, p.Suspect)
		}
	}
}

func TestRegistryIsBounded(t *testing.T) {
	b, now := newRegistry(15*time.Second), time.Now()
	for i := range maxHolders + 1000 {
		p, alive := b.announced(now, &Process{ID: fmt.Sprint("orders.", i), Number: 1, AnnouncedAt: now, SeenAt: now}, announcement{key: "k", stamp: stamp{Number: 1}}, uint64(i+1))
		if !alive || p.Suspect != "" {
			t.Fatalf("%d: %v, %q", i, alive, p.Suspect)
		}
	}
	if len(b.ids) != maxHolders {
		t.Errorf("it remembers %d ids", len(b.ids))
	}
	now = now.Add(time.Minute)
	b.announced(now, &Process{ID: "orders.new", Number: 1, AnnouncedAt: now, SeenAt: now}, announcement{key: "k", stamp: stamp{Number: 1}}, 1)
	if len(b.ids) != 1 {
		t.Errorf("a minute later it remembers %d ids", len(b.ids))
	}
	r := newRig(t)
	for i := range 1000 {
		r.announce(fmt.Sprint("life ", i), 1, true, "")
		r.after(2 * time.Second)
	}
	if h := r.b.ids["orders.a"]; len(h.keys) > maxOthers+1 {
		t.Errorf("of one id it remembers %d keys", len(h.keys))
	}
}
