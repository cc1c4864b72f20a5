// Package blackbox keeps the last seconds of a process when something in it hangs: an execution
// trace, the stacks of its goroutines, and its heap, in a folder that outlives it.
package blackbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/pprof"
	"runtime/trace"
	"slices"
	"strings"
	"sync"
	"time"
)

// The trace goes back at least as far as minAge, unless it would then have more than maxTrace bytes.
const (
	minAge   = 10 * time.Second
	maxTrace = 8 << 20
)

// kept is how many boxes a folder has at most. The oldest goes first.
const kept = 8

// prefix begins the name of each box. The time follows, so the names are in the order of time.
const prefix = "blackbox-"

// unfinished is before the name of a box as long as it is being written. It stays there when the
// process ends meanwhile.
const unfinished = ".unfinished-"

// Recorder writes boxes: folders with what the process did before something hung. A nil Recorder
// writes none. All methods may be called concurrently.
type Recorder struct {
	dir, name string
	log       *slog.Logger
	flight    *trace.FlightRecorder // nil when there is no trace
	own       bool                  // Close stops the trace

	mu      sync.Mutex
	writing chan struct{} // closed when the box that is being written is complete; nil for none
	newest  string        // the path of the newest complete box
}

// Open makes the folder and begins to record. name is the service's. flight is the recorder that
// the program has already, nil for none: there can be one in a process. The log says when there
// is no trace, and when a box cannot be written.
func Open(dir, name string, flight *trace.FlightRecorder, log *slog.Logger) (*Recorder, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the folder of the black box: %w", err)
	}
	r := &Recorder{dir: dir, name: fileName(name), log: log, flight: flight}
	if flight != nil {
		return r, nil
	}
	r.flight = trace.NewFlightRecorder(trace.FlightRecorderConfig{MinAge: minAge, MaxBytes: maxTrace})
	if err := r.flight.Start(); err != nil {
		log.Warn("the black box has no trace: the program has a flight recorder, give it to the App with WithFlightRecorder", "error", err)
		r.flight = nil
		return r, nil
	}
	r.own = true
	return r, nil
}

// fileName returns a name that can be a part of a file's name.
func fileName(name string) string {
	return strings.Map(func(c rune) rune {
		if c == '/' || c == os.PathSeparator || c < ' ' {
			return '_'
		}
		return c
	}, name)
}

// Save begins to write a box, and returns. What hangs while a box is being written belongs to
// that box. about is written into it as JSON.
func (r *Recorder) Save(why string, about any) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.writing != nil {
		return
	}
	if r.flight != nil {
		trace.Log(context.Background(), "lifecycle", why)
	}
	done := make(chan struct{})
	r.writing = done
	at := time.Now()
	go func() {
		path, err := r.write(at, why, about)
		r.mu.Lock()
		if r.writing = nil; path != "" {
			r.newest = path
		}
		r.mu.Unlock()
		close(done)
		if err != nil {
			r.log.Error("the black box is not complete", "why", why, "box", path, "error", err)
			return
		}
		r.log.Warn("black box written", "why", why, "box", path, "took", time.Since(at))
	}()
}

// Wait waits until no box is being written, or ctx ends.
func (r *Recorder) Wait(ctx context.Context) {
	if r == nil {
		return
	}
	r.mu.Lock()
	done := r.writing
	r.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Newest returns the path of the newest complete box, "" for none.
func (r *Recorder) Newest() string {
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.newest
}

// Close ends the recording.
func (r *Recorder) Close() {
	if r != nil && r.own {
		r.flight.Stop()
	}
}

// write writes a box beside the others, and gives it its name when it is complete. It returns the
// path of a box that has what could be written, and every error.
func (r *Recorder) write(at time.Time, why string, about any) (path string, err error) {
	name := fmt.Sprintf("%s%s-%s-%d", prefix, at.UTC().Format("20060102T150405.000Z"), r.name, os.Getpid())
	dir := filepath.Join(r.dir, unfinished+name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	errs := []error{
		write(dir, "why.json", func(w io.Writer) error {
			e := json.NewEncoder(w)
			e.SetIndent("", "  ")
			return e.Encode(map[string]any{"why": why, "at": at, "pid": os.Getpid(), "report": about})
		}),
		profile(dir, "goroutines.txt", "goroutine", 1),
		profile(dir, "goroutine.pb.gz", "goroutine", 0),
	}
	if r.flight != nil {
		errs = append(errs, write(dir, "trace.out", func(w io.Writer) error {
			_, err := r.flight.WriteTo(w)
			return err
		}))
	}
	errs = append(errs, profile(dir, "heap.pb.gz", "heap", 0), profile(dir, "goroutineleak.txt", "goroutineleak", 1))
	path = filepath.Join(r.dir, name)
	if err := os.Rename(dir, path); err != nil {
		return dir, errors.Join(append(errs, err)...)
	}
	return path, errors.Join(append(errs, r.removeOld())...)
}

func write(dir, name string, content func(io.Writer) error) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(content(f), f.Close())
}

// profile writes a profile, if this version of Go has it: goroutineleak came with 1.27.
func profile(dir, file, name string, debug int) error {
	p := pprof.Lookup(name)
	if p == nil {
		return nil
	}
	return write(dir, file, func(w io.Writer) error { return p.WriteTo(w, debug) })
}

// removeOld removes the oldest boxes, finished or not, when there are more than kept.
func (r *Recorder) removeOld() error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	nameOf := func(e os.DirEntry) string { return strings.TrimPrefix(e.Name(), unfinished) }
	boxes := slices.DeleteFunc(entries, func(e os.DirEntry) bool { return !strings.HasPrefix(nameOf(e), prefix) })
	slices.SortFunc(boxes, func(a, b os.DirEntry) int { return strings.Compare(nameOf(a), nameOf(b)) })
	var errs []error
	for len(boxes) > kept {
		errs = append(errs, os.RemoveAll(filepath.Join(r.dir, boxes[0].Name())))
		boxes = boxes[1:]
	}
	return errors.Join(errs...)
}
