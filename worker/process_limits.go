package worker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/contain"
)

// Limits bounds what a program may use. A field that is 0 limits nothing.
//
// The kernel holds Memory, PIDs and CPU for the program together with all
// processes that it starts. For that it needs a cgroup: see [WithCgroup]. Without
// one, Memory becomes a limit of the private writable memory of each process
// (RLIMIT_DATA), and PIDs and CPU do not hold. Files is of each process. All need Linux.
type Limits struct {
	// Memory is in bytes, and includes swap where the kernel counts it. When the
	// processes want more, the kernel kills one of them: see OOM of [Exit].
	Memory int64 `json:"memory,omitempty"`
	// PIDs is how many processes and threads may run at once. More cannot be
	// started: fork(2) returns EAGAIN.
	PIDs int `json:"pids,omitempty"`
	// CPU is how much processor time the processes may use, in processors: 0.5 is
	// half of one, 2 is two. At least 0.01.
	CPU float64 `json:"cpu,omitempty"`
	// Files is how many files a process may have open (RLIMIT_NOFILE).
	Files int `json:"files,omitempty"`
	// Required makes Start fail when one of the limits cannot be had. Otherwise the
	// program runs without it, and [Containment] says so.
	Required bool `json:"required,omitempty"`
}

// Containment says what bounds a process, and what it uses.
type Containment struct {
	Cgroups []string `json:"cgroups,omitempty"` // the directories of its own cgroup
	Limits  Limits   `json:"limits,omitzero"`   // the limits that were asked for
	Missing []string `json:"missing,omitempty"` // the limits that do not hold, each with the reason
	Usage   *Usage   `json:"usage,omitempty"`   // of all processes of the cgroup; at the end, the last
}

// Usage is what the processes of a cgroup use together, and how often its limits
// have struck. A value that none of its controllers reports is 0.
type Usage struct {
	Memory     int64         `json:"memory,omitempty"`      // bytes
	MemoryPeak int64         `json:"memoryPeak,omitempty"`  // the most bytes until now
	PIDs       int           `json:"pids,omitempty"`        // processes and threads
	CPU        time.Duration `json:"cpuNs,omitempty"`       // processor time until now
	Throttled  time.Duration `json:"throttledNs,omitempty"` // how long they had to wait because of Limits.CPU
	Refused    int           `json:"refused,omitempty"`     // processes and threads that could not start because of Limits.PIDs
	OOMKills   int           `json:"oomKills,omitempty"`    // processes that the kernel has killed because memory ran out
}

// WithLimits bounds what the program may use. Start returns an error for a limit
// that is impossible, and for one that the kernel refuses. When a limit cannot be
// had on this system, the program runs without it, unless the limits are Required:
// the [Containment] of its State and the cause of its change to Running say which
// and why.
//
// The limits hold from the program's first instruction. For those that are not of a
// cgroup of v2, the worker traces the program until they hold (ptrace(2)). Where the
// kernel does not allow that, and for a program that gains rights when it starts
// (setuid, setgid, file capabilities), they take effect a moment after the start:
// what the program has opened or allocated before stays, and a process that it has
// started before has no limits.
func WithLimits(l Limits) ProcessOption { return func(p *Process) { p.bounds.limits = l } }

// WithCgroup gives the program a cgroup of its own (cgroups(7)), in a new directory
// below each of the parents. The worker signals, kills and waits for all processes
// of the cgroup, in addition to those of the program's group. So a grandchild ends
// with the program even when it has a session of its own. Where the kernel has no
// cgroup.kill (cgroups v1, Linux before 5.14), a program that forks without end may
// outrun the kill. The [Containment] of the State says what the processes use. When all have ended, the worker removes the
// directories.
//
// A parent must be delegated to this process: this process may make directories in
// it, and may move its children there, as with Delegate=yes of a systemd service.
// Name one directory of cgroup v2. Of v1, name one in each hierarchy that a limit
// needs (memory, pids, cpu). On a hybrid machine, name both. The program starts in its
// cgroup of v2. The worker moves it to those of v1 before its first instruction or a moment
// after the start, as [WithLimits] says of limits: a process that the program has started
// before is outside. The worker never moves this process, and changes nothing outside of the
// parents.
//
// When the first worker of this process starts below a parent, it ends what another
// process has left there that was killed before it could end its own workers.
//
// Start returns an error for a parent that is not delegated, and on other systems
// than Linux.
func WithCgroup(parents ...string) ProcessOption {
	return func(p *Process) { p.bounds.parents, p.bounds.wanted = parents, true }
}

// killTakes is after how long what was killed and has not ended is given up.
const killTakes = 5 * time.Second

// bounds is what bounds a process. The zero value bounds nothing.
type bounds struct {
	limits  Limits
	parents []string
	wanted  bool // a cgroup

	mu      sync.Mutex     // guards everything below
	group   *contain.Group // nil without a cgroup
	missing []string
	data    bool  // Limits.Memory holds for each process alone
	usage   Usage // the last one, once the cgroup is removed
	ended   bool
}

func (b *bounds) validate() error {
	switch l := b.limits; {
	case b.wanted && len(b.parents) == 0:
		return errors.New("WithCgroup names no directory: want one that was delegated to this process")
	case l.Memory < 0:
		return fmt.Errorf("Limits.Memory is %d, want 0 or more bytes", l.Memory)
	case l.PIDs < 0:
		return fmt.Errorf("Limits.PIDs is %d, want 0 or more", l.PIDs)
	case l.CPU < 0, l.CPU > 0 && l.CPU < contain.MinCPU, l.CPU != l.CPU, l.CPU > 1e6:
		return fmt.Errorf("Limits.CPU is %v, want 0, or a number of processors from %v", l.CPU, contain.MinCPU)
	case l.Files < 0:
		return fmt.Errorf("Limits.Files is %d, want 0 or more", l.Files)
	}
	return nil
}

