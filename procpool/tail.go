package procpool

import (
	"io"
	"sync"
)

// tail keeps the end of what a worker writes to its standard error.
type tail struct {
	next io.Writer // nil for none
	size int

	mu  sync.Mutex // guards the fields below
	buf []byte
}

// Write never fails: errors of next are ignored.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	if len(b) >= t.size {
		t.buf = append(t.buf[:0], b[len(b)-t.size:]...)
	} else {
		if over := len(t.buf) + len(b) - t.size; over > 0 {
			t.buf = append(t.buf[:0], t.buf[over:]...)
		}
		t.buf = append(t.buf, b...)
	}
	t.mu.Unlock()
	if t.next != nil {
		_, _ = t.next.Write(b)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
