//go:build unix

package procpool_test

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
)

// ending returns the workers that say what happens to them, in the files of a folder.
func ending(t *testing.T, env ...string) (dir string, commands map[string]func() *exec.Cmd) {
	t.Helper()
	dir = t.TempDir()
	commands = map[string]func() *exec.Cmd{"go": func() *exec.Cmd {
		cmd := self("ends")
		cmd.Env = append(append(cmd.Env, "ENDS="+dir), env...)
		return cmd
	}}
	for name, args := range map[string][]string{
		"python": {"python3", "testdata/ends.py"},
		"node":   {"node", "testdata/ends.mjs"},
		"ruby":   {"ruby", "testdata/ends.rb"},
	} {
		if _, err := exec.LookPath(args[0]); err != nil {
			t.Logf("%s is not on this machine, and its worker is not tested: %v", name, err)
			continue
		}
		commands[name] = func() *exec.Cmd {
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Env = append(append(os.Environ(), "PYTHONPATH=sdk/python", "ENDS="+dir), env...)
			return cmd
		}
	}
	return dir, commands
}

// TestWorkersEndAsProgramsDo stops, recycles and reloads workers of each language: what they
// have written to files is there, and what they do at their exit.
func TestWorkersEndAsProgramsDo(t *testing.T) {
	dir, commands := ending(t)
	for name, command := range commands {
		t.Run(name, func(t *testing.T) {
			p := startPool(t, command, func(c *procpool.Config) { c.MaxQueue, c.ShutdownGrace = 1, patience })
			pids := map[string]bool{}
			for _, end := range []string{"reload", "recycle", "stop"} {
				for range 3 {
					pids[do(t, p, []byte(`1`))] = true
				}
				switch end {
				case "reload":
					if _, err := p.Reload(within(t), nil); err != nil {
						t.Fatal(err)
					}
				case "recycle":
					if _, err := p.Evict("", false); err != nil {
						t.Fatal(err)
					}
				case "stop":
					if err := p.Stop(within(t)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if len(pids) != 3 {
				t.Errorf("the workers were %v", pids)
			}
			for pid := range pids {
				text, err := os.ReadFile(filepath.Join(dir, pid))
				if got := strings.Fields(string(text)); err != nil || strings.Join(got, " ") != "startup query query query shutdown exit" {
					t.Errorf("%s did %q, %v", pid, got, err)
				}
			}
		})
	}
}

// TestEndOfAWorkerIsBounded has workers that hang at their exit.
func TestEndOfAWorkerIsBounded(t *testing.T) {
	_, commands := ending(t, "HANG=1")
	for name, command := range commands {
		t.Run(name, func(t *testing.T) {
			p := startPool(t, command, func(c *procpool.Config) { c.ShutdownGrace, c.KillGrace = 50*time.Millisecond, 50*time.Millisecond })
			do(t, p, []byte(`1`))
			if err := p.Stop(within(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPrintedLinesSurviveACrash has workers print a line and end without any cleaning up.
func TestPrintedLinesSurviveACrash(t *testing.T) {
	_, commands := ending(t)
	for name, command := range commands {
		t.Run(name, func(t *testing.T) {
			var log lockedBuffer
			p := startPool(t, command, func(c *procpool.Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
			if got, err := p.Do(within(t), []byte(`"die"`)); err == nil {
				t.Fatalf("it was answered: %s", got)
			}
			eventually(t, "the line is logged", func() bool { return strings.Contains(log.String(), "line") && strings.Contains(log.String(), "die") })
		})
	}
}

// TestCrashNamesWhatWasThrown has interpreters end by an uncaught exception.
func TestCrashNamesWhatWasThrown(t *testing.T) {
	for program, want := range map[string]string{
		"python3 -c raise~ValueError('out~of~cheese')":                        "ValueError: out of cheese",
		"python3 -c raise~ValueError('two\\nlines')":                          "ValueError: two",
		"node -e throw~new~Error('out~of~cheese')":                            "Error: out of cheese",
		"node -e throw~'out~of~cheese'":                                       "out of cheese",
		"node -e Promise.reject(Object.assign(new~Error('no~cheese'),{a:1}))": "Error: no cheese",
		"ruby -e raise~'out~of~cheese'":                                       "out of cheese (RuntimeError)",
	} {
		args := strings.Fields(program)
		args[2] = strings.ReplaceAll(args[2], "~", " ")
		t.Run(program, func(t *testing.T) {
			if _, err := exec.LookPath(args[0]); err != nil {
				t.Skip(err)
			}
			p := startPool(t, func() *exec.Cmd { return exec.Command(args[0], args[1:]...) }, func(c *procpool.Config) { c.BreakAfter = 1 })
			_, err := p.Do(within(t), []byte(`1`))
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "stderr: ") {
				t.Errorf("got %v, want %q in it", err, want)
			}
		})
	}
}
