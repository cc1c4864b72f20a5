package isolate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// folder is a folder for the private folders of one process's children. A lock on a
// file in it lasts as long as the process, so that other processes can tell that the
// folder is in use. The zero value is ready to use.
type folder struct {
	mu   sync.Mutex // guards everything below
	path string     // "" before the first child that needs one, and after close
	lock *os.File
}

const lockName = "in-use"

// baseDir is the folder that all processes of this user share.
func baseDir() string {
	return filepath.Join(os.TempDir(), "lifecycle-engines-"+strconv.Itoa(os.Getuid()))
}

// child makes a private folder for a child.
func (f *folder) child(uid, gid int) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" {
		if err := f.openLocked(); err != nil {
			return "", fmt.Errorf("make a folder for children: %w", err)
		}
	}
	dir, err := os.MkdirTemp(f.path, "child-")
	if err == nil && uid != 0 {
		err = os.Chown(dir, uid, gid)
	}
	return dir, err
}

func (f *folder) openLocked() error {
	base := baseDir()
	if err := os.Mkdir(base, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := ownedByUs(base); err != nil {
		return err
	}
	sweep(base)
	path, err := os.MkdirTemp(base, "host-")
	if err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = tryLock(lock)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(path))
	}
	// Children of another user enter, and see nothing but what is theirs.
	if err := errors.Join(os.Chmod(base, 0o711), os.Chmod(path, 0o711)); err != nil {
		return err
	}
	f.path, f.lock = path, lock
	return nil
}

// close removes the folder. The next child makes another one.
func (f *folder) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" {
		return nil
	}
	err := errors.Join(os.RemoveAll(f.path), f.lock.Close())
	f.path, f.lock = "", nil
	return err
}

// sweep removes the folders of processes that have ended without removing them. It
// leaves a folder that is being made: one without a lock.
func sweep(base string) {
	if ownedByUs(base) != nil {
		return
	}
	found, _ := filepath.Glob(filepath.Join(base, "host-*", lockName))
	for _, name := range found {
		lock, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if tryLock(lock) == nil {
			_ = os.RemoveAll(filepath.Dir(name))
		}
		_ = lock.Close()
	}
}