// open makes the cgroup, and finds out which limits cannot be had.
func (b *bounds) open(worker string, attr *syscall.SysProcAttr) error {
	if b.wanted {
		limits := contain.Limits{Memory: b.limits.Memory, PIDs: b.limits.PIDs, CPU: b.limits.CPU}
		group, missing, err := contain.New(b.parents, worker, limits)
		if err != nil {
			return err
		}
		if err := group.StartIn(attr); err != nil {
			return errors.Join(err, group.Remove())
		}
		b.mu.Lock()
		b.group = group
		b.mu.Unlock()
		b.miss("none of its cgroups has the controller", func(controller string) bool {
			return slices.Contains(missing, controller)
		})
	} else {
		b.miss("the process has no cgroup", func(string) bool { return true })
	}
	if err := b.lacks(); err != nil && b.limits.Required {
		return errors.Join(err, b.remove())
	}
	return nil
}

// miss records which of the limits do not hold. lacks reports whether there is no
// controller for a limit, and why says why.
func (b *bounds) miss(why string, lacks func(controller string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.limits
	for _, limit := range []struct {
		name string
		set  bool
	}{{"memory", l.Memory > 0}, {"pids", l.PIDs > 0}, {"cpu", l.CPU > 0}} {
		if !limit.set || !lacks(limit.name) {
			continue
		}
		text := limit.name + ": " + why
		if limit.name == "memory" && contain.Bounds {
			b.data = true
			text += "; the limit is for the private writable memory of each process (RLIMIT_DATA)"
		}
		b.missing = append(b.missing, text)
	}
	if l.Files > 0 && !contain.Bounds {
		b.missing = append(b.missing, "files: only Linux has it")
	}
}

// lacks returns an error that names the limits that do not hold, nil for none.
func (b *bounds) lacks() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.missing) == 0 {
		return nil
	}
	return fmt.Errorf("limits do not hold: %s: %w", strings.Join(b.missing, "; "), errors.ErrUnsupported)
}

// holder returns a function that bounds cmd's program once it has started, nil when
// there is nothing left to do.
func (b *bounds) holder(cmd *exec.Cmd) func() error {
	l := b.limits
	join := b.group != nil && b.group.Joins(cmd.SysProcAttr)
	if !contain.Bounds || !join && !b.data && l.Files == 0 {
		return nil
	}
	return func() error {
		pid := cmd.Process.Pid
		var errs []error
		if join {
			errs = append(errs, b.group.Join(pid, cmd.SysProcAttr))
		}
		if b.data {
			errs = append(errs, contain.Data(pid, l.Memory))
		}
		if l.Files > 0 {
			errs = append(errs, contain.Files(pid, l.Files))
		}
		return errors.Join(errs...)
	}
}

// startFailed explains the error of a start, and removes the cgroup.
func (b *bounds) startFailed(err error, cmd *exec.Cmd) error {
	if b.group == nil {
		return err
	}
	info, missing := os.Stat(cmd.Path)
	executable := missing == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
	if executable && errors.Is(err, fs.ErrPermission) {
		err = b.group.Forbidden(err)
	}
	return errors.Join(err, b.remove())
}

// signal sends a signal to the processes of the cgroup that leave does not report.
// SIGKILL goes to all of them.
func (b *bounds) signal(s syscall.Signal, leave func(pid int) bool) {
	switch {
	case b.group == nil || s == 0:
	case s == syscall.SIGKILL:
		b.group.Kill()
	default:
		b.group.Signal(s, leave)
	}
}

// lives reports whether a process of the cgroup runs.
func (b *bounds) lives() bool { return b.group != nil && !b.group.Empty() }

// oom returns a function that reports whether the kernel has killed a process of the
// cgroup because memory ran out, nil when the cgroup does not count that.
func (b *bounds) oom() func() bool {
	if b.group == nil {
		return nil
	}
	for _, dir := range b.group.Dirs() {
		if _, counts := contain.OOMKills(dir); counts {
			return func() bool {
				kills, _ := contain.OOMKills(dir)
				return kills > 0
			}
		}
	}
	return nil
}

// close ends the cgroup of a program that was killed as it started.
func (b *bounds) close() error {
	if b.group != nil {
		b.group.End(killTakes)
	}
	return b.remove()
}

// remove removes the cgroup, which must be empty.
func (b *bounds) remove() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.group == nil || b.ended {
		return nil
	}
	b.usage = Usage(b.group.Usage())
	b.ended = true
	return b.group.Remove()
}

// state describes the bounds, nil when it bounds nothing.
func (b *bounds) state() *Containment {
	if !b.wanted && b.limits == (Limits{}) {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	c := &Containment{Limits: b.limits, Missing: slices.Clone(b.missing)}
	if b.group == nil {
		return c
	}
	usage := b.usage
	if !b.ended {
		usage = Usage(b.group.Usage())
	}
	c.Cgroups, c.Usage = b.group.Dirs(), &usage
	return c
}

// endBounds ends what is left of the cgroup and removes it. When the kernel does not
// end a process that was killed, the worker is abandoned, and gone once no process
// is left.
func (p *Process) endBounds() {
	if p.bounds.group == nil {
		return
	}
	if left := p.bounds.group.End(killTakes); len(left) > 0 {
		where := fmt.Sprintf("processes %v of its cgroup, which SIGKILL has not ended yet", left)
		p.abandon(&AbandonedError{Name: p.Name(), Where: where})
		p.bounds.group.End(0)
	}
	_ = p.bounds.remove() // the next process that uses the parent tries again
}
