package call

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// The labels of goroutines that run foreign code, in the profiles of package
// runtime/pprof. To find the processor time of a part, for example, add up the samples with
// its name. The kind is a kind of the App's events, or "call" for a call of a single method.
const (
	KindLabel = "lifecycle.kind"
	NameLabel = "lifecycle.name"
)

// WithLabels returns ctx with the two labels in addition to its own. A context that has
// them already stays as it is: the next run of a part goes on with the labels of the first.
func WithLabels(ctx context.Context, kind, name string) context.Context {
	if is, _ := pprof.Label(ctx, NameLabel); is == name {
		if of, _ := pprof.Label(ctx, KindLabel); of == kind {
			return ctx
		}
	}
	return pprof.WithLabels(ctx, pprof.Labels(KindLabel, kind, NameLabel, name))
}

// MaxDump is the largest dump of all goroutines, in bytes.
const MaxDump = 8 << 20

// Dump returns the stacks of all goroutines, cut at [MaxDump]. It stops the whole
// process meanwhile: about 100 ms for 100 000 goroutines, and a second for a
// million.
func Dump() []byte {
	// An attempt with too small a buffer costs as much as one that succeeds. So
	// the first attempt uses a buffer that is large enough for most dumps.
	for size := max(64<<10, 1<<10*runtime.NumGoroutine()); ; size *= 8 {
		buf := make([]byte, min(size, MaxDump))
		if n := runtime.Stack(buf, true); n < len(buf) || len(buf) == MaxDump {
			return buf[:n]
		}
	}
}

// recent is the last goroutine profile. Callers that come before it is taken share it,
// because thousands of parts may be abandoned at the same moment.
var recent struct {
	asked   atomic.Uint64 // callers so far
	waiting atomic.Int64  // callers that have no profile yet

	mu     sync.Mutex
	covers uint64 // the number of callers that came before the profile was taken
	text   string // kept until no caller waits
}

// profile returns the goroutine profile in its text form, cut at [MaxDump].
func profile() string {
	recent.waiting.Add(1)
	turn := recent.asked.Add(1)
	recent.mu.Lock()
	defer recent.mu.Unlock()
	if recent.covers < turn {
		recent.covers = recent.asked.Load()
		var text bytes.Buffer
		_ = pprof.Lookup("goroutine").WriteTo(&limitedWriter{&text, MaxDump}, 1) // the writer fails at its limit
		recent.text = text.String()
	}
	text := recent.text
	if recent.waiting.Add(-1) == 0 {
		recent.text = ""
	}
	return text
}

type limitedWriter struct {
	to   io.Writer
	left int
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		return 0, io.ErrShortBuffer
	}
	w.left -= len(p)
	return w.to.Write(p)
}

// stacksOf returns the stacks of the goroutines with these labels: the one of the call
// itself first, then the goroutines that it has started. It returns "" when there are none.
func stacksOf(profile, kind, name string) string {
	wantKind := fmt.Sprintf("%q:%q", KindLabel, kind)
	wantName := fmt.Sprintf("%q:%q", NameLabel, name)
	var own, others []string
	for block := range strings.SplitSeq(profile, "\n\n") {
		head, frames, ok := strings.Cut(block, "\n# labels: ")
		if !ok {
			continue
		}
		labels, frames, _ := strings.Cut(frames, "\n")
		if !strings.Contains(labels, wantKind) || !strings.Contains(labels, wantName) {
			continue
		}
		stack := heading(head) + traceOf(frames)
		if strings.Contains(frames, "/internal/call.run") {
			own = append(own, stack)
		} else {
			others = append(others, stack)
		}
	}
	return strings.Join(append(own, others...), "\n")
}

// heading turns the first line of a block of the profile, "3 @ 0x43a1 0x43b2", into words.
func heading(line string) string {
	if i := strings.LastIndexByte(line, '\n'); i >= 0 {
		line = line[i+1:] // the first block has the profile's own heading above it
	}
	count, _, _ := strings.Cut(line, " ")
	if n, err := strconv.Atoi(count); err == nil && n != 1 {
		return count + " goroutines like this:\n"
	}
	return "goroutine:\n"
}

// traceOf writes the frames of a profile as a panic's trace has them: the function on a
// line, and its file below it.
func traceOf(frames string) string {
	var out strings.Builder
	for line := range strings.Lines(frames) {
		fields := strings.Fields(line)
		if len(fields) < 4 { // "#", the address, the function and the file
			continue
		}
		function := fields[2]
		if i := strings.LastIndexByte(function, '+'); i > 0 {
			function = function[:i]
		}
		fmt.Fprintf(&out, "%s(...)\n\t%s\n", function, strings.Join(fields[3:], " "))
	}
	return out.String()
}
