package host

import (
	"testing"
	"time"
)

// The activity of a version is exact in its counts, within a fifth in its times, and
// forgets what is older than five minutes. A version that did nothing has nothing.
func TestActivityOfTheLastMinutes(t *testing.T) {
	var c Counts
	begin := time.Date(2026, 11, 23, 10, 0, 7, 0, time.UTC)
	look := func(at time.Duration) (a Activity, took [buckets]uint64) {
		if r := c.recent.Load(); r != nil {
			r.add(begin.Add(at), &a, &took)
		}
		return a, took
	}
	if a, _ := look(0); a.Window != 0 || c.recent.Load() != nil {
		t.Errorf("a version that did nothing: %+v", a)
	}
	for i := range 1000 { // a second apart, 1 to 1000 ms long, every tenth failed
		c.ran(begin.Add(time.Duration(i)*time.Second), time.Duration(i+1)*time.Millisecond, i%10 == 0)
		if i == 99 {
			a, took := look(99 * time.Second)
			if a.Succeeded != 90 || a.Failed != 10 || a.Longest != 100*time.Millisecond || a.Window < 99*time.Second || a.Window > 100*time.Second {
				t.Errorf("after 100: %+v", a)
			}
			for _, q := range []struct {
				share float64
				want  time.Duration
			}{{0.5, 50 * time.Millisecond}, {0.95, 95 * time.Millisecond}, {1, 100 * time.Millisecond}} {
				if got := quantile(&took, q.share, a.Longest); got < q.want || float64(got) > 1.2*float64(q.want) {
					t.Errorf("%v of the runs took %v, want %v", q.share, got, q.want)
				}
			}
		}
	}
	a, _ := look(999 * time.Second)
	if all := a.Succeeded + a.Failed; all < 270 || all > 300 || a.Window > 5*time.Minute || a.Window < 270*time.Second || all != uint64(a.Window/time.Second)+1 {
		t.Errorf("of the last minutes: %d in %v", all, a.Window)
	}
	if a, _ := look(1000*time.Second + 5*time.Minute); a.Succeeded+a.Failed != 0 || a.Longest != 0 {
		t.Errorf("after five idle minutes: %+v", a)
	}
}

func TestBucketsOfTimes(t *testing.T) {
	for _, took := range []time.Duration{0, 1, finest, finest + 1, time.Millisecond, 17 * time.Millisecond, time.Second, 3 * time.Minute} {
		b := bucketOf(took)
		if end := endOf(b); end < took || b > 0 && endOf(b-1) >= took && endOf(b-1) > finest {
			t.Errorf("%v is in bucket %d, from %v to %v", took, b, endOf(b-1), end)
		}
	}
	if b := bucketOf(1000 * time.Hour); b != buckets-1 {
		t.Errorf("a long time is in bucket %d of %d", b, buckets)
	}
}
