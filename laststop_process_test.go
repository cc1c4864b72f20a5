//go:build unix

package lifecycle

import (
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/laststop"
)

// A process that is killed has written what the next start reads: that it ran, that it
// stopped, or that it ended itself by force.
func TestKilledProcessLeavesItsRecord(t *testing.T) {
	for name, c := range map[string]struct {
		scenario, mode, await string
		signals               []syscall.Signal
		status                int // 0 when a signal ends the process
		phase                 Phase
		requested, done       bool
	}{
		"SIGKILL while it runs":   {"service", "", "unit begins", []syscall.Signal{syscall.SIGKILL}, 0, PhaseRunning, false, false},
		"SIGKILL while it drains": {"service", "", "unit begins", []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}, 0, PhaseDraining, true, false},
		"the watchdog":            {"stuck", "predicate", "ready to be stuck", []syscall.Signal{syscall.SIGTERM}, ExitStuck, PhaseKilled, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{DrainInterval: time.Hour, DrainWait: WaitAlways, ShutdownGrace: 300 * time.Millisecond, LastStopFile: filepath.Join(t.TempDir(), "stop.json")}
			if c.mode != "" {
				cfg.DrainInterval = Off
			}
			p := launch(t, c.scenario, cfg, env(modeEnv, c.mode))
			p.await(c.await)
			read := func() *Report {
				return laststop.Open[Report](new(laststop.File), cfg.LastStopFile, slog.New(slog.NewTextHandler(os.Stderr, nil)))
			}
			for i, sig := range c.signals {
				want := PhaseRunning // the record to wait for
				if i > 0 {
					want = PhaseDraining
				}
				for end := time.Now().Add(patience); c.mode == ""; time.Sleep(5 * time.Millisecond) {
					if r := read(); r != nil && r.Phase == want {
						break
					} else if time.Now().After(end) {
						t.Fatalf("the record is %+v, want phase %s", r, want)
					}
				}
				p.signal(sig)
			}
			if c.status != 0 {
				p.wantExit(c.status)
			} else {
				p.wantKilledBy(syscall.SIGKILL)
			}
			r := read()
			if r.Phase != c.phase || r.ExitStatus != c.status || r.Requested.IsZero() == c.requested || r.Done.IsZero() == c.done {
				t.Errorf("the record is %+v", r)
			}
		})
	}
}
