package presence

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Lines is an [io.Writer] that keeps the last lines that were written to it, so that
// operators can read the end of a process's log without its host: at most 1000 lines and
// 256 KiB. Write the log to it too, and give it to [Announce]:
//
//	lines := new(presence.Lines)
//	log := slog.New(slog.NewTextHandler(io.MultiWriter(lines, os.Stderr), nil))
//	presence.Announce(app, js, presence.Config{Lines: lines})
//
// It keeps what the log has, so the log must have no secrets. The zero value is ready.
// Its methods may be called concurrently.
type Lines struct {
	mu   sync.Mutex // guards the fields below
	list []Line     // oldest first
	size int        // bytes of their texts
	last uint64
	rest []byte // the begin of a line that has no end yet
}

// Line is one line of a process's log.
type Line struct {
	Seq  uint64    `json:"seq"` // counts the lines of one life of the process, from 1
	At   time.Time `json:"at"`  // when it was written, by the process's clock
	Text string    `json:"text"`
}

// Limits of Lines, and of one answer.
const (
	maxLines      = 1000
	maxLinesBytes = 256 << 10
	maxLine       = 4 << 10
	maxStacks     = 512 << 10
	eachStack     = 1000 // goroutines; of more only groups are shown
)

// Write keeps the lines of p, and the begin of a line until its end comes. It cuts a line
// of more than 4 KiB. It never fails.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, now := len(p), time.Now()
	for {
		line, rest, ended := bytes.Cut(p, []byte("\n"))
		l.rest = append(l.rest, line[:min(len(line), maxLine-min(len(l.rest), maxLine))]...)
		if !ended {
			return n, nil
		}
		l.addLocked(now, text.Clip(string(bytes.TrimSuffix(l.rest, []byte("\r"))), maxLine))
		l.rest, p = l.rest[:0], rest
	}
}

func (l *Lines) addLocked(now time.Time, line string) {
	l.last++
	l.list = append(l.list, Line{l.last, now.UTC(), line})
	l.size += len(line)
	for len(l.list) > maxLines || l.size > maxLinesBytes {
		l.size -= len(l.list[0].Text)
		l.list[0].Text = ""
		l.list = l.list[1:]
	}
}

// after returns the newest lines after the one with the number seq, at most limit, and
// how many are missing before them. A number that no line has yet is of an earlier life.
func (l *Lines) after(seq uint64, limit int) (list []Line, missed uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq > l.last {
		seq = 0
	}
	list = append(list, l.list[max(0, len(l.list)-min(limit, int(l.last-seq))):]...)
	if seq > 0 {
		missed = l.last - seq - uint64(len(list))
	}
	return list, missed
}

// stacks returns the stacks of all goroutines: each with its state, or when there are too
// many, each different one with its number of goroutines.
func stacks() string {
	if runtime.NumGoroutine() <= eachStack {
		return text.Clip(string(call.Dump()), maxStacks)
	}
	var b strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1) // a Builder never fails
	return text.Clip(b.String(), maxStacks)
}

// Logs is the end of a process's log.
type Logs struct {
	Lines  []Line // oldest first
	Missed uint64 // lines between LogQuery.After and the first one
}

// LogQuery selects lines.
type LogQuery struct {
	After uint64 // only lines after the one with this Seq; 0 for all
	Limit int    // the newest ones, at most 1000
}

// Logs returns the last lines of a process's log. ErrRefused is returned when the process
// keeps none.
func (f *Fleet) Logs(ctx context.Context, id, who string, q LogQuery) (Logs, error) {
	if q.Limit < 1 || q.Limit > maxLines {
		return Logs{}, fmt.Errorf("presence: the limit is %d: want 1 to %d", q.Limit, maxLines)
	}
	a, err := f.ask(ctx, id, command{Do: doLogs, Who: who, After: q.After, Limit: q.Limit})
	return Logs{a.Lines, a.Missed}, err
}

// Stacks returns the stacks of all goroutines of a process, also while it stops: it shows
// where a hook hangs. At most 512 KiB.
func (f *Fleet) Stacks(ctx context.Context, id, who string) (string, error) {
	a, err := f.ask(ctx, id, command{Do: doStacks, Who: who})
	return a.Text, err
}

// Some commands.
const (
	doLogs    = "logs"
	doStacks  = "stacks"
	doConfig  = "config"
	doRestart = "restart-unit"
)

// reads reports whether a command only reads. Reading on is not noted each time.
func (c command) reads() bool { return c.Do == doLogs || c.Do == doStacks || c.Do == doConfig }

// read answers a command that only reads, in any phase.
func (a *announcer) read(c command, out *answer) (refused string) {
	switch {
	case c.Do == doStacks:
		out.Text = stacks()
	case c.Do == doConfig:
		return a.configuration(out)
	case a.cfg.Lines == nil:
		return "this process keeps no lines of its log: it has no presence.Config.Lines"
	default:
		out.Lines, out.Missed = a.cfg.Lines.after(c.After, min(max(c.Limit, 1), maxLines))
	}
	return ""
}
