package lifecycle_test

import (
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

// slow is a worker with a stop time of its own.
type slow struct {
	*worker.Func
	takes time.Duration
}

func (s slow) StopTime() time.Duration { return s.takes }

// K20: the line "running" has the times of a stop and those of the units, and a warning names
// a unit that may take longer than the slice of the units.
func TestStopTimesOfUnitsAreCompared(t *testing.T) {
	for takes, warned := range map[time.Duration]bool{0: false, 5 * time.Second: false, 5 * time.Minute: true} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, lifecycle.Config{})
			r.Add(slow{worker.NewFunc("pool", untilCancelled), takes}).Go("other", untilCancelled)
			r.signalAfter(time.Second, syscall.SIGTERM)
			if err := r.Run(t.Context()); err != nil {
				t.Error(err)
			}
			running := linesWith(r.log.String(), "msg=running")
			want := "stop_at_most=27s window=5s requests=10s unit_slice=5s hook_slice=5s"
			if takes > 0 {
				want += ` units_take="pool ` + takes.String() + `"`
			}
			if len(running) != 1 || !strings.HasSuffix(running[0], want) {
				t.Errorf("%v: got %q, want one line that ends %q", takes, running, want)
			}
			warnings := linesWith(r.log.String(), "a unit may take longer to stop")
			if (len(warnings) == 1) != warned || warned && !strings.Contains(warnings[0], "unit=pool takes=5m0s unit_slice=5s shutdown_grace=20s") {
				t.Errorf("%v: the warnings are %q", takes, warnings)
			}
		})
	}
}
