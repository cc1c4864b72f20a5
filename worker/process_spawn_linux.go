package worker

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

func dieWithParent(attr *syscall.SysProcAttr) {
	if attr.Pdeathsig == 0 {
		attr.Pdeathsig = syscall.SIGKILL
	}
}

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

// startCommand starts cmd. When it returns nil, processEnded must be called
// once the process was reaped.
func startCommand(cmd *exec.Cmd) error {
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
	jobs <- func() { result <- cmd.Start() }
	err := <-result
	if err != nil {
		processEnded()
	}
	return err
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
