// Package cgroup finds the memory limit that the control groups of Linux put
// on this process: memory.max of version 2 and memory.limit_in_bytes of
// version 1, of its own group and of every group above that it can see. (The
// files are described in the kernel's cgroup-v2.rst and cgroup-v1/memory.rst.)
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// noLimit is the smallest value of version 1 that means "no limit": the kernel
// then reports the largest multiple of the page size that fits into 63 bits.
const noLimit = 1 << 62

// MemoryLimit returns the lowest memory limit, in bytes, that applies to the
// process which /proc/self in fsys describes, and the file that it was read from.
// fsys is the root of the file system. The limit is 0 when there is none, also
// where there are no control groups at all. When a file exists and cannot be read
// or parsed, MemoryLimit returns an error together with the lowest limit of the
// other files.
func MemoryLimit(fsys fs.FS) (limit int64, file string, err error) {
	groups, err := readLines(fsys, "proc/self/cgroup")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, "", nil
	} else if err != nil {
		return 0, "", fmt.Errorf("find control groups: %w", err)
	}
	mounts, err := readLines(fsys, "proc/self/mountinfo")
	if err != nil {
		return 0, "", fmt.Errorf("find control groups: %w", err)
	}
	var errs []error
	for _, line := range groups {
		own, v2, ok := memoryGroup(line)
		if !ok {
			continue
		}
		name := "memory.limit_in_bytes"
		if v2 {
			name = "memory.max"
		}
		for _, m := range mounts {
			dir, top, ok := groupDir(m, own, v2)
			for ok {
				f := path.Join(dir, name)
				n, err := readLimit(fsys, f)
				if err != nil {
					errs = append(errs, err)
				} else if n > 0 && (limit == 0 || n < limit) {
					limit, file = n, "/"+f
				}
				if dir == top {
					break
				}
				dir = path.Dir(dir)
			}
		}
	}
	return limit, file, errors.Join(errs...)
}

// memoryGroup reads a line of /proc/self/cgroup (cgroups(7)). When the line is
// about memory, it returns the group that accounts for it.
func memoryGroup(line string) (group string, v2, ok bool) {
	id, rest, ok1 := strings.Cut(line, ":")
	controllers, group, ok2 := strings.Cut(rest, ":")
	if !ok1 || !ok2 || !strings.HasPrefix(group, "/") {
		return "", false, false
	}
	if id == "0" && controllers == "" {
		return group, true, true
	}
	return group, false, hasWord(controllers, "memory")
}

// groupDir reads a line of /proc/self/mountinfo (proc_pid_mountinfo(5)). When the
// line mounts the group's hierarchy, dir is the group's directory, and top is the
// directory in which the walk up ends. In a container the mount may not contain
// the group that /proc/self/cgroup names; dir is then the mount itself.
func groupDir(mount, group string, v2 bool) (dir, top string, ok bool) {
	before, after, _ := strings.Cut(mount, " - ")
	f, g := strings.Fields(before), strings.Fields(after)
	if len(f) < 6 || len(g) < 3 {
		return "", "", false
	}
	switch {
	case v2 && g[0] == "cgroup2":
	case !v2 && g[0] == "cgroup" && hasWord(g[2], "memory"):
	default:
		return "", "", false
	}
	root, point := unescape(f[3]), unescape(f[4])
	top = strings.TrimPrefix(path.Clean(point), "/")
	if !fs.ValidPath(top) {
		return "", "", false
	}
	below, inside := strings.CutPrefix(path.Clean(group), strings.TrimSuffix(path.Clean(root), "/"))
	if !inside || below != "" && below[0] != '/' || strings.Contains(group, "..") {
		below = ""
	}
	return path.Join(top, below), top, true
}

func hasWord(list, word string) bool { return slices.Contains(strings.Split(list, ","), word) }

// unescape undoes the octal escapes of mountinfo: space, tab, newline and
// backslash.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// readLimit returns the limit in a file, and 0 when the file does not exist or
// sets no limit.
func readLimit(fsys fs.FS, file string) (int64, error) {
	b, err := fs.ReadFile(fsys, file)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // the root group has no limit file, and a hybrid setup has it for one version only
	} else if err != nil {
		return 0, fmt.Errorf("read memory limit: %w", err)
	}
	word := strings.TrimSpace(string(b))
	if word == "max" || word == "-1" {
		return 0, nil
	}
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read memory limit: /%s: %w", file, err)
	}
	if n >= noLimit {
		return 0, nil
	}
	return int64(n), nil
}

func readLines(fsys fs.FS, name string) ([]string, error) {
	text, err := fs.ReadFile(fsys, name)
	return strings.Split(string(text), "\n"), err
}
