package presence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// An operator reads the last lines of a process's log, and then only the new ones. The
// journal has that it was read, once.
func TestOperatorReadsTheLog(t *testing.T) {
	js := nats(t)
	lines := new(presence.Lines)
	_, id, _ := start(t, js, presence.Config{Lines: lines}, nil)
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	read := func(q presence.LogQuery, missed uint64, want ...string) (last uint64) {
		t.Helper()
		got, err := f.Logs(t.Context(), id, "ada", q)
		if err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, l := range got.Lines {
			texts, last = append(texts, l.Text), l.Seq
			if time.Since(l.At).Abs() > time.Minute {
				t.Errorf("line %d is of %v", l.Seq, l.At)
			}
		}
		if strings.Join(texts, "|") != strings.Join(want, "|") || got.Missed != missed {
			t.Errorf("%+v: %q, %d missed; want %q, %d", q, texts, got.Missed, want, missed)
		}
		return last
	}
	read(presence.LogQuery{Limit: 10}, 0)
	fmt.Fprintf(lines, "one\r\ntwo\nthr")
	fmt.Fprint(lines, "ee\n\nfo")
	last := read(presence.LogQuery{Limit: 10}, 0, "one", "two", "three", "")
	read(presence.LogQuery{Limit: 2}, 0, "three", "")
	fmt.Fprint(lines, "ur \xff\n")
	last = read(presence.LogQuery{After: last, Limit: 10}, 0, "four \uFFFD")
	read(presence.LogQuery{After: last, Limit: 10}, 0)
	for i := range 3000 {
		fmt.Fprintln(lines, i)
	}
	read(presence.LogQuery{After: last, Limit: 2}, 2998, "2998", "2999")
	fmt.Fprint(lines, strings.Repeat(strings.Repeat("x", 5000)+"\n", 1000))
	got, err := f.Logs(t.Context(), id, "ada", presence.LogQuery{Limit: 1000})
	if n := len(got.Lines); err != nil || n != 64 || len(got.Lines[0].Text) != 4096 {
		t.Errorf("of long lines it keeps %d, %v", n, err)
	}
	// A number from an earlier life of the process.
	if got, err := f.Logs(t.Context(), id, "ada", presence.LogQuery{After: 1 << 60, Limit: 3}); err != nil || len(got.Lines) != 3 || got.Missed != 0 {
		t.Errorf("after a number of an earlier life: %+v, %v", got, err)
	}
	for _, limit := range []int{0, -1, 1001} {
		if _, err := f.Logs(t.Context(), id, "ada", presence.LogQuery{Limit: limit}); err == nil {
			t.Errorf("a limit of %d is accepted", limit)
		}
	}
	noted := commands(t, f, id, 4)
	for _, c := range noted {
		if c.Name != "logs" || c.Who != "ada" {
			t.Errorf("a command is %+v", c)
		}
	}
	if n := len(noted); n != 4 {
		t.Errorf("%d reads are noted, want those that do not read on: 4", n)
	}
}

// A process without Lines refuses, and says what is missing.
func TestLogOfAProcessThatKeepsNone(t *testing.T) {
	js := nats(t)
	_, id, _ := start(t, js, presence.Config{}, nil)
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	if _, err := f.Logs(t.Context(), id, "ada", presence.LogQuery{Limit: 1}); !errors.Is(err, presence.ErrRefused) || !strings.Contains(err.Error(), "Config.Lines") {
		t.Errorf("got %v", err)
	}
}

// hangsHere waits in a hook.
func hangsHere(until <-chan struct{}) { <-until }

// The stacks show where a hook hangs: the process answers until its last hook.
func TestStacksWhileAHookHangs(t *testing.T) {
	js := nats(t)
	release := make(chan struct{})
	app, id, stop := start(t, js, presence.Config{}, func(app *lifecycle.App) {
		app.OnShutdown("stuck", func(context.Context) error { hangsHere(release); return nil })
	})
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	text, err := f.Stacks(t.Context(), id, "ada")
	if err != nil || !strings.Contains(text, "goroutine ") || strings.Contains(text, "hangsHere") {
		t.Errorf("while it runs: %v\n%.2000s", err, text)
	}
	app.Stop(nil)
	await(t, f, id, "the hook", func(p presence.Process) bool { return strings.Contains(p.Status.Waiting, "stuck") })
	text, err = f.Stacks(t.Context(), id, "ada")
	if err != nil || !strings.Contains(text, "hangsHere") {
		t.Errorf("while a hook hangs: %v\n%.2000s", err, text)
	}
	if _, err := f.Drain(t.Context(), id, "", "ada"); !errors.Is(err, presence.ErrRefused) {
		t.Errorf("while it stops, a drain: %v", err)
	}
	close(release)
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := f.Stacks(t.Context(), id, "ada"); !errors.Is(err, presence.ErrNotFound) {
		t.Errorf("after its end: %v", err)
	}
}

// With very many goroutines the stacks are grouped, and stay small.
func TestStacksOfManyGoroutines(t *testing.T) {
	js := nats(t)
	_, id, _ := start(t, js, presence.Config{}, nil)
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	release, ended := make(chan struct{}), make(chan struct{})
	for range 2000 {
		go func() { hangsHere(release); ended <- struct{}{} }()
	}
	defer func() {
		close(release)
		for range 2000 {
			<-ended
		}
	}()
	text, err := f.Stacks(t.Context(), id, "ada")
	if err != nil || strings.Count(text, "hangsHere") > 2 || !strings.Contains(text, "hangsHere") {
		t.Errorf("got %v\n%.2000s", err, text)
	}
}

// A reading that says that it goes on is noted when it has not begun.
func TestAReadingIsNotedAtItsBegin(t *testing.T) {
	js := nats(t)
	lines := new(presence.Lines)
	fmt.Fprint(lines, "one\ntwo\n")
	_, id, _ := start(t, js, presence.Config{Lines: lines}, nil)
	f := open(t, js, presence.Config{})
	await(t, f, id, "readiness", func(p presence.Process) bool { return p.Ready })
	for _, after := range []uint64{1 << 60, 1, 1} {
		if _, err := f.Logs(t.Context(), id, "eve", presence.LogQuery{After: after, Limit: 10}); err != nil {
			t.Fatal(err)
		}
	}
	if noted := commands(t, f, id, 1); len(noted) != 1 || noted[0].Who != "eve" {
		t.Errorf("the commands are %+v", noted)
	}
}
