package watch

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLong(t *testing.T) {
	for _, test := range []struct {
		name      string
		ends      time.Duration // when the caller calls end
		ctxEnds   time.Duration
		slow      []time.Duration
		late      bool
		lateAfter time.Duration
	}{
		{"too long", time.Hour, time.Hour, []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second}, true, time.Minute},
		{"ended in time", 30 * time.Second, time.Hour, []time.Duration{10 * time.Second, 20 * time.Second}, false, 0},
		{"quick", time.Second, time.Hour, nil, false, 0},
		{"its context ended", time.Hour, 15 * time.Second, []time.Duration{10 * time.Second}, false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), test.ctxEnds)
				defer cancel()
				began := time.Now()
				var slow []time.Duration
				var late time.Duration
				end := Long(ctx, 10*time.Second, time.Minute, func(took time.Duration) { slow = append(slow, took) },
					func() { late = time.Since(began) })
				time.Sleep(test.ends)
				end()
				synctest.Wait()
				if !slices.Equal(slow, test.slow) || (late != 0) != test.late || late != test.lateAfter {
					t.Errorf("slow after %v, late after %v", slow, late)
				}
			})
		})
	}
}
