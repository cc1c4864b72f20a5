package isolate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// timerOf returns the timer of a message as a child gets it.
func timerOf(f *engine.Fired) *timer {
	if f == nil {
		return nil
	}
	return &timer{f.Name, millis(f.Due)}
}

// fired is the inverse of timerOf.
func (t *timer) fired() *engine.Fired {
	if t == nil {
		return nil
	}
	return &engine.Fired{Name: t.Name, Due: time.UnixMilli(int64(t.Due)).UTC()}
}

func millis(t time.Time) float64 { return float64(t.UnixMilli()) }

// nameOf returns the name that code has for a method.
func nameOf(method string) string {
	if name, is := strings.CutPrefix(method, "timer."); is {
		return "timers." + name
	}
	return "state." + method
}

// callTimers answers a call of the child for timers.
func callTimers(ctx context.Context, t engine.Timers, method string, a access) (r access, err error) {
	switch method {
	case callSet:
		set := engine.Timer{Name: a.Key, Data: a.Value}
		switch {
		case (a.After == nil) == (a.At == nil):
			return r, errors.New("timers.set: want either a delay or a time")
		case a.After != nil:
			set.After, err = engine.TimerAfter(*a.After)
		default:
			set.At, err = engine.TimerAt(*a.At)
		}
		if err == nil {
			err = t.SetTimer(ctx, set)
		}
	case callCancel:
		err = t.CancelTimer(ctx, a.Key)
	case callList:
		var list []engine.Timer
		list, err = t.ListTimers(ctx)
		for _, one := range list {
			r.Timers = append(r.Timers, timer{one.Name, millis(one.At)})
		}
	default:
		err = fmt.Errorf("there is no %.100q", nameOf(method))
	}
	return r, err
}

// SetTimer asks the host to set a timer.
func (s remote) SetTimer(ctx context.Context, t engine.Timer) error {
	a := access{Key: t.Name, Value: t.Data}
	if t.At.IsZero() {
		ms := float64(t.After.Milliseconds())
		a.After = &ms
	} else {
		ms := millis(t.At)
		a.At = &ms
	}
	_, err := s.ask(ctx, callSet, a)
	return err
}

// CancelTimer asks it to cancel one.
func (s remote) CancelTimer(ctx context.Context, name string) error {
	_, err := s.ask(ctx, callCancel, access{Key: name})
	return err
}

// ListTimers asks it for those of the message's key.
func (s remote) ListTimers(ctx context.Context) ([]engine.Timer, error) {
	a, err := s.ask(ctx, callList, access{})
	list := make([]engine.Timer, 0, len(a.Timers))
	for _, t := range a.Timers {
		list = append(list, engine.Timer{Name: t.Name, At: t.fired().Due})
	}
	return list, err
}
