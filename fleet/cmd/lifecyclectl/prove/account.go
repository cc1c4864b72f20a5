package prove

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/prove/load"
)

// account is what the load has reported.
type account struct {
	mu       sync.Mutex // guards the fields below
	seq      int        // of the latest record
	first    *load.Hello
	tick     load.Tick
	ticked   time.Time // by the load's clock
	received time.Time // the latest record, by this clock
	// behind is how far the load's clock is behind this one, plus the shortest time that
	// a record took to arrive.
	behind time.Duration
	lost   []load.Loss
	fault  error // of the latest kubectl logs
}

func newAccount() *account { return &account{received: time.Now()} }

// follow reads the pod's log until ctx ends. After a broken connection it reads from
// the beginning and skips what it has.
func (a *account) follow(ctx context.Context, k *kubectl, pod string) {
	for {
		err := k.follow(ctx, func(lines *json.Decoder) error {
			var r load.Record
			if err := lines.Decode(&r); err != nil {
				return err
			}
			a.take(r)
			return nil
		}, "logs", "--follow", pod)
		a.mu.Lock()
		a.fault = err
		a.mu.Unlock()
		if !cli.Pause(ctx, time.Second) {
			return
		}
	}
}

func (a *account) take(r load.Record) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Seq <= a.seq {
		return
	}
	if behind := now.Sub(r.At); a.seq == 0 || behind < a.behind {
		a.behind = behind
	}
	a.seq, a.received = r.Seq, now
	switch {
	case r.Hello != nil:
		a.first = r.Hello
	case r.Tick != nil:
		a.tick, a.ticked = *r.Tick, r.At
	case r.Loss != nil:
		a.lost = append(a.lost, *r.Loss)
	}
}

// hello waits for the first record.
func (a *account) hello(ctx context.Context) (load.Hello, error) {
	for {
		a.mu.Lock()
		hello := a.first
		a.mu.Unlock()
		if hello != nil {
			return *hello, nil
		}
		if err := a.overdue(); err != nil {
			return load.Hello{}, err
		}
		if !cli.Pause(ctx, 100*time.Millisecond) {
			return load.Hello{}, context.Canceled
		}
	}
}

// drained waits until every request that was sent before that time has its outcome.
func (a *account) drained(ctx context.Context, until time.Time) error {
	for {
		a.mu.Lock()
		ticked, oldest := a.ticked.Add(a.behind), a.tick.Oldest
		a.mu.Unlock()
		if ticked.After(until) && (oldest.IsZero() || oldest.Add(a.behind).After(until)) {
			return nil
		}
		if err := a.overdue(); err != nil {
			return err
		}
		if !cli.Pause(ctx, 100*time.Millisecond) {
			return context.Canceled
		}
	}
}

// overdue returns an error when the load has not reported for longer than maxWait.
func (a *account) overdue() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.received) <= maxWait {
		return nil
	}
	e := cli.Fail(cli.ExitFindings, "the load has not reported for %v", maxWait)
	if a.fault != nil {
		return e.Hint("kubectl logs says: %v", a.fault)
	}
	return e.Hint("its pod may have been evicted: kubectl get events says so")
}

func (a *account) totals() (sent, lost int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.tick.Counts {
		sent += c.Sent
		lost += c.Lost
	}
	return sent, lost
}

func (a *account) counts() map[string]load.Count {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.tick.Counts)
}

// lostRequest is a loss by the clock of this machine.
type lostRequest struct{ load.Loss }

// at returns when the request was lost. When no connection was made for it, that is when
// it was sent.
func (l lostRequest) at() time.Time {
	if l.How == load.Unreachable || l.How == load.Late {
		return l.Sent
	}
	return l.Lost
}

func (a *account) losses() []lostRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]lostRequest, len(a.lost))
	for i, l := range a.lost {
		l.Sent, l.Lost = l.Sent.Add(a.behind), l.Lost.Add(a.behind)
		all[i] = lostRequest{l}
	}
	slices.SortFunc(all, func(x, y lostRequest) int { return x.at().Compare(y.at()) })
	return all
}
