package host

import (
	"context"
	"testing"
	"testing/synctest"
)

// Workers whose messages take long have at most half of the places, so that the others
// find one.
func TestGateKeepsPlacesForQuickWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(4)
		ctx, cancel := context.WithCancel(t.Context())
		slow := 0
		leaves := make(chan func(), 10)
		for range 10 {
			go func() {
				if leave, err := g.enter(ctx, true); err == nil {
					slow++
					leaves <- leave
				}
			}()
			synctest.Wait()
		}
		if slow != 2 {
			t.Errorf("%d slow workers are in, want 2 of 4", slow)
		}
		for range 2 {
			if _, err := g.enter(ctx, false); err != nil {
				t.Error(err)
			}
		}
		entered := false
		go func() {
			if _, err := g.enter(ctx, false); err == nil {
				entered = true
			}
		}()
		synctest.Wait()
		if entered {
			t.Error("a fifth handler runs")
		}
		(<-leaves)()
		synctest.Wait()
		if !entered && slow != 3 {
			t.Error("the place that was given back is not taken")
		}
		cancel()
	})
}
