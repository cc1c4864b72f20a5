package procpool

import (
	"testing"
	"time"
)

// TestLimitsHaveJitter draws the limits of many workers: each is lower than the
// configured one by a random part, at most by Jitter.
func TestLimitsHaveJitter(t *testing.T) {
	r := Recycle{MaxQueries: 1000, MaxAge: time.Hour, MaxIdle: time.Minute, MaxRSS: 1 << 30, Jitter: 0.2}
	seen := map[limits]bool{}
	for range 100 {
		l := r.draw()
		seen[l] = true
		for what, part := range map[string]float64{
			"queries": float64(l.queries) / 1000,
			"age":     float64(l.age) / float64(time.Hour),
			"idle":    float64(l.idle) / float64(time.Minute),
			"rss":     float64(l.rss) / (1 << 30),
		} {
			if part < 0.799 || part > 1 {
				t.Errorf("%s is %v of what is configured, want 0.8 to 1", what, part)
			}
		}
	}
	if len(seen) < 90 {
		t.Errorf("100 workers have %d different limits", len(seen))
	}
	r.Jitter = Off
	if l := r.draw(); l != (limits{queries: 1000, age: time.Hour, idle: time.Minute, rss: 1 << 30}) {
		t.Errorf("without jitter: %+v", l)
	}
	if l := (Recycle{MaxQueries: 1, Jitter: 0.9}).draw(); l != (limits{queries: 1}) {
		t.Errorf("one query and no other limit: %+v", l)
	}
}
