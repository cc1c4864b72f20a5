package procpool

import (
	"bytes"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// maxOutputLine is how many bytes of a line of a worker's output are logged.
const maxOutputLine = 4 << 10

// output logs what a worker writes to one of its streams, a record for each line. Of
// a worker that writes more than its limit it logs the first lines of each second, and
// how many it left out. It never makes the worker wait for long: only for the handler
// of the log.
type output struct {
	log    *slog.Logger // with the worker's name and the stream
	limit  int          // lines a second
	mu     sync.Mutex   // guards the fields below
	line   []byte       // that has not ended, its beginning
	size   int          // its whole length
	since  time.Time
	logged int // since then
	missed int
}

// Write never fails.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for rest := b; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte{'\n'})
		o.line = append(o.line, part[:min(len(part), maxOutputLine-len(o.line))]...)
		o.size += len(part)
		if ended {
			o.endLocked(time.Now())
		}
		rest = after
	}
	return len(b), nil
}

// endLocked logs the line.
func (o *output) endLocked(now time.Time) {
	line, size := string(bytes.TrimRight(o.line, "\r")), o.size
	o.line, o.size = o.line[:0], 0
	if now.Sub(o.since) >= time.Second {
		o.logMissedLocked()
		o.since, o.logged = now, 0
	}
	switch {
	case line == "":
	case o.logged >= o.limit:
		o.missed++
	default:
		o.logged++
		if size > maxOutputLine {
			line = fmt.Sprintf("%s… (%d bytes)", text.Head(line, maxOutputLine), size)
		}
		o.log.Info("procpool: a worker has written", "line", line)
	}
}

func (o *output) logMissedLocked() {
	if n := o.missed; n > 0 {
		o.missed = 0
		o.log.Info("procpool: a worker has written more lines than are logged", "lines", n)
	}
}

// close logs the last line, which may have no newline.
func (o *output) close() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.endLocked(time.Now())
	o.logMissedLocked()
}
