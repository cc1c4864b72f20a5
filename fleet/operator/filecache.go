package operator

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// fileCache is the content of a file, which is read again at most once a second. While the
// file cannot be read or parsed there is no value: a typo must not make valid again what was
// revoked.
type fileCache[T any] struct {
	path  string
	what  string
	log   *slog.Logger
	now   func() time.Time
	parse func([]byte) (T, error)

	mu     sync.Mutex // guards the fields below
	read   time.Time
	text   []byte // what was read last
	value  T
	broken error
}

// newFileCache returns a fileCache of a file that can be read now.
func newFileCache[T any](path, what string, log *slog.Logger, parse func([]byte) (T, error)) (*fileCache[T], error) {
	if log == nil {
		log = slog.Default()
	}
	f := &fileCache[T]{path: path, what: what, log: log, now: time.Now, parse: parse}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readLocked()
	return f, f.broken
}

// get returns the value, or the error for which there is none.
func (f *fileCache[T]) get() (T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if age := f.now().Sub(f.read); age >= 0 && age < time.Second {
		return f.value, f.broken
	}
	was := f.broken
	switch changed := f.readLocked(); {
	case changed && f.broken == nil:
		f.log.Info("operator: "+f.what+" was read", "file", f.path)
	case changed && (was == nil || was.Error() != f.broken.Error()):
		f.log.Error("operator: "+f.what+" cannot be used: everything that depends on it is refused", "error", f.broken)
	}
	return f.value, f.broken
}

func (f *fileCache[T]) readLocked() (changed bool) {
	f.read = f.now()
	text, err := os.ReadFile(f.path)
	if err == nil && f.broken == nil && f.text != nil && bytes.Equal(text, f.text) {
		return false
	}
	var value T
	if err == nil {
		if value, err = f.parse(text); err != nil {
			err = fmt.Errorf("%s: %w", f.path, err)
		}
	}
	f.text, f.value, f.broken = text, value, err
	if err != nil {
		var none T
		f.value = none
	}
	return true
}
