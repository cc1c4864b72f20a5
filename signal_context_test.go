//go:build unix

package lifecycle

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

func TestSignalContextIsCancelledWithTheSignal(t *testing.T) {
	ctx, stop := SignalContext(context.WithValue(t.Context(), envKey{}, "kept"), syscall.SIGUSR1, syscall.SIGUSR2)
	defer stop()
	_ = syscall.Kill(os.Getpid(), syscall.SIGUSR2)
	<-ctx.Done()
	var sig *SignalError
	if !errors.As(context.Cause(ctx), &sig) || sig.Signal != syscall.SIGUSR2 || !errors.Is(ctx.Err(), context.Canceled) {
		t.Errorf("cause %v, err %v", context.Cause(ctx), ctx.Err())
	}
	if ctx.Value(envKey{}) != "kept" {
		t.Error("the context lacks the parent's values")
	}
	stop()
	stop()
	if !errors.As(context.Cause(ctx), &sig) {
		t.Errorf("after stop the cause is %v", context.Cause(ctx))
	}
}

type envKey struct{}

func TestSignalContextTakesTheNamedSignalsOnly(t *testing.T) {
	others := make(chan os.Signal, 1) // keeps the signal from ending the test
	signal.Notify(others, syscall.SIGUSR1)
	defer signal.Stop(others)
	ctx, stop := SignalContext(t.Context(), syscall.SIGUSR2)
	defer stop()
	_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	<-others
	if ctx.Err() != nil {
		t.Errorf("cancelled by a signal that was not named: %v", context.Cause(ctx))
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGUSR2)
	<-ctx.Done()
}

func TestSignalContextLeavesWhatTheProgramIgnores(t *testing.T) {
	t.Run("one", func(t *testing.T) {
		p := launch(t, "signal context", Config{}, env(modeEnv, "ignores one"))
		p.await("ready")
		p.signal(syscall.SIGTERM)
		p.await("cause: received signal: terminated")
		p.signal(syscall.SIGKILL)
		p.wantKilledBy(syscall.SIGKILL)
	})
	t.Run("all", func(t *testing.T) {
		p := launch(t, "signal context", Config{}, env(modeEnv, "ignores all"))
		p.wantExit(0)
		p.says("left alone: <nil>")
	})
	t.Run("but for one that it names", func(t *testing.T) {
		p := launch(t, "signal context", Config{}, env(modeEnv, "names what it ignores"))
		p.wantExit(0)
		p.says("cause: received signal: interrupt")
	})
	t.Run("but for one that only its parent ignored", func(t *testing.T) { // as a shell does
		p := launch(t, "signal context", Config{}, env(modeEnv, "its parent ignores one"))
		p.await("ready")
		p.signal(syscall.SIGINT)
		p.await("cause: received signal: interrupt")
		p.signal(syscall.SIGKILL)
		p.wantKilledBy(syscall.SIGKILL)
	})
}

func TestSignalContextEndsWithItsParentAndByStop(t *testing.T) {
	boom := errors.New("boom")
	parent, cancel := context.WithCancelCause(t.Context())
	ctx, stop := SignalContext(parent, syscall.SIGUSR1)
	cancel(boom)
	<-ctx.Done()
	if context.Cause(ctx) != boom { //nolint:errorlint // the same value, not wrapped
		t.Errorf("the cause is %v", context.Cause(ctx))
	}
	stop()
	ctx, stop = SignalContext(parent, syscall.SIGUSR1) // the parent has ended already
	if ctx.Err() == nil {
		t.Error("not cancelled")
	}
	stop()
	ctx, stop = SignalContext(t.Context(), syscall.SIGUSR1)
	if ctx.Err() != nil {
		t.Error("cancelled from the beginning")
	}
	stop()
	stop()
	if !errors.Is(context.Cause(ctx), context.Canceled) {
		t.Errorf("after stop the cause is %v", context.Cause(ctx))
	}
}

func TestSignalContextGivesSignalsBack(t *testing.T) {
	t.Run("by stop", func(t *testing.T) {
		p := launch(t, "signal context", Config{}, env(modeEnv, "stop"))
		p.await("stopped: context canceled")
		p.signal(syscall.SIGTERM)
		p.wantKilledBy(syscall.SIGTERM)
	})
	t.Run("after the first", func(t *testing.T) {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
			p := launch(t, "signal context", Config{})
			p.await("ready")
			p.signal(sig)
			p.await("cause: received signal: " + sig.String())
			ended := make(chan struct{})
			go func() { // nothing tells the test when the signals have their default effect again
				defer close(ended)
				for p.cmd.Process.Signal(sig) == nil {
					time.Sleep(20 * time.Millisecond)
				}
			}()
			p.wantKilledBy(sig)
			<-ended
		}
	})
}

// A repeat within 250 ms does not end the process. On a busy machine the process may stand
// still for longer than that between its two signals, so a process that dies gets another try.
func TestSignalContextTakesRepeatsAsOne(t *testing.T) {
	for range 10 {
		p := launch(t, "signal context", Config{}, env(modeEnv, "twice"))
		if p.wait(); p.status.Exited() && p.status.ExitStatus() == 0 {
			p.says("survived")
			return
		}
	}
	t.Error("a repeat ended each of ten processes")
}

func TestSignalContextAsParentOfAnApp(t *testing.T) {
	for range 5 { // either may see the signal first
		p := launch(t, "signal context", Config{DrainInterval: Off, ExitOnSignal: true}, env(modeEnv, "app"))
		p.await("phase running")
		p.signal(syscall.SIGTERM)
		p.wantExit(143)
		p.says(freshHook, "unit ends: received signal: terminated")
	}
}

func TestExitCodeOfARealChildIsKept(t *testing.T) {
	p := launch(t, "child fails", Config{DrainInterval: Off})
	p.wantExit(42)
	p.says("exit status 42", freshHook)
}
