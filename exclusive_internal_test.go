package lifecycle

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A take that returns when the App no longer waits for it has got what it asked for, so the shutdown
// hook gives it. A give that failed has given nothing.
func TestExclusiveOfALateTakeIsGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testApp(t, Config{}, nil)
		release := make(chan struct{})
		given := 0
		a.Exclusive("lock", func(context.Context) error { <-release; return nil }, func(context.Context) error {
			given++
			return errors.New("the disk is full")
		})
		a.OnShutdown("later", func(context.Context) error {
			close(release)
			time.Sleep(time.Second) // take returns
			return nil
		})
		time.AfterFunc(time.Second, func() { a.Stop(nil) })
		if err := a.Run(t.Context()); err == nil {
			t.Error("the error of give is not in Run's")
		}
		e := a.upgrade.exclusives[0]
		if given != 1 || !e.held.Load() {
			t.Errorf("give was called %d times, and what it could not give is held: %v", given, e.held.Load())
		}
	})
}
