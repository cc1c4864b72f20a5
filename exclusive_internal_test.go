package lifecycle

import (
	"context"
	"errors"
	"sync/atomic"
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

// What was given for an upgrade that failed is taken back until the window's end, and not longer: the
// process stops as it always does.
func TestTakeBackEndsWithTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testApp(t, Config{DrainWait: WaitNever, ShutdownGrace: 20 * time.Second, UpgradeTimeout: time.Hour}, nil)
		var takes atomic.Int32
		hooks := 0
		a.Exclusive("lock", func(ctx context.Context) error {
			if takes.Add(1) > 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}, func(context.Context) error { return nil })
		a.OnShutdown("hook", func(context.Context) error { hooks++; return nil })
		errFailed := errors.New("the new process has died")
		back := make(chan error, 1)
		a.Go("upgrades", func(ctx context.Context) error {
			time.Sleep(time.Second)
			a.upgrade.turn <- struct{}{}
			e := a.upgrade.exclusives[0]
			e.held.Store(false)
			go func() {
				back <- a.takeBack([]*exclusive{e}, errFailed)
				<-a.upgrade.turn
			}()
			time.Sleep(time.Second)
			a.Stop(nil)
			<-ctx.Done()
			return nil
		})
		began := time.Now()
		if err := a.Run(t.Context()); err != nil {
			t.Errorf("Run: %v", err)
		}
		if took := time.Since(began); took > 10*time.Second || hooks != 1 {
			t.Errorf("Run took %v, and %d hooks ran", took, hooks)
		}
		if err := <-back; !errors.Is(err, errFailed) || !errors.Is(err, context.Canceled) {
			t.Errorf("the upgrade's error: %v", err)
		}
	})
}

// A job that has not ended when another process takes over is done there: Run returns nil.
func TestUpgradeWithAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testApp(t, Config{}, nil)
		a.Job("import", func(ctx context.Context) error { <-ctx.Done(); return nil })
		time.AfterFunc(time.Second, func() {
			a.requestStop(stopRequest{reason: "process 7 has taken over", cause: ErrUpgraded, successor: 7})
		})
		if err := a.Run(t.Context()); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// A give that was abandoned may still give what this process has. So the App does not serve on after the
// upgrade has failed: it stops.
func TestGiveThatIsAbandonedStopsTheApp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := testApp(t, Config{}, nil)
		release := make(chan struct{})
		a.Exclusive("lock", func(context.Context) error { return nil }, func(context.Context) error { <-release; return nil })
		a.Go("upgrade", func(ctx context.Context) error {
			<-a.Reached(PhaseRunning)
			soon, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			e := a.upgrade.exclusives[0]
			_ = a.takeBack(nil, e.call(soon, "give", e.give, false))
			<-ctx.Done()
			close(release)
			return nil
		})
		time.AfterFunc(time.Hour, func() { a.Stop(nil) })
		err := a.Run(t.Context())
		if abandoned := new(AbandonedError); !errors.As(err, &abandoned) || !errors.Is(err, errMayGive) {
			t.Errorf("Run: %v", err)
		}
	})
}

// A second signal ends the linger of the servers, too, when the App does not wait for the window and
// another process has replaced it.
func TestSecondSignalOfAReplacedProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, isSkipped := range []bool{false, true} {
			a := testApp(t, Config{DrainWait: WaitNever}, nil)
			a.OnDrain("slow", DrainFunc(func(ctx context.Context) error {
				select {
				case <-ctx.Done():
				case <-time.After(time.Second):
				}
				return nil
			}))
			a.stop.arm()
			a.parts.launched = 1
			a.requestStop(stopRequest{reason: "process 7 has taken over", cause: ErrUpgraded, successor: 7})
			if isSkipped {
				a.stop.skipWindow()
			}
			if skipLinger := a.drain(t.Context()); skipLinger != isSkipped {
				t.Errorf("skipped %v: the servers skip the linger: %v", isSkipped, skipLinger)
			}
			a.disarmWatchdog()
		}
	})
}
