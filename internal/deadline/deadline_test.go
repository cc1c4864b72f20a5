package deadline

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The moment comes by the clock that reaches it first. A machine that was suspended is one whose
// wall clock is ahead, and a clock that was set back is one whose wall clock is behind.
func TestEitherClockEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		for _, c := range []struct {
			name string
			at   Time
			want bool
		}{
			{"neither", At(now.Add(time.Second)), false},
			{"both", At(now), true},
			{"the wall clock: the machine was suspended", Time{now.Add(time.Second), now.Round(0)}, true},
			{"the monotonic clock: the wall clock was set back", Time{now, now.Round(0).Add(time.Hour)}, true},
			{"none was set", Time{}, true},
		} {
			if got := c.at.HasPassed(); got != c.want {
				t.Errorf("%s: passed is %v", c.name, got)
			}
		}
		at := At(now.Add(time.Second))
		time.Sleep(time.Second)
		if !at.HasPassed() {
			t.Error("a second later it has not passed")
		}
	})
}
