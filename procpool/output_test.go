//go:build unix

package procpool_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
)

// journal is a log that a test can read while it is written.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(b)
}

// records returns what has been logged.
func (j *journal) records(t testing.TB) (all []map[string]any) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	for line := range strings.Lines(j.b.String()) {
		var r map[string]any
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// lines returns the worker's lines of one stream.
func (j *journal) lines(t testing.TB, stream string) (all []string) {
	for _, r := range j.records(t) {
		line, _ := r["msg"].(string)
		if r["stream"] == stream && r["worker"] == "p/1" && line != "lines were dropped" {
			all = append(all, line)
		}
	}
	return all
}

func TestOutputOfWorkersIsLoggedByLine(t *testing.T) {
	var log journal
	p := start(t, "serve", func(c *procpool.Config) { c.Logger = slog.New(slog.NewJSONHandler(&log, nil)) })
	do(t, p, ask{Op: "print", Text: "one\r\ntwo \"quoted\"\n\nno newline"}.raw())
	eventually(t, "both streams are in the log", func() bool {
		return len(log.lines(t, "stdout")) == 2 && len(log.lines(t, "stderr")) == 2
	})
	if err := p.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	for _, stream := range []string{"stdout", "stderr"} {
		if got := log.lines(t, stream); fmt.Sprintf("%q", got) != `["one" "two \"quoted\"" "no newline"]` {
			t.Errorf("%s is %q", stream, got)
		}
	}
}

func TestLoggedOutputIsBounded(t *testing.T) {
	var log journal
	p := start(t, "serve", func(c *procpool.Config) {
		c.Logger, c.OutputLines = slog.New(slog.NewJSONHandler(&log, nil)), 10
	})
	const lines = 50_000
	do(t, p, ask{Op: "print", Text: strings.Repeat("x", 1<<20) + "\n" + strings.Repeat("y\n", lines)}.raw())
	if err := p.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	got := log.lines(t, "stdout")
	if len(got) < 10 || len(got) > 10*60 || len(got[0]) != 8<<10 {
		t.Errorf("%d lines of %d were logged, the first is %.9000q", len(got), lines, got[0])
	}
	missed := 0
	for _, r := range log.records(t) {
		if n, ok := r["dropped"].(float64); ok && r["stream"] == "stdout" {
			missed += int(n)
		}
	}
	if len(got)+missed != lines+1 {
		t.Errorf("%d lines were logged and %d counted as left out, want %d together", len(got), missed, lines+1)
	}
}

func TestOutputIsNotLoggedTwice(t *testing.T) {
	var log journal
	var mine journal
	p := startPool(t, func() *exec.Cmd {
		cmd := self("serve")
		cmd.Stdout, cmd.Stderr = &mine, &mine
		return cmd
	}, func(c *procpool.Config) { c.Logger = slog.New(slog.NewJSONHandler(&log, nil)) })
	do(t, p, ask{Op: "print", Text: "one\n"}.raw())
	if err := p.Stop(within(t)); err != nil {
		t.Fatal(err)
	}
	if got := mine.b.String(); got != "one\none\n" || len(log.records(t)) != 0 {
		t.Errorf("the writer has %q, the log %v", got, log.records(t))
	}
}

// panics is a log handler that panics at every record.
type panics struct{ slog.Handler }

func (p panics) Handle(context.Context, slog.Record) error { panic("the log is broken") }
func (p panics) WithAttrs([]slog.Attr) slog.Handler        { return p }
func (p panics) Enabled(context.Context, slog.Level) bool  { return true }

// TestLogThatPanicsEndsNothing has workers die, be slow and write lines.
func TestLogThatPanicsEndsNothing(t *testing.T) {
	p := start(t, "serve", func(c *procpool.Config) {
		c.Logger = slog.New(panics{})
		c.SlowAfter, c.MaxQueue = time.Millisecond, 1
	})
	for n := range 3 {
		do(t, p, ask{Op: "print", Text: "a line\n"}.raw())
		do(t, p, ask{Op: "sleep", Seconds: 0.01}.raw())
		if _, err := p.Do(within(t), poison(n).raw()); !errors.As(err, new(*procpool.CrashError)) {
			t.Error(err)
		}
	}
}
