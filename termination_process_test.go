//go:build unix

package lifecycle

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Even SIGKILL leaves a cause, because the App writes the cause before the signal
// comes.
func TestKilledProcessLeavesPhaseAndCause(t *testing.T) {
	for _, c := range []struct{ scenario, mode, until, want string }{
		{"rollback", "start condition", "svc: starting; waiting for unit slow", "svc: starting; waiting for unit slow to start"},
		{"service", "", "svc: running", "svc: running"},
		{"service", "", "svc: draining: received signal: terminated; ", "svc: draining: received signal: terminated; waiting for the drain window"},
		{"stopped by", "fault", "svc: draining: unit work: broken; ", "svc: draining: unit work: broken; waiting for the drain window"},
		{"hanging hook", "", "svc: stopping: received signal: terminated; waiting for hook", "svc: stopping: received signal: terminated; waiting for hook stuck"},
	} {
		t.Run(c.want, func(t *testing.T) {
			cfg := window()
			cfg.TerminationLog = terminationFile(t)
			if strings.Contains(c.want, "stopping") {
				cfg.DrainInterval = Off
			}
			p := launch(t, c.scenario, cfg, env(modeEnv, c.mode))
			if strings.Contains(c.want, "signal") {
				// The App publishes the event a moment before it enters the
				// phase. A signal in that moment would count as one during the
				// start.
				eventually(t, "running", func() bool { return read(t, cfg.TerminationLog) == "svc: running" })
				p.signal(syscall.SIGTERM)
			}
			eventually(t, c.until, func() bool { return strings.HasPrefix(read(t, cfg.TerminationLog), c.until) })
			p.signal(syscall.SIGKILL)
			p.wantKilledBy(syscall.SIGKILL)
			if got := read(t, cfg.TerminationLog); got != c.want {
				t.Errorf("the termination log is %q, want %q", got, c.want)
			}
		})
	}
}

func TestTerminationLogThatCannotBeWrittenIsHarmless(t *testing.T) {
	dir := t.TempDir()
	readOnly := filepath.Join(dir, "read-only")
	if err := os.WriteFile(readOnly, nil, 0o400); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	loop := filepath.Join(dir, "loop")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{readOnly, fifo, loop, dir, "/dev/full", "/dev/null", "/proc/version"} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			p := launch(t, "service", Config{DrainInterval: Off, TerminationLog: path})
			p.await("phase running")
			p.signal(syscall.SIGTERM)
			p.wantExit(0)
			p.says(freshHook)
		})
	}
}

// This test uses a part that really blocks Run.
func TestWatchdogEndsAStopThatIsStuck(t *testing.T) {
	for _, c := range []struct{ mode, culprit string }{
		{"predicate", "the change of phase to draining"},
		{"predicate+log", "the change of phase to draining"},
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			cfg := Config{DrainInterval: Off, ShutdownGrace: 3 * time.Second, TerminationLog: terminationFile(t)}
			p := launch(t, "stuck", cfg, env(modeEnv, c.mode))
			p.await("ready to be stuck")
			p.signal(syscall.SIGTERM)
			began := time.Now()
			p.wantExit(ExitStuck)
			t.Logf("exit after %v, want at least the 5s of the watchdog", time.Since(began))
			why := "the stop took longer than 5s (DrainInterval + ShutdownGrace + Margin); giving up on " + c.culprit
			p.says("lifecycle: svc: "+why+"; exit status 70", "lifecycle-go.hangForEver")
			if got, want := read(t, cfg.TerminationLog), "svc: killed: "+why; got != want {
				t.Errorf("the termination log is %q, want %q", got, want)
			}
		})
	}
}
