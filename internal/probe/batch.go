package probe

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// yields is how often the goroutine that started a batch yields while no run
// begins, before it assumes that a check blocks. That takes a few microseconds.
const yields = 32

// batch is a set of claimed runs and the goroutines that execute them. One
// goroutine executes the runs one after the other. For checks that return at once
// that is several times cheaper than a goroutine each. When a check does not
// return soon, every run that has not begun gets a goroutine of its own, so that
// no check waits for another.
type batch struct {
	base context.Context
	runs []run
	next atomic.Int64 // index of the next run to begin
	over atomic.Bool  // no run is left to begin, and the goroutine that found that has ended its own run
}

// Start begins a run of every check that has none in progress, each under a
// context with base's values and cancellation, and returns at once.
func Start(base context.Context, checks ...*Check) {
	if b := newBatch(base, checks, Now()); b != nil {
		b.spread()
	}
}

// Unfinished is a run that [Run] has stopped waiting for.
type Unfinished struct {
	Check *Check
	Run   uint64 // its number
}

// Run begins a run of every check that has none in progress, as [Start] does. It
// waits until these runs, and those in progress already, have ended or are
// overdue, but for patience at most and not longer than until ctx is done. The
// runs depend on base, not on ctx: they go on when Run returns. Run returns the
// runs that have not ended, nil if there are none.
func Run(ctx, base context.Context, patience time.Duration, checks []*Check) []Unfinished {
	began := Now()
	b := newBatch(base, checks, began)
	if b != nil && b.runSoon(began) && len(b.runs) == len(checks) {
		return nil
	}
	return wait(ctx, began+patience, checks)
}

// newBatch claims the checks that are not running. It returns nil when all
// are.
func newBatch(base context.Context, checks []*Check, now time.Duration) *batch {
	var b *batch
	var held *Group
	for i, c := range checks {
		if c.group != held {
			if held != nil {
				held.mu.Unlock()
			}
			held = c.group
			held.mu.Lock()
		}
		number := c.claimLocked(now)
		if number == 0 {
			continue
		}
		if b == nil {
			b = &batch{base: base, runs: make([]run, 0, len(checks)-i)}
		}
		n := len(b.runs)
		b.runs = b.runs[:n+1]
		r := &b.runs[n]
		r.check, r.batch, r.number = c, b, number
	}
	if held != nil {
		held.mu.Unlock()
	}
	return b
}

// runSoon executes the batch in one goroutine while the checks return at once,
// and then in a goroutine each. It reports whether all runs have ended.
func (b *batch) runSoon(now time.Duration) bool {
	go b.work(now)
	begun := int64(0)
	for idle := 0; idle < yields; idle++ {
		runtime.Gosched()
		if b.over.Load() {
			return true
		}
		if n := b.next.Load(); n != begun { // the batch makes progress
			begun, idle = n, 0
		}
	}
	b.spread()
	return false
}

// spread gives every run that has not begun a goroutine of its own.
func (b *batch) spread() {
	for range int64(len(b.runs)) - b.next.Load() {
		go b.work(Now())
	}
}

// work executes runs until none is left to begin. now is the beginning of the
// first run. Each goroutine in work executes a run or is about to end, so there
// are never more goroutines than runs in progress.
func (b *batch) work(now time.Duration) {
	var current *run
	goexit := true
	defer func() {
		if goexit {
			current.finish(fmt.Errorf("%s: %w", current.check.name, call.ErrGoexit), Now())
			go b.work(Now()) // this goroutine exits; another one executes the rest of the batch
		}
	}()
	rest := func() error {
		for {
			i := b.next.Add(1) - 1
			if i >= int64(len(b.runs)) {
				return nil
			}
			current = &b.runs[i]
			current.started = now
			err := current.check.fn(current)
			now = Now()
			current.finish(err, now)
		}
	}
	for {
		err := call.Do("", rest)
		if err == nil {
			break
		}
		if p := new(call.PanicError); errors.As(err, &p) {
			p.Name = current.check.name
		}
		now = Now()
		current.finish(err, now)
	}
	goexit = false
	b.over.Store(true)
}

// wait waits for runs, as [Run] describes, until deadline at most.
func wait(ctx context.Context, deadline time.Duration, checks []*Check) []Unfinished {
	var timer *time.Timer
	var unfinished []Unfinished
	for _, c := range checks {
		ended, overdue, run := c.inProgress()
		if ended == nil {
			continue
		}
		left := min(overdue, deadline) - Now()
		if left > 0 && ctx.Err() == nil {
			if timer == nil {
				timer = time.NewTimer(left)
				defer timer.Stop()
			} else {
				timer.Reset(left)
			}
			select {
			case <-ended:
				continue
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		unfinished = append(unfinished, Unfinished{c, run})
	}
	return unfinished
}
