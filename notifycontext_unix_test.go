//go:build unix

package lifecycle

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
)

// A parent from signal.NotifyContext ends with the signal that this process got, too:
// whether the App or the context sees it first makes no difference.
func TestParentOfNotifyContextIsThatSignal(t *testing.T) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGUSR1)
	defer stop()
	var log strings.Builder
	a, err := New(Config{DrainInterval: Off, HealthAddr: HealthOff, TerminationLog: "off"},
		WithSignals(nil), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	if err != nil {
		t.Fatal(err)
	}
	a.Job("work", func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) })
	go func() {
		<-a.Reached(PhaseRunning)
		if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
			t.Error(err)
		}
	}()
	result := a.Run(ctx)
	if code := ExitCode(result); code != 128+int(syscall.SIGUSR1) {
		t.Errorf("exit status %d for %v", code, result)
	}
	if reason := a.Report().Reason; reason != "received signal: user defined signal 1" {
		t.Errorf("the reason is %q", reason)
	}
	if !strings.Contains(log.String(), "signal.NotifyContext is not needed") {
		t.Errorf("the log does not say that it is not needed:\n%s", log.String())
	}
}
