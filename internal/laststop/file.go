// Package laststop keeps a process's report of its stop until it is read: in a file for the
// next start, and at /metrics for one last scrape.
package laststop

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// version is the version of the file's format. A reader refuses any other.
const version = 1

// maxFile bounds the file that Open reads, in bytes.
const maxFile = 1 << 20

// patience bounds each operation on the file, because a volume may hang.
const patience = time.Second

// record is the content of the file.
type record[T any] struct {
	Version int `json:"version"`
	Life    T   `json:"life"`
}

// File holds the record of one life at a time. The zero value keeps nothing. Its methods
// may be called concurrently.
type File struct {
	path  string
	log   *slog.Logger
	stuck atomic.Bool // an operation did not return in time

	mu    sync.Mutex // held while the file is written; guards the fields below
	last  any        // the life of the last record, as brief returns it
	final bool       // no further Write counts
}

// Open returns the record at path, or nil, and makes f write there. The log says why a
// record is not read or not written; a file that does not exist yet is fine. The empty path
// keeps nothing. Call Open once, before Write.
func Open[T any](f *File, path string, log *slog.Logger) *T {
	f.path, f.log = path, log
	if path == "" {
		return nil
	}
	life, err := load[T](f)
	if err != nil {
		log.Warn("the last stop is not known", "file", path, "error", err)
		return nil
	}
	return life
}

// load returns nil without an error when there is no file.
func load[T any](f *File) (*T, error) {
	var content []byte
	err := f.within(func() (err error) {
		content, err = read(f.path)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var raw record[json.RawMessage]
	if err == nil {
		err = json.Unmarshal(content, &raw)
	}
	if err == nil && raw.Version != version {
		err = fmt.Errorf("it has the version %d, want %d", raw.Version, version)
	}
	life := new(T)
	if err == nil {
		err = json.Unmarshal(raw.Life, life)
	}
	if err != nil {
		return nil, err
	}
	return life, nil
}

// read returns the content of a regular file that is not too long.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer would block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, errNotRegular)
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("it is longer than %d bytes", maxFile)
	}
	return content, err
}

// Keeps reports whether there is a file to write.
func (f *File) Keeps() bool { return f.path != "" && !f.stuck.Load() }

// Write replaces the record with life in brief, as a whole or not at all. Write waits at
// most a second; when the volume takes longer, later calls do nothing.
func (f *File) Write(life any) {
	f.write(func() (any, bool, error) {
		content, err := json.Marshal(life) // and back, to cut the texts in a value of any type
		var value any
		if err == nil {
			err = json.Unmarshal(content, &value)
		}
		return brief(value), !f.final, err
	})
}

// Final changes keys of the last record, for a process that ends now. Later calls of
// Write and Final do nothing.
func (f *File) Final(changes map[string]any) {
	f.write(func() (any, bool, error) {
		first := !f.final
		f.final = true
		life, _ := f.last.(map[string]any)
		if life == nil {
			life = map[string]any{}
		}
		maps.Copy(life, changes)
		return life, first, nil
	})
}

// write writes what compose returns, unless it reports false. The lock is held.
func (f *File) write(compose func() (life any, wanted bool, err error)) {
	if !f.Keeps() {
		return
	}
	err := f.within(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		life, wanted, err := compose()
		if err != nil || !wanted {
			return err
		}
		content, err := json.Marshal(record[any]{version, life})
		if err != nil {
			return err
		}
		f.last = life
		return replace(f.path, append(content, '\n'))
	})
	if err != nil {
		f.log.Warn("the next start will not know of this life", "file", f.path, "error", err)
	}
}

// The limits of a record.
const (
	maxText = 1 << 10 // bytes of a text
	maxList = 32      // elements of a list
)

// leftOut are the keys that a record does not have: details that only a reader of the whole
// report needs, and the record of the previous life.
var leftOut = []string{"stack", "reloads", "reloadCounts", "previous"}

// brief returns a JSON value with short texts and lists. From a list of parts with results it
// keeps only the parts that went wrong.
func brief(value any) any {
	switch v := value.(type) {
	case string:
		return text.Clip(v, maxText)
	case []any:
		v = slices.DeleteFunc(v, func(part any) bool {
			m, _ := part.(map[string]any)
			return m["result"] == "ok" || m["result"] == "running"
		})
		v = v[:min(len(v), maxList)]
		for i := range v {
			v[i] = brief(v[i])
		}
		return v
	case map[string]any:
		for key := range v {
			if v[key] = brief(v[key]); slices.Contains(leftOut, key) {
				delete(v, key)
			}
		}
	}
	return value
}

// replace writes a new file beside the old one and renames it. It does not sync: the
// record outlives the process, but a node that loses power may lose it. replace refuses a
// device, a pipe or a link at the path: a rename over /dev/null would remove that for all
// processes.
//
// When that fails, replace removes the old record and tries again. A full disk then has
// room. And the next start cannot mistake the record of an earlier life or phase for the last.
func replace(path string, content []byte) error {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return errNotRegular
	}
	err := rename(path, content)
	if err != nil {
		_ = os.Remove(path)
		err = rename(path, content)
	}
	return err
}

// rename writes a file beside path and renames it.
func rename(path string, content []byte) error {
	beside := path + ".new"
	_ = os.Remove(beside) // a killed process, perhaps of another user, may have left it; Remove does not follow a link
	f, err := os.OpenFile(beside, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(beside, path)
	}
	if err != nil {
		_ = os.Remove(beside)
	}
	return err
}

// errNotRegular refuses a path that is not a file.
var errNotRegular = errors.New("it is not a regular file")

// within calls fn, and stops waiting for it when the volume hangs. A time in which the
// process itself was suspended does not count.
func (f *File) within(fn func() error) error {
	err := call.Start("the volume", fn).Wait(call.Now(), patience)
	if _, isAbandoned := call.As[*call.AbandonedError](err); isAbandoned {
		f.stuck.Store(true)
		return fmt.Errorf("the volume did not answer in %v", patience)
	}
	return err
}
