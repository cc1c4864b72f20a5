package worker

import (
	"context"
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
// or they stay zombies for ever. A process that has made itself a child subreaper
// (prctl(2)) inherits processes too.
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
	for _, pid := range allPIDs() {
		if s, ok := readStat(pid); ok && s.ppid == self && s.state == 'Z' {
			zombies = append(zombies, pid)
		}
	}
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
