package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Backoff says how long a supervisor waits before it restarts a failed function
// or child, and after how many restarts the failure is final. The zero value of a
// field is its default.
type Backoff struct {
	// Min is the wait after the first failure. Defaults to 500 ms.
	Min time.Duration `koanf:"min"`
	// Max bounds the wait. Defaults to 1 minute.
	Max time.Duration `koanf:"max"`
	// Factor multiplies the wait after each further failure. At least 1. Defaults
	// to 2.
	Factor float64 `koanf:"factor"`
	// Jitter changes each wait at random, by up to this fraction of it, up or
	// down: with 0.2, a wait of 10 s takes 8 s to 12 s. So functions that failed
	// together do not start together. Defaults to 0.2; [NoJitter] turns it off.
	Jitter float64 `koanf:"jitter"`
	// ResetAfter is the uptime after which an instance counts as healthy: after
	// its failure the wait is Min again. Defaults to 1 minute.
	ResetAfter time.Duration `koanf:"reset_after"`
	// MaxRestarts is the restart budget: how many restarts Window allows. The
	// next failure is final. Defaults to 10; [NoLimit] sets no limit.
	MaxRestarts int `koanf:"max_restarts"`
	// Window is the time over which restarts count. Defaults to 10 minutes.
	Window time.Duration `koanf:"window"`
}

// Values that turn a field of [Backoff] off.
const (
	NoJitter = -1
	NoLimit  = -1
)

// DefaultBackoff returns the backoff with every default filled in. A function
// that fails at once is restarted after about 0.5, 1, 2, 4 … 60 seconds. After ten
// restarts, some four minutes later, it fails for good.
func DefaultBackoff() Backoff { return Backoff{}.WithDefaults() }

// WithDefaults returns a copy in which no field is zero. A Max that was not set
// is raised to Min.
func (b Backoff) WithDefaults() Backoff {
	b.Min = cmp.Or(b.Min, 500*time.Millisecond)
	b.Max = cmp.Or(b.Max, max(time.Minute, b.Min))
	b.Factor = cmp.Or(b.Factor, 2)
	b.Jitter = cmp.Or(b.Jitter, 0.2)
	b.ResetAfter = cmp.Or(b.ResetAfter, time.Minute)
	b.MaxRestarts = cmp.Or(b.MaxRestarts, 10)
	b.Window = cmp.Or(b.Window, 10*time.Minute)
	return b
}

// Validate returns an error that names each invalid field and the values that it
// takes.
func (b Backoff) Validate() error {
	b = b.WithDefaults()
	var errs []error
	positive := func(field string, d time.Duration) {
		if d < 0 {
			errs = append(errs, fmt.Errorf("backoff %s is %v, want more than 0", field, d))
		}
	}
	positive("Min", b.Min)
	positive("Max", b.Max)
	positive("ResetAfter", b.ResetAfter)
	positive("Window", b.Window)
	if b.Max < b.Min {
		errs = append(errs, fmt.Errorf("backoff Max is %v, want at least Min, which is %v", b.Max, b.Min))
	}
	if !(b.Factor >= 1 && b.Factor <= 1000) {
		errs = append(errs, fmt.Errorf("backoff Factor is %v, want 1 to 1000", b.Factor))
	}
	if b.Jitter != NoJitter && !(b.Jitter >= 0 && b.Jitter <= 1) {
		errs = append(errs, fmt.Errorf("backoff Jitter is %v, want 0 to 1, or NoJitter", b.Jitter))
	}
	if b.MaxRestarts < NoLimit {
		errs = append(errs, fmt.Errorf("backoff MaxRestarts is %d, want 1 or more, or NoLimit", b.MaxRestarts))
	}
	return errors.Join(errs...)
}

// After returns how long to wait after this number of failures in a row, at least
// 1. That is Min after the first failure, Factor times as long after each further
// one, and Max at most. Each call draws a new random jitter.
func (b Backoff) After(failures int) time.Duration {
	b = b.WithDefaults()
	wait := float64(b.Min)
	if failures > 1 && b.Min < b.Max { // computed as floats: the product may not fit a Duration
		wait = min(wait*math.Pow(b.Factor, float64(failures-1)), float64(b.Max))
	}
	if b.Jitter != NoJitter {
		// Add jitter below Max too, when the wait has reached Max.
		low, high := wait*(1-b.Jitter), min(wait*(1+b.Jitter), float64(b.Max))
		wait = low + rand.Float64()*(high-low)
	}
	return min(max(time.Duration(wait), 0), b.Max)
}

// Sleep waits for the time that [Backoff.After] returns, and then returns nil.
// When ctx ends first, it returns ctx's cause at once. Use it in loops that retry
// by themselves.
func (b Backoff) Sleep(ctx context.Context, failures int) error {
	if ctx.Err() != nil || !sleep(ctx, b.After(failures)) {
		return context.Cause(ctx)
	}
	return nil
}

// delays computes the waits after the failures of one function or child.
type delays struct {
	Backoff  // with defaults
	failures int
	restarts intensity
}

func (b Backoff) delays() *delays {
	b = b.WithDefaults()
	return &delays{Backoff: b, restarts: intensity{limit: b.MaxRestarts, window: b.Window}}
}

// failed returns how long to wait after an instance with this uptime has failed
// at now. It returns false when the budget is spent.
func (d *delays) failed(now time.Time, uptime time.Duration) (wait time.Duration, ok bool) {
	if !d.restarts.allow(now) {
		return 0, false
	}
	if uptime >= d.ResetAfter {
		d.failures = 0
	}
	d.failures++
	return d.After(d.failures), true
}

// intensity counts restarts in a sliding window.
type intensity struct {
	limit  int
	window time.Duration
	past   []time.Time // within the window, oldest first
}

// allow reports whether a restart is allowed at now, and counts it.
func (i *intensity) allow(now time.Time) bool {
	if i.limit == NoLimit {
		return true
	}
	for len(i.past) > 0 && now.Sub(i.past[0]) >= i.window {
		i.past = i.past[1:]
	}
	if len(i.past) >= i.limit {
		return false
	}
	i.past = append(i.past, now)
	return true
}
