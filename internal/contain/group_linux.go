package contain

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Group is the cgroup of one process. Its methods may be called concurrently.
type Group struct {
	dirs []dir // the one of v2 first, which can be killed at once
}

// dir is the group's directory in one hierarchy.
type dir struct {
	path string
	v2   bool
	held *os.File // open and locked for as long as the group exists
}

// New makes a group below each of the parents, and gives it the limits. missing
// has the controllers ("memory", "pids", "cpu") of the limits that do not hold,
// because none of the hierarchies has them. The error says what is
// wrong with a parent or a limit.
//
// The first New below a parent in this process also removes the groups there whose
// process has died without removing them, and kills what still runs in them.
func New(parents []string, worker string, limits Limits) (g *Group, missing []string, err error) {
	hierarchies := make(map[uint64]string)
	for _, parent := range parents {
		if !filepath.IsAbs(parent) {
			return nil, nil, fmt.Errorf("cgroup %q: want the absolute path of a directory, such as /sys/fs/cgroup/NAME", parent)
		}
		info, err := os.Stat(filepath.Join(parent, "cgroup.procs"))
		if err != nil {
			return nil, nil, fmt.Errorf("cgroup %s: it is not a cgroup: want a directory of a file system "+
				"of type cgroup2 or cgroup that was delegated to this process: %w", parent, err)
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			device := uint64(stat.Dev) //nolint:unconvert // its type depends on the architecture
			if other := hierarchies[device]; other != "" {
				return nil, nil, fmt.Errorf("cgroups %s and %s: both are of one hierarchy: "+
					"want one of them, since a process is in one cgroup of a hierarchy", other, parent)
			}
			hierarchies[device] = parent
		}
	}
	for _, parent := range parents {
		if _, before := swept.LoadOrStore(parent, true); !before {
			sweep(parent)
		}
		if err := enable(parent, limits); err != nil {
			return nil, nil, err
		}
	}
	for range 100 {
		if g, err = create(parents, worker); !errors.Is(err, errTaken) {
			break
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if missing, err = g.limit(limits); err != nil {
		return nil, nil, errors.Join(err, g.Remove())
	}
	return g, missing, nil
}

// create makes the directories of a group and locks them. A process that finds one
// unlocked takes it for one that is left over.
func create(parents []string, worker string) (*Group, error) {
	g := &Group{}
	for _, parent := range parents {
		path, err := os.MkdirTemp(parent, pattern(worker))
		if err != nil {
			err = fmt.Errorf("cgroup %s: want one that is delegated to this process: %w", parent, err)
			return nil, errors.Join(err, g.Remove())
		}
		d := dir{path: path, v2: exists(path, "cgroup.controllers")}
		if d.v2 && strings.TrimSpace(string(d.read("cgroup.type"))) == "domain invalid" {
			err = notEmpty(parent)
		} else {
			d.held, err = lock(path)
		}
		if d.v2 {
			g.dirs = slices.Insert(g.dirs, 0, d)
		} else {
			g.dirs = append(g.dirs, d)
		}
		if err != nil {
			return nil, errors.Join(err, g.Remove())
		}
	}
	return g, nil
}

// errTaken is the error of a lock that another process holds, or whose directory
// it has removed meanwhile.
var errTaken = errors.New("another process has taken the directory")

// lock opens a directory and locks it, without waiting.
func lock(path string) (*os.File, error) {
	held, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errTaken
	} else if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = held.Close() // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errTaken
		}
		return nil, fmt.Errorf("cgroup %s: lock: %w", path, err)
	}
	if !exists(path) {
		_ = held.Close() // nothing was written
		return nil, errTaken
	}
	return held, nil
}

// Remove removes the group's directories and what the program has made in them.
// No process may be in the group. A second call does nothing.
func (g *Group) Remove() error {
	var errs []error
	for i := range g.dirs {
		d := &g.dirs[i]
		for _, path := range slices.Backward(d.tree()) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("cgroup %s: %w", path, err))
			}
		}
		if d.held != nil {
			_ = d.held.Close() // nothing was written
		}
	}
	return errors.Join(errs...)
}

// tree returns the directory and those below it, each after the one above.
func (d dir) tree() []string {
	var all []string
	_ = filepath.WalkDir(d.path, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			all = append(all, path)
		}
		return nil // the directory may be removed meanwhile
	})
	return all
}

// Dirs returns the group's directories.
func (g *Group) Dirs() []string {
	var paths []string
	for _, d := range g.dirs {
		paths = append(paths, d.path)
	}
	return paths
}

// swept has the parents below which this process has looked for groups that are
// left over.
var swept sync.Map

// sweep ends and removes the groups below parent that no process holds. It is
// content with what it may and can do.
func sweep(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, entry := range entries {
		path := filepath.Join(parent, entry.Name())
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), prefix) {
			continue
		}
		if held, err := lock(path); err == nil {
			g := &Group{dirs: []dir{{path: path, v2: exists(path, "cgroup.controllers"), held: held}}}
			g.End(sweepPatience)
			_ = g.Remove()
		}
	}
}

func exists(path ...string) bool {
	_, err := os.Lstat(filepath.Join(path...))
	return err == nil
}
