package worker

import (
	"context"
	"testing"
	"testing/synctest"
)

// A child with BrutalKill is stopped with a context that has ended, also while its Start begins.
func TestRestarterIsStoppedWithoutTimeWhileItStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRestarter("r", func(context.Context) error { return nil }, Backoff{})
		if _, err := r.beginWork(t.Context()); err != nil {
			t.Fatal(err)
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Stop(over); err == nil || r.Status() != StatusKilled {
			t.Errorf("Stop returned %v, it is %s", err, r.Status())
		}
		r.Finish(nil)
	})
}
