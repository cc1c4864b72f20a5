package dev

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// Timer is a timer that a message sets or cancels, or that fires.
type Timer struct {
	Key, Name string
	Due       time.Time
	Data      []byte
	Cancelled bool
}

// timers are those that are set, and the clock that they go by: it stands still while
// messages are handled, and then goes from one timer to the next.
type timers struct {
	now time.Time
	set map[string]map[string]Timer // by key and name
}

// Fire handles the timer that is due first, as a host does when its time has come. The
// clock of the timers then shows this time, and no time passes. It returns false when
// no timer is set.
func (r *Runner) Fire(ctx context.Context) (Timer, Result, bool) {
	var first *Timer
	for _, of := range r.timers.set {
		for _, t := range of {
			if first == nil || cmp.Or(t.Due.Compare(first.Due), strings.Compare(t.Key, first.Key), strings.Compare(t.Name, first.Name)) < 0 {
				first = &t
			}
		}
	}
	if first == nil {
		return Timer{}, Result{}, false
	}
	t := *first
	delete(r.timers.set[t.Key], t.Name)
	if t.Due.After(r.timers.now) {
		r.timers.now = t.Due
	}
	header := map[string][]string{}
	if t.Key != r.worker.Topic {
		header[r.keyHeader()] = []string{t.Key}
	}
	return t, r.handle(ctx, &engine.Message{Header: header, Data: t.Data, Timer: &engine.Fired{Name: t.Name, Due: t.Due}}, t.Key), true
}

// keyHeader is the header with a message's key.
func (r *Runner) keyHeader() string { return cmp.Or(r.worker.Key, "Lifecycle-Key") }

// SetTimer sets a timer when the message is handled.
func (s *state) SetTimer(_ context.Context, t engine.Timer) error {
	due, err := t.DueAt(s.timers.now)
	if err == nil {
		s.edits[t.Name] = Timer{Key: s.key, Name: t.Name, Due: due, Data: slices.Clone(t.Data)}
	}
	return err
}

// CancelTimer removes one then.
func (s *state) CancelTimer(_ context.Context, name string) error {
	if err := engine.CheckTimerName(name); err != nil {
		return err
	}
	s.edits[name] = Timer{Key: s.key, Name: name, Cancelled: true}
	return nil
}

// ListTimers returns the timers of the message's key.
func (s *state) ListTimers(context.Context) (list []engine.Timer, err error) {
	all := maps.Clone(s.timers.set[s.key])
	if all == nil {
		all = make(map[string]Timer)
	}
	maps.Copy(all, s.edits)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if t := all[name]; !t.Cancelled {
			list = append(list, engine.Timer{Name: name, At: t.Due})
		}
	}
	return list, nil
}

// keep carries out what a message did to timers, and returns it.
func (s *state) keep() (all []Timer) {
	of := s.timers.set[s.key]
	if of == nil {
		of = make(map[string]Timer)
		s.timers.set[s.key] = of
	}
	for _, name := range slices.Sorted(maps.Keys(s.edits)) {
		t := s.edits[name]
		_, was := of[name]
		if delete(of, name); !t.Cancelled {
			of[name] = t
		}
		if was || !t.Cancelled {
			all = append(all, t)
		}
	}
	return all
}

// String names the timer for people.
func (t Timer) String() string {
	return fmt.Sprintf("timer %s of %s, due %s", t.Name, t.Key, t.Due.Format(time.RFC3339))
}
