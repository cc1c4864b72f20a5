package isolate

import (
	"fmt"
	"strings"
	"sync"
)

// lastWords keeps the beginning and the end of what a child writes to standard error.
// Go's runtime says first why it ends, and then shows what every goroutine does.
type lastWords struct {
	mu   sync.Mutex // guards everything below
	head []byte
	tail []byte
}

const maxWords = 4096 // of each

func (w *lastWords) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(b), maxWords-len(w.head))
	w.head = append(w.head, b[:n]...)
	w.tail = append(w.tail, b[n:]...)
	if over := len(w.tail) - maxWords; over > 0 {
		w.tail = append(w.tail[:0], w.tail[over:]...)
	}
	return len(b), nil
}

func (w *lastWords) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(strings.ToValidUTF8(string(w.head)+string(w.tail), "\uFFFD"))
}

// explain adds the first line to err.
func (w *lastWords) explain(err error) error {
	line, _, _ := strings.Cut(w.String(), "\n")
	if line == "" {
		return err
	}
	return fmt.Errorf("%w: %.500s", err, line)
}

// outOfMemory reports whether the child ended because it could have no more memory:
// the words are those of Go's runtime, of its race detector, and of Python.
func (w *lastWords) outOfMemory() bool {
	text := w.String()
	for _, words := range []string{"out of memory", "cannot allocate memory", "stack overflow", "stack exceeds", "failed to allocate", "MemoryError"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}
