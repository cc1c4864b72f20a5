package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// script runs a periodic check every second with the results of a script, and
// returns what listeners heard, with the second in which they heard it.
func script(t *testing.T, results []error, opts ...Option) (heard []string, last Status) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRegistry()
		began := time.Now()
		stop := r.Events().Listen(64, func(e fsm.Event) {
			heard = append(heard, fmt.Sprintf("%.0fs %s>%s %v", time.Since(began).Seconds(), e.From, e.To, e.Cause))
		})
		var run atomic.Int64
		must(t, r.RegisterReadiness("db", ProbeFunc(func(context.Context) error {
			return results[min(int(run.Add(1)), len(results))-1]
		}), append(opts, WithPeriodic(time.Second))...))
		must(t, r.Start(t.Context()))
		time.Sleep(time.Duration(len(results))*time.Second - time.Millisecond)
		last = r.Snapshot()[0]
		must(t, r.Close(t.Context()))
		time.Sleep(time.Hour) // a failure that is hidden at the end stays hidden
		stop()
	})
	return heard, last
}

func TestFailureIsToldOnceItHasLasted(t *testing.T) {
	other := errors.New("timed out")
	for name, tc := range map[string]struct {
		results []error
		delay   time.Duration
		heard   []string
		last    State
		hidden  bool
	}{
		"no delay": {
			[]error{nil, errDown, nil}, 0,
			[]string{"0s unknown>up <nil>", "1s up>down connection refused", "2s down>up <nil>"}, Up, false,
		},
		"short": {
			[]error{nil, errDown, errDown, nil, nil, nil, nil}, 3 * time.Second,
			[]string{"0s unknown>up <nil>"}, Up, false,
		},
		"long": {
			[]error{nil, errDown, errDown, errDown, errDown, errDown, nil}, 3 * time.Second,
			[]string{"0s unknown>up <nil>", "4s up>down connection refused", "6s down>up <nil>"}, Up, false,
		},
		"two short ones are not a long one": {
			[]error{nil, errDown, errDown, nil, errDown, errDown, nil, nil, nil}, 3 * time.Second,
			[]string{"0s unknown>up <nil>"}, Up, false,
		},
		"down and unknown are one failure": {
			[]error{nil, errDown, ErrUnknown, errDown, ErrUnknown, ErrUnknown, other, nil}, 2500 * time.Millisecond,
			[]string{"0s unknown>up <nil>", "4s up>down connection refused", "4s down>unknown state unknown", "6s unknown>down timed out", "7s down>up <nil>"}, Up, false,
		},
		"down from the first run on": {
			[]error{errDown, errDown, errDown, errDown, nil}, 2 * time.Second,
			[]string{"2s unknown>down connection refused", "4s down>up <nil>"}, Up, false,
		},
		"hidden at the end": {
			[]error{nil, errDown, errDown}, 5 * time.Second,
			[]string{"0s unknown>up <nil>"}, Down, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var opts []Option
			if tc.delay > 0 {
				opts = []Option{WithTimeToVisible(tc.delay)}
			}
			heard, last := script(t, tc.results, opts...)
			if !slices.Equal(heard, tc.heard) {
				t.Errorf("listeners heard %q\nwant %q", heard, tc.heard)
			}
			if last.State != tc.last || last.Hidden != tc.hidden {
				t.Errorf("at the end %s, hidden %v; want %s, %v", last.State, last.Hidden, tc.last, tc.hidden)
			}
		})
	}
}

// The time to visible delays events, but not readiness.
func TestHiddenFailureFailsReadinessAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := NewRegistry(), new(fake)
		must(t, r.RegisterReadiness("db", f, WithTimeToVisible(time.Minute)))
		expect(t, r, "/readyz", 200, "")
		time.Sleep(time.Second)
		f.set(errDown)
		expect(t, r, "/readyz", 503, `{"status":"fail","checks":{"db":"connection refused"}}`)
		expect(t, r, "/readyz/db", 503, "")
		if r.Ready(t.Context()) {
			t.Error("Ready is true while a check is down")
		}
		if st := r.Snapshot()[0]; st.State != Down || !st.Hidden || !st.Since.Equal(time.Now()) {
			t.Errorf("the snapshot says %+v", st)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if st := r.Snapshot()[0]; st.State != Down || st.Hidden || time.Since(st.Since) != time.Minute {
			t.Errorf("after a minute the snapshot says %+v", st)
		}
		f.set(nil)
		expect(t, r, "/readyz", 200, "")
		must(t, r.Close(t.Context()))
	})
}

// A failure that begins after Close starts no timer: goleak and the bubble would
// find it.
func TestCloseEndsTheWaitOfHiddenFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, f := NewRegistry(), new(fake)
		must(t, r.RegisterReadiness("db", f, WithCache(time.Second), WithTimeToVisible(time.Hour)))
		sub := r.Events().Subscribe(8)
		expect(t, r, "/readyz", 200, "")
		must(t, r.Close(t.Context()))
		time.Sleep(time.Minute)
		expect(t, r, "/readyz", 503, "") // the result is too old
		if st := r.Snapshot()[0]; st.Hidden {
			t.Errorf("the snapshot says %+v", st)
		}
		time.Sleep(2 * time.Hour)
		sub.Close()
		var heard []string
		for e := range sub.All(t.Context()) {
			heard = append(heard, e.To)
		}
		if !slices.Equal(heard, []string{"up"}) {
			t.Errorf("listeners heard %q, want up alone", heard)
		}
	})
}

func TestTimeToVisibleIsPositive(t *testing.T) {
	err := NewRegistry().RegisterReadiness("db", ProbeFunc(passing), WithTimeToVisible(0))
	if !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}
