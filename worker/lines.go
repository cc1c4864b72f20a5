package worker

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

// maxLogLine is how much of a line is logged, in bytes.
const maxLogLine = 8 << 10

// LineLogger logs the lines that a program writes. Make one with [LogLines], for the Stdout or
// Stderr of a [Process].
type LineLogger struct {
	log       *slog.Logger
	level     slog.Level
	perSecond int

	mu      sync.Mutex // guards the fields below
	line    []byte     // the beginning of a line whose end has not come
	cut     int        // bytes of that line beyond maxLogLine
	since   time.Time  // the beginning of a second
	logged  int        // lines in that second
	dropped int        // lines since the last one that was logged
}

// LogLines returns a Writer that logs each line at the level, with the line as its message. Of
// more than perSecond lines within a second the rest is dropped, and the next line that is logged
// has the attribute dropped with their number; a perSecond of 0 is 1,000. Of a line 8 KiB are
// logged, and its attribute cut has the number of bytes beyond. An empty line is not logged. A
// Write never fails, waits as long as the handler of log does, and is safe for concurrent use:
// then parts of lines may mix. A nil log is [slog.Default].
//
// The worker calls Flush when the output has ended.
func LogLines(log *slog.Logger, level slog.Level, perSecond int) *LineLogger {
	if log == nil {
		log = slog.Default()
	}
	if perSecond <= 0 {
		perSecond = 1000
	}
	return &LineLogger{log: log, level: level, perSecond: perSecond}
}

// Write logs the lines that end in b, and keeps the beginning of the next one.
func (l *LineLogger) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(b)
	for {
		part, rest, ends := bytes.Cut(b, []byte("\n"))
		kept := min(len(part), maxLogLine-len(l.line))
		l.line = append(l.line, part[:kept]...)
		l.cut += len(part) - kept
		if !ends {
			return n, nil
		}
		l.endLine()
		b = rest
	}
}

// flush ends the output that a program has written to a Writer.
func flush(to io.Writer) {
	if l, ok := to.(*LineLogger); ok {
		l.Flush()
	}
}

// Flush logs the last line, when it has no end, and says how many lines were dropped.
func (l *LineLogger) Flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.endLine()
	if l.dropped > 0 {
		l.log.Log(context.Background(), l.level, "lines were dropped", "dropped", l.dropped)
		l.dropped = 0
	}
}

func (l *LineLogger) endLine() {
	line, cut := string(bytes.TrimSuffix(l.line, []byte("\r"))), l.cut
	l.line, l.cut = l.line[:0], 0
	if line == "" {
		return
	}
	if now := time.Now(); now.Sub(l.since) >= time.Second {
		l.since, l.logged = now, 0
	}
	if l.logged == l.perSecond {
		l.dropped++
		return
	}
	l.logged++
	var attrs []any
	if cut > 0 {
		attrs = append(attrs, "cut", cut)
	}
	if l.dropped > 0 {
		attrs = append(attrs, "dropped", l.dropped)
		l.dropped = 0
	}
	l.log.Log(context.Background(), l.level, line, attrs...)
}
