package contain

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// setting is a limit in the form of the kernel's files.
type setting struct {
	controller string
	v2, v1     []write // in this order
}

// write is a value for a file. The first file of a setting must exist; the others may be
// missing, because a kernel that does not count swap lacks its files.
type write struct{ file, value string }

func (l Limits) settings() (all []setting) {
	if l.Memory > 0 {
		n := strconv.FormatInt(l.Memory, 10)
		all = append(all, setting{
			"memory",
			[]write{{"memory.max", n}, {"memory.swap.max", "0"}},
			[]write{{"memory.limit_in_bytes", n}, {"memory.memsw.limit_in_bytes", n}},
		})
	}
	if l.PIDs > 0 {
		max := []write{{"pids.max", strconv.Itoa(l.PIDs)}}
		all = append(all, setting{"pids", max, max})
	}
	if l.CPU > 0 {
		quota := strconv.Itoa(int(l.CPU * period))
		all = append(all, setting{
			"cpu",
			[]write{{"cpu.max", fmt.Sprint(quota, " ", period)}},
			[]write{{"cpu.cfs_quota_us", quota}, {"cpu.cfs_period_us", strconv.Itoa(period)}},
		})
	}
	return all
}

// enable makes the controllers of the limits available below a v2 parent that has
// them.
func enable(parent string, limits Limits) error {
	var want []string
	for _, s := range limits.settings() {
		want = append(want, s.controller)
	}
	return enableControllers(parent, want)
}

func enableControllers(parent string, want []string) error {
	if !exists(parent, "cgroup.controllers") { // v1
		return nil
	}
	has, err := words(parent, "cgroup.controllers")
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", parent, err)
	}
	on, err := words(parent, "cgroup.subtree_control")
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", parent, err)
	}
	for _, controller := range want {
		if !slices.Contains(has, controller) || slices.Contains(on, controller) {
			continue
		}
		if own, _ := words(parent, "cgroup.procs"); len(own) > 0 && !isRoot(parent) {
			return notEmpty(parent)
		}
		err := put(parent, "cgroup.subtree_control", "+"+controller)
		switch {
		case err == nil:
		case errors.Is(err, syscall.EBUSY):
			return notEmpty(parent)
		case errors.Is(err, fs.ErrPermission):
			return fmt.Errorf("cgroup %s: the controller %s is not delegated to this process: "+
				"want write access to cgroup.subtree_control: %w", parent, controller, err)
		default:
			return fmt.Errorf("cgroup %s: enable the controller %s: %w", parent, controller, err)
		}
	}
	return nil
}

// isRoot reports whether a cgroup of v2 is the root of the hierarchy, which may
// have processes and controllers.
func isRoot(path string) bool { return !exists(path, "cgroup.type") }

// notEmpty explains that a parent has processes. The kernel allows no controllers
// below it then, or (for cpu and pids) no cgroup below it that can have processes.
func notEmpty(parent string) error {
	return fmt.Errorf("cgroup %s: it has processes of its own, so the kernel allows no limits below it: "+
		"want a cgroup without processes, as systemd's DelegateSubgroup= makes by keeping a service's own "+
		"processes apart: %w", parent, syscall.EBUSY)
}

// limit writes the limits to the group's files.
func (g *Group) limit(limits Limits) (missing []string, err error) {
	for _, s := range limits.settings() {
		found := false
		for _, d := range g.dirs {
			writes := s.v1
			if d.v2 {
				writes = s.v2
			}
			if !exists(d.path, writes[0].file) {
				continue
			}
			found = true
			for i, w := range writes {
				err := put(d.path, w.file, w.value)
				if i > 0 && errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err != nil {
					return nil, fmt.Errorf("cgroup %s: the kernel refuses %s as the limit %s, "+
						"the cgroup above may allow less: %w", d.path, w.value, w.file, err)
				}
			}
			break
		}
		if !found {
			missing = append(missing, s.controller)
		}
	}
	return missing, nil
}

// put writes a value to a file of a cgroup, which must exist.
func put(path, file, value string) error {
	f, err := os.OpenFile(filepath.Join(path, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// words returns the words of a file of a cgroup.
func words(path, file string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(path, file))
	return strings.Fields(string(text)), err
}
