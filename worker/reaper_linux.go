package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// reapEvery is how often the reaper looks for orphans without a signal. A process
// that has ended before os.Process.Release makes no signal.
const reapEvery = time.Minute

// NewReaper returns a worker that reaps orphans. As PID 1 of a container, a
// process inherits every process whose parent has died. It has to wait for them,
// or they stay zombies for ever. [NewSubreaper] is for other processes.
//
// The reaper leaves alone the children that this process has started with
// os/exec, so a Wait for them gets their result. It recognizes them by the
// descriptor (pidfd) that package os holds for each child from fork to Wait. A
// kernel before 5.4 has no such descriptors; there the reaper reaps nothing. A child
// that was started in another way (syscall.ForkExec, fork of C code) has none
// either, and its result goes to the reaper or to the code that waits for it.
//
// On other systems than Linux the worker runs and does nothing. It is harmless in
// a process that inherits no other processes.
func NewReaper(name string) *Func { return NewFunc(name, reap) }

// NewSubreaper returns a worker that makes this process a child subreaper
// (prctl(2)) and reaps orphans, as the worker of [NewReaper] does. While it runs, every
// descendant of this process whose parent dies becomes a child of this process,
// not of PID 1. That is for a process under a PID 1 that reaps nothing.
//
// It concerns the whole process, so there can be one at a time: a second fails. On
// a kernel before 5.4 and on other systems than Linux the worker fails with an error
// that is [errors.ErrUnsupported]. When the worker ends, this process inherits no
// more processes. One that it has inherited and that ends later stays a zombie until
// this process ends.
func NewSubreaper(name string) *Func {
	return NewFunc(name, func(ctx context.Context) error {
		if !hasPidfd() {
			return fmt.Errorf("this kernel has no pidfds, by which to tell orphans from children of package os/exec: %w",
				errors.ErrUnsupported)
		}
		if !subreaping.TryLock() {
			return errors.New("this process has a subreaper already")
		}
		defer subreaping.Unlock()
		if err := setSubreaper(1); err != nil {
			return err
		}
		defer func() { _ = setSubreaper(0) }() // it has worked with 1
		return reap(ctx)
	})
}

// subreaping is locked while a subreaper runs.
var subreaping sync.Mutex

func setSubreaper(on uintptr) error {
	const setChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, setChildSubreaper, on, 0, 0, 0, 0); errno != 0 {
		return os.NewSyscallError("prctl", errno)
	}
	return nil
}

// reap reaps orphans until ctx ends.
func reap(ctx context.Context) error {
	died := make(chan os.Signal, 1) // one token: each look finds all orphans
	signal.Notify(died, syscall.SIGCHLD)
	defer signal.Stop(died)
	again := time.NewTicker(reapEvery)
	defer again.Stop()
	for {
		reapOrphans()
		select {
		case <-died:
		case <-again.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reapOrphans reaps every zombie child of this process that no goroutine can wait
// for. It returns their number.
func reapOrphans() (reaped int) {
	var zombies []int
	self := os.Getpid()
	eachPID(func(pid int) bool {
		if s, ok := readStat(pid); ok && s.ppid == self && s.state == 'Z' {
			zombies = append(zombies, s.pid)
		}
		return true
	})
	if len(zombies) == 0 {
		return 0
	}
	// The order matters: a zombie child of os/exec has its descriptor until it is
	// reaped, and until then its number is not used again.
	ours, ok := ownChildren()
	if !ok {
		return 0
	}
	for _, pid := range zombies {
		if ours[pid] {
			continue
		}
		if got, err := syscall.Wait4(pid, nil, syscall.WNOHANG, nil); err == nil && got == pid {
			reaped++
		}
	}
	return reaped
}

// ownChildren returns the processes of which this process holds a pidfd. ok is
// false when it cannot tell.
func ownChildren() (pids map[int]bool, ok bool) {
	const dir = "/proc/self/fdinfo"
	if !hasPidfd() {
		return nil, false
	}
	infos, err := os.ReadDir(dir)
	if err != nil {
		return nil, false
	}
	pids = make(map[int]bool)
	for _, info := range infos {
		text, err := os.ReadFile(filepath.Join(dir, info.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		for line := range strings.Lines(string(text)) {
			if n, found := strings.CutPrefix(line, "Pid:"); found {
				if pid, err := strconv.Atoi(strings.TrimSpace(n)); err == nil {
					pids[pid] = true
				}
			}
		}
	}
	return pids, true
}

// hasPidfd reports whether package os uses pidfds here. Package os finds out by
// starting a process, so no program pays for that at its start.
var hasPidfd = sync.OnceValue(func() bool {
	p, err := os.FindProcess(os.Getpid())
	if err != nil {
		return false
	}
	has := p.WithHandle(func(uintptr) {}) == nil
	return p.Release() == nil && has
})
