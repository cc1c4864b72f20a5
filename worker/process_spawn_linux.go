package worker

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

func dieWithParent(attr *syscall.SysProcAttr) {
	if attr.Pdeathsig == 0 {
		attr.Pdeathsig = syscall.SIGKILL
	}
}

// tracePause is the pause between two looks at a program that is about to stop.
const tracePause = 20 * time.Microsecond

// starter is the thread that starts processes. The kernel sends the parent-death
// signal when the *thread* that forked dies (prctl(2)), and the runtime may end
// any thread. So starter keeps one thread for as long as there are processes. It
// forks one process at a time, as package syscall does anyway.
var starter struct {
	mu    sync.Mutex // guards everything below
	users int        // processes that run or are being started
	jobs  chan func()
	ended chan struct{}
}

// startCommand starts cmd and then calls hold, unless it is nil. The program runs
// its first instruction only when hold has returned, where the system allows that.
// Otherwise it runs already. When cmd.Process is set, the program has started, even
// if there is an error, and processEnded must be called once it was reaped.
func startCommand(cmd *exec.Cmd, hold func() error) error {
	starter.mu.Lock()
	if starter.users == 0 {
		jobs, ended := make(chan func()), make(chan struct{})
		starter.jobs, starter.ended = jobs, ended
		go func() {
			defer close(ended)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for job := range jobs {
				job()
			}
		}()
	}
	starter.users++
	jobs := starter.jobs
	starter.mu.Unlock()
	result := make(chan error, 1)
	jobs <- func() { result <- startHeld(cmd, hold) }
	err := <-result
	if cmd.Process == nil {
		processEnded()
	}
	return err
}

// startHeld traces the program, as a debugger does, so that the kernel stops it
// before its first instruction. The calling thread is the tracer.
func startHeld(cmd *exec.Cmd, hold func() error) error {
	if hold == nil {
		return cmd.Start()
	}
	trace := canTrace() && !gainsPrivileges(cmd.Path)
	if trace {
		cmd.SysProcAttr.Ptrace = true
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if trace {
		awaitStopped(cmd.Process.Pid)
		defer letGo(cmd.Process.Pid)
	}
	return hold()
}

// canTrace reports whether this process may trace its children. A debugger that
// traces this process, the Yama security module, and filters of system calls forbid
// it. The program that it starts to find out has no name, so it never runs.
var canTrace = sync.OnceValue(func() bool {
	_, err := syscall.ForkExec("", nil, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{Ptrace: true}})
	return errors.Is(err, syscall.ENOENT)
})

// gainsPrivileges reports whether the program gets the rights of its file's owner
// or of the file. The kernel gives them to no program that is traced.
func gainsPrivileges(path string) bool {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
		return true
	}
	_, err = syscall.Getxattr(path, "security.capability", nil)
	return err == nil
}

// awaitStopped returns when the kernel has stopped the traced program, or the
// program has ended. It asks /proc, because waitid(2) returns it to one caller only.
func awaitStopped(pid int) {
	for {
		s, ok := readStat(pid)
		if !ok || s.state == 't' || s.state == 'Z' || s.state == 'X' {
			return
		}
		time.Sleep(tracePause)
	}
}

// letGo ends the tracing of the program, which goes on. The kernel allows that once
// it has stopped the program.
func letGo(pid int) {
	for syscall.PtraceDetach(pid) != nil {
		var info siginfo
		if waitid(idPID, pid, &info, hasEnded|syscall.WNOHANG) != 0 || info.signo != 0 {
			return // it has ended
		}
		time.Sleep(tracePause)
	}
}

func processEnded() {
	starter.mu.Lock()
	defer starter.mu.Unlock()
	starter.users--
	if starter.users == 0 {
		close(starter.jobs)
		<-starter.ended
	}
}
