//go:build unix

package lifecycle

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"

	"testing"
)

func init() { scenarios["main"] = mainProgram }

// mainProgram is a program whose main is [Main]. Its mode says how run ends.
func mainProgram() int {
	Main(func() error {
		defer say("deferred")
		switch mode() {
		case "before Run":
			return fmt.Errorf("open the store: %w", errors.New("unable to open database file"))
		case "a bad config":
			_, err := New(Config{DrainWait: "perhaps"})
			return err
		case "two bad keys":
			return errors.Join(errors.New("config: a is wrong"), errors.New("config: b is wrong"))
		case "its own status":
			return coded(7)
		case "in Run":
			a := scenarioApp()
			a.Go("work", func(context.Context) error { return errors.New("boom") })
			return a.Run(context.Background())
		case "a clean stop":
			a := scenarioApp()
			a.Stop(nil)
			return a.Run(context.Background())
		case "help":
			return fmt.Errorf("parse: %w", flag.ErrHelp)
		case "help beside a failure":
			return errors.Join(errors.New("disk full"), flag.ErrHelp)
		case "an error that blocks":
			return blockingCode{}
		case "panic":
			panic("ouch")
		case "a handler that panics":
			slog.SetDefault(slog.New(hostileHandler{func() { panic("in the handler") }}))
			return errors.New("boom")
		case "a handler that blocks":
			slog.SetDefault(slog.New(hostileHandler{func() { select {} }}))
			return errors.New("boom")
		}
		return nil
	})
	return 0
}

// blockingCode is an error whose ExitCode does not return.
type blockingCode struct{}

func (blockingCode) Error() string { return "it blocks" }
func (blockingCode) ExitCode() int { select {} }

// hostileHandler is a handler of slog that calls a function for each record.
type hostileHandler struct{ fn func() }

func (h hostileHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (h hostileHandler) Handle(context.Context, slog.Record) error { h.fn(); return nil }
func (h hostileHandler) WithAttrs([]slog.Attr) slog.Handler        { return h }
func (h hostileHandler) WithGroup(string) slog.Handler             { return h }

// The last line of a program that fails has the error and the exit status, also when the
// error came before Run.
func TestMainSaysWhyTheProgramFailed(t *testing.T) {
	for _, c := range []struct {
		mode   string
		status int
		last   []string // texts of the last line; nil when there is none
	}{
		{"before Run", 1, []string{"the program failed", "open the store: unable to open database file", "exit_status=1"}},
		{"a bad config", ExitConfig, []string{"the program failed", "DrainWait", "perhaps", "exit_status=78"}},
		{"two bad keys", 1, []string{`error="config: a is wrong; config: b is wrong"`, "exit_status=1"}},
		{"its own status", 7, []string{"the program failed", "asks for 7", "exit_status=7"}},
		{"in Run", 1, []string{"the program failed", "unit work: boom", "exit_status=1"}},
		{"a handler that panics", 1, nil},
		{"a handler that blocks", 1, nil},
		{"a clean stop", 0, nil},
		{"help", 0, nil},
		{"help beside a failure", 1, []string{"the program failed", "disk full", "exit_status=1"}},
		{"an error that blocks", 1, []string{"the program failed", "blocks", "exit_status=1"}},
		{"nothing", 0, nil},
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			p := launch(t, "main", Config{}, env(modeEnv, c.mode))
			p.wantExit(c.status)
			p.says("deferred")
			last := ""
			for line := range strings.Lines(p.out.String()) {
				last = line
			}
			for _, want := range c.last {
				if !strings.Contains(last, want) {
					t.Errorf("the last line is %q, want %q in it", last, want)
				}
			}
			if c.last == nil {
				p.saysNot("the program failed")
			}
		})
	}
}

func TestMainPassesPanics(t *testing.T) {
	p := launch(t, "main", Config{}, env(modeEnv, "panic"))
	p.wantExit(2)
	p.says("panic: ouch", "goroutine 1 ")
}

// The reader of stderr has ended: the exit status follows from the error nevertheless.
func TestMainSurvivesItsLog(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	p := launch(t, "main", Config{}, env(modeEnv, "before Run"), func(cmd *exec.Cmd) { cmd.Stderr = write })
	write.Close()
	p.wantExit(1)
}
