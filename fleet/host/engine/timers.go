package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Timer is a due time of a key. The handler of a message sets it for the key of that
// message. When it is due, the host calls the handler with a message of this key whose
// Timer is set, behind the messages of the key that wait then.
type Timer struct {
	// Name identifies the timer among those of its key: 1 to [MaxTimerName] bytes of UTF-8,
	// without control characters and without spaces around them. To set a timer replaces the
	// one of that name.
	Name string
	// At is when it is due, by the clock of the NATS server, in milliseconds. A time in
	// the past is due at once. The years are 1 to 9999.
	At time.Time
	// After sets At to so long after the call. Use it when At is zero.
	After time.Duration
	// Data is the data of the message: at most [MaxTimerData] bytes. A list has none.
	Data []byte
}

// Bounds of timers.
const (
	MaxTimerName = 64
	MaxTimerData = 16 << 10
)

// ErrNoTimers is returned by the methods of [TimersOf] for a State without timers.
var ErrNoTimers = errors.New("this state has no timers")

// Timers are the timers of a message's key.
//
// What a handler sets and cancels takes effect when it returns without an error,
// together with what it writes and publishes: all of it or nothing, and once. A timer
// fires once: it is gone with the effects of the message that it caused. To repeat, the
// handler sets it again. A key has at most 100 timers, and a worker 10,000.
type Timers interface {
	// SetTimer sets a timer, in place of the key's timer of that name.
	SetTimer(ctx context.Context, t Timer) error
	// CancelTimer removes a timer. It returns nil when there is none.
	CancelTimer(ctx context.Context, name string) error
	// ListTimers returns the timers of the key, by name, without their data.
	ListTimers(ctx context.Context) ([]Timer, error)
}

// TimersOf returns the timers of the key of the message that s belongs to. The methods
// return [ErrNoTimers] when s has none: a host's State always has.
func TimersOf(s State) Timers {
	if t, ok := s.(Timers); ok {
		return t
	}
	return noTimers{}
}

type noTimers struct{}

func (noTimers) SetTimer(context.Context, Timer) error       { return ErrNoTimers }
func (noTimers) CancelTimer(context.Context, string) error   { return ErrNoTimers }
func (noTimers) ListTimers(context.Context) ([]Timer, error) { return nil, ErrNoTimers }

// Fired says which timer caused a message.
type Fired struct {
	Name string
	Due  time.Time // when it was due; the message may be later
}

// DueAt returns when the timer is due, in milliseconds, for a call at now. The error
// says what is wrong with the timer.
func (t Timer) DueAt(now time.Time) (time.Time, error) {
	due := t.At
	switch err := CheckTimerName(t.Name); {
	case err != nil:
		return due, err
	case len(t.Data) > MaxTimerData:
		return due, &LimitError{"timer data", fmt.Sprintf("%d bytes", MaxTimerData)}
	case !due.IsZero() && t.After != 0:
		return due, fmt.Errorf("timer %q: it has both a time and a delay", t.Name)
	case t.After < 0:
		return due, fmt.Errorf("timer %q: a delay of %v: want 0 or more", t.Name, t.After)
	case due.IsZero():
		due = now.Add(t.After)
	}
	due = due.UTC().Truncate(time.Millisecond)
	if year := due.Year(); year < 1 || year > 9999 {
		return due, fmt.Errorf("timer %q: the year %d: want 1 to 9999", t.Name, year)
	}
	return due, nil
}

// CheckTimerName returns an error that says what is wrong with the name of a timer, and
// nil for a valid one.
func CheckTimerName(name string) error {
	isText := utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
	if name != "" && len(name) <= MaxTimerName && isText && strings.TrimSpace(name) == name {
		return nil
	}
	return fmt.Errorf("timer name %.200q: want 1 to %d bytes of UTF-8, without control characters "+
		"and without spaces around them", name, MaxTimerName)
}

// TimerAfter returns the delay of so many milliseconds, for an engine whose language has
// numbers: nothing else, and at most what a [time.Duration] has.
func TimerAfter(ms float64) (time.Duration, error) {
	const most = 9_200_000_000_000 // less than a Duration can have
	if !(ms >= 0 && ms <= most) {  // also when it is NaN
		return 0, fmt.Errorf("a delay of %v ms: want a number of milliseconds from 0 to %d: "+
			"for a later time give the time", ms, int64(most))
	}
	return time.Duration(ms * 1e6), nil
}

// TimerAt returns the time so many milliseconds after the beginning of 1970.
func TimerAt(ms float64) (time.Time, error) {
	const first, last = -62_135_596_800_000, 253_402_300_799_999
	if !(ms >= first && ms <= last) {
		return time.Time{}, fmt.Errorf("a time of %v ms: want the milliseconds since 1970 of a time in the years 1 to 9999", ms)
	}
	return time.UnixMilli(int64(ms)).UTC(), nil
}
