package lease

import (
	"testing"
	"time"
)

// TestTrustEndsByEitherClock ends a term by the wall clock, as after a suspend, in which
// the monotonic clock stood still, and by the monotonic clock, as after the wall clock
// was set back.
func TestTrustEndsByEitherClock(t *testing.T) {
	now := time.Now()
	for name, test := range map[string]struct {
		until end
		valid bool
	}{
		"both clocks run":    {endOf(now.Add(time.Hour)), true},
		"suspended":          {end{monotonic: now.Add(time.Hour), wall: now.Add(-time.Second).Round(0)}, false},
		"the clock set back": {end{monotonic: now.Add(-time.Second), wall: now.Add(time.Hour).Round(0)}, false},
	} {
		l := &Lease{}
		l.term.Store(&term{token: 7, until: test.until})
		if token, valid := l.Token(); token != 7 || valid != test.valid {
			t.Errorf("%s: token %d is valid: %v, want %v", name, token, valid, test.valid)
		}
	}
}
