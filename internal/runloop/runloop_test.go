package runloop

import (
	"math"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRunLoopBackoffDoesNotOverflow(t *testing.T) {
	l := &Loop{Interval: math.MaxInt64/2 + 1, MaxDelay: math.MaxInt64}
	if got := l.backoff(l.Interval); got != math.MaxInt64 {
		t.Errorf("backoff is %v, want the maximum", got)
	}
}
