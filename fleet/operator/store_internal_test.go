package operator

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// disk is an area whose streams a test sets.
type disk struct {
	Processes
	mu      sync.Mutex // guards the fields below; the test has it, except while it waits
	list    []presence.Stream
	last    func() presence.Stream // in place of the last of list, when it is set
	listErr error
	full    error
}

func (d *disk) streams(context.Context) ([]presence.Stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := slices.Clone(d.list)
	if d.last != nil {
		list[len(list)-1] = d.last()
	}
	return list, d.listErr
}

func (d *disk) checkWrites(context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.full
}

// What has changed in the store between two looks is a fact for the rules, and nothing else is.
func TestStoreIsCompared(t *testing.T) {
	made := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	consumer := func(pending uint64, inHand int, floor uint64) presence.Stream {
		return presence.Stream{Name: "WORK", Made: made, OnDisk: true, Consumers: []presence.Consumer{{Name: "billing", Pending: pending, InHand: inHand, Floor: floor}}}
	}
	run := func(name string, change func(d *disk, wait func(time.Duration)), want func(diagnosis.Store) bool) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &disk{list: []presence.Stream{
					{Name: "KV_A", Made: made, OnDisk: true, Messages: 3},
					{Name: "KV_FLEET", Made: made, Messages: 5},
					{Name: "WORK", Made: made, OnDisk: true, Messages: 2},
				}}
				w := newStore(d, func() bool { return false })
				go w.run(t.Context())
				d.mu.Lock()
				defer d.mu.Unlock()
				wait := func(long time.Duration) {
					d.mu.Unlock()
					defer d.mu.Lock()
					time.Sleep(long)
					synctest.Wait()
				}
				wait(time.Minute)
				if f, n, looked, err := w.facts(); n != 3 || !looked || err != nil || len(f.Lost)+len(f.Full)+len(f.Stalled)+len(f.Growing) > 0 || f.Refused != "" {
					t.Errorf("a store that is well: %+v, %d streams, %t, %v", f, n, looked, err)
				}
				change(d, wait)
				wait(time.Minute)
				if f, _, _, _ := w.facts(); !want(f) {
					t.Errorf("the facts are %+v", f)
				}
			})
		})
	}
	none := func(f diagnosis.Store) bool {
		return len(f.Lost)+len(f.Full)+len(f.Stalled)+len(f.Growing) == 0 && f.Refused == ""
	}
	run("an empty disk", func(d *disk, _ func(time.Duration)) { d.list = nil }, func(f diagnosis.Store) bool {
		return f.Replaced && len(f.Lost) == 2 && f.Lost[0].Stream == "KV_A" && f.Lost[0].Messages == 3 && f.Lost[0].Missing
	})
	run("an empty disk that is filled again", func(d *disk, wait func(time.Duration)) {
		d.list = nil
		wait(time.Minute)
		d.list = []presence.Stream{{Name: "KV_A", Made: made.Add(time.Hour), OnDisk: true}, {Name: "WORK", Made: made.Add(time.Hour), OnDisk: true}, {Name: "NEW", OnDisk: true}}
	}, func(f diagnosis.Store) bool {
		return f.Replaced && len(f.Lost) == 2 && !f.Lost[0].Missing && !f.Lost[1].Missing
	})
	run("a stream that was deleted", func(d *disk, _ func(time.Duration)) { d.list = d.list[:2] }, func(f diagnosis.Store) bool {
		return !f.Replaced && len(f.Lost) == 1 && f.Lost[0].Stream == "WORK" && f.Lost[0].Missing
	})
	run("a loss of two days ago", func(d *disk, wait func(time.Duration)) { d.list = nil; wait(48 * time.Hour) }, none)
	run("a bucket in memory that a restart has lost", func(d *disk, wait func(time.Duration)) {
		d.list[1].Made = made.Add(time.Hour)
	}, none)
	run("a stream that is missing for a moment", func(d *disk, wait func(time.Duration)) {
		all := d.list
		d.list = all[:2]
		wait(storeEvery)
		d.list = all
	}, none)
	run("an empty stream that was made anew", func(d *disk, _ func(time.Duration)) {
		d.list[0].Messages = 0
		d.list = append(d.list, presence.Stream{Name: "EMPTY", Made: made, OnDisk: true})
	}, none)
	again := func(host string) func(d *disk, wait func(time.Duration)) {
		return func(d *disk, wait func(time.Duration)) {
			d.list[2] = consumer(0, 3, 7)
			d.list[2].Consumers[0].Again, d.list[2].Consumers[0].Host = 3, host
			wait(2 * time.Minute)
		}
	}
	run("a consumer that fails at its last messages", again(""), func(f diagnosis.Store) bool {
		return len(f.Stalled) == 1 && f.Stalled[0].Left == 3 && f.Stalled[0].Redelivered == 3
	})
	run("a hosted worker that tries again", again("HOST"), none)
	run("a full disk", func(d *disk, _ func(time.Duration)) { d.full = errors.New("no space left on device") }, func(f diagnosis.Store) bool {
		return f.Refused == "no space left on device" && time.Since(f.RefusedSince) >= 50*time.Second
	})
	run("a disk that is no longer full", func(d *disk, wait func(time.Duration)) { d.full = errors.New("full"); wait(time.Minute); d.full = nil }, none)
	run("a stream at its limit", func(d *disk, _ func(time.Duration)) {
		d.list[2].Refuses, d.list[2].MaxBytes, d.list[2].Bytes = true, 100, 91
	}, func(f diagnosis.Store) bool { return len(f.Full) == 1 && f.Full[0].Stream == "WORK" })
	run("a stream at its limit that drops the oldest", func(d *disk, _ func(time.Duration)) { d.list[2].MaxBytes, d.list[2].Bytes = 100, 100 }, none)
	run("a consumer that stands still", func(d *disk, wait func(time.Duration)) {
		d.list[2] = consumer(36, 0, 5)
		wait(90 * time.Second)
	}, func(f diagnosis.Store) bool {
		return len(f.Stalled) == 1 && f.Stalled[0].Left == 36 && f.Stalled[0].Consumer == "billing"
	})
	run("a consumer with one long message", func(d *disk, wait func(time.Duration)) { d.list[2] = consumer(0, 1, 5); wait(time.Hour) }, none)
	run("a consumer that is slow", func(d *disk, wait func(time.Duration)) {
		for i := range uint64(60) {
			d.list[2] = consumer(36, 0, i)
			wait(time.Minute)
		}
	}, none)
	run("a consumer whose oldest message takes long", func(d *disk, wait func(time.Duration)) {
		for i := range uint64(60) {
			d.list[2] = consumer(100-i, 1, 5)
			wait(time.Minute)
		}
	}, none)
	run("a backlog that grows", func(d *disk, wait func(time.Duration)) {
		begun := time.Now()
		d.last = func() presence.Stream { // at each look there are ten more, and at each third one fewer
			i := uint64(time.Since(begun) / storeEvery)
			return consumer(36+10*i-20*(i%3), 0, i)
		}
		wait(5 * time.Minute)
	}, func(f diagnosis.Store) bool {
		return len(f.Stalled) == 0 && len(f.Growing) == 1 && f.Growing[0].Left-f.Growing[0].From >= 120
	})
	run("a burst", func(d *disk, wait func(time.Duration)) {
		for i := range uint64(60) {
			d.list[2] = consumer(36+60*min(i, 60-i), 0, i)
			wait(storeEvery)
		}
	}, none)
	run("larger and larger bursts that are finished each time", func(d *disk, wait func(time.Duration)) {
		begun := time.Now()
		d.last = func() presence.Stream {
			i := uint64(time.Since(begun) / storeEvery)
			return consumer(36+10*i*(i%4), 0, i)
		}
		wait(5 * time.Minute)
	}, none)
}

// While NATS is away the store does not look, and streams that cannot be listed are named.
func TestStoreIsNotLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{listErr: errors.New("no permission")}
		w := newStore(d, func() bool { return false })
		go w.run(t.Context())
		synctest.Wait()
		if _, _, looked, err := w.facts(); !looked || err == nil {
			t.Errorf("streams that cannot be listed: %t, %v", looked, err)
		}
	})
	w := newStore(cutOff{}, func() bool { return true })
	w.run(t.Context())
	if _, _, looked, _ := w.facts(); looked {
		t.Error("an area without streams was looked at")
	}
}
