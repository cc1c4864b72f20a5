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

// signalAfter is a signal that the test sends when the record has reached a phase, or at
// once without one.
type signalAfter struct {
	phase  Phase
	signal syscall.Signal
}

// A process that is killed has written what the next start reads: that it ran, that it
// stopped, or that it ended itself by force.
func TestKilledProcessLeavesItsRecord(t *testing.T) {
	for name, c := range map[string]struct {
		scenario, mode, await string
		signals               []signalAfter
		status                int // 0 when a signal ends the process
		phase                 Phase
		requested, done       bool
	}{
		"SIGKILL while it runs": {
			scenario: "service", await: "unit begins",
			signals: []signalAfter{{PhaseRunning, syscall.SIGKILL}},
			phase:   PhaseRunning,
		},
		"SIGKILL while it drains": {
			scenario: "service", await: "unit begins",
			signals: []signalAfter{{PhaseRunning, syscall.SIGTERM}, {PhaseDraining, syscall.SIGKILL}},
			phase:   PhaseDraining, requested: true,
		},
		"the watchdog": {
			scenario: "stuck", mode: "predicate", await: "ready to be stuck",
			signals: []signalAfter{{"", syscall.SIGTERM}},
			status:  ExitStuck, phase: PhaseKilled, done: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{DrainInterval: time.Hour, DrainWait: WaitAlways, ShutdownGrace: 300 * time.Millisecond, LastStopFile: filepath.Join(t.TempDir(), "stop.json"), BlackBoxDir: t.TempDir()}
			if c.mode != "" {
				cfg.DrainInterval = Off
			}
			p := launch(t, c.scenario, cfg, env(modeEnv, c.mode))
			p.await(c.await)
			read := func() *Report {
				return laststop.Open[Report](new(laststop.File), cfg.LastStopFile, slog.New(slog.NewTextHandler(os.Stderr, nil)))
			}
			for _, s := range c.signals {
				end := time.Now().Add(patience)
				for r := read(); s.phase != "" && (r == nil || r.Phase != s.phase); r = read() {
					if time.Now().After(end) {
						t.Fatalf("the record is %+v, want phase %s", r, s.phase)
					}
					time.Sleep(5 * time.Millisecond)
				}
				p.signal(s.signal)
			}
			if c.status != 0 {
				p.wantExit(c.status)
			} else {
				p.wantKilledBy(syscall.SIGKILL)
			}
			r := read()
			if r == nil {
				t.Fatal("there is no record")
			}
			if r.Phase != c.phase || r.ExitStatus != c.status || r.Done.IsZero() == c.done {
				t.Errorf("the record is %+v", r)
			}
			// The App that is stuck records its request only when that came before the record of the phase running.
			if c.phase != PhaseKilled && r.Requested.IsZero() == c.requested {
				t.Errorf("the record is %+v, want one that says whether a stop was requested", r)
			}
			// R60. The process ends after a second: on a busy machine the box is not complete then.
			boxes, err := filepath.Glob(filepath.Join(cfg.BlackBoxDir, "*"))
			if wantsBox := c.phase == PhaseKilled; err != nil || len(boxes) > 0 != wantsBox {
				t.Errorf("the black boxes are %q, %v", boxes, err)
			}
		})
	}
}
