package lease

import (
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/deadline"
)

// TestTrustEndsByEitherClock ends a term by the wall clock, as after a suspend, in which
// the monotonic clock stood still, and by the monotonic clock, as after the wall clock
// was set back.
func TestTrustEndsByEitherClock(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		until deadline.Time
		valid bool
	}{
		"both clocks run":    {deadline.At(now.Add(time.Hour)), true},
		"suspended":          {deadline.Time{Monotonic: now.Add(time.Hour), Wall: now.Add(-time.Second).Round(0)}, false},
		"the clock set back": {deadline.Time{Monotonic: now.Add(-time.Second), Wall: now.Add(time.Hour).Round(0)}, false},
	} {
		l := &Lease{}
		l.term.Store(&term{token: 7, until: test.until})
		if token, valid := l.Token(); token != 7 || valid != test.valid {
			t.Errorf("%s: token %d is valid: %v, want %v", name, token, valid, test.valid)
		}
	}
}
