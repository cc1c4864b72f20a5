package isolate

import (
	"fmt"
	"strings"
	"sync"
)

// stderrText keeps the beginning and the end of what a child writes to standard error.
// Go's runtime says first why it ends, and then shows what every goroutine does.
type stderrText struct {
	mu   sync.Mutex // guards everything below
	head []byte
	tail []byte
}

const maxStderr = 4096 // of each

func (w *stderrText) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(b), maxStderr-len(w.head))
	w.head = append(w.head, b[:n]...)
	w.tail = append(w.tail, b[n:]...)
	if over := len(w.tail) - maxStderr; over > 0 {
		w.tail = append(w.tail[:0], w.tail[over:]...)
	}
	return len(b), nil
}

func (w *stderrText) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(w.head)+string(w.tail), "\uFFFD"))
}

// explain adds the first line to err.
func (w *stderrText) explain(err error) error {
	line, _, _ := strings.Cut(w.String(), "\n")
	if line == "" {
		return err
	}
	return fmt.Errorf("%w: %.500s", err, line)
}

// outOfMemory reports whether the child ended because it could have no more memory, as Go's
// runtime, its race detector and Python say it.
func (w *stderrText) outOfMemory() bool {
	text := w.String()
	for _, words := range []string{
		"out of memory", "cannot allocate memory", "failed to allocate", "MemoryError",
		"stack overflow", "stack exceeds",
		"pthread_create failed", "failed to create new OS thread", // there was no room for its stack
	} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}
