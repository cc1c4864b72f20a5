package worker_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"github.com/pleme-io/lifecycle-go/worker"
)

func TestWaitingForProcessesTakesNoThreads(t *testing.T) {
	const processes = 400
	before := threads(t)
	var all []*worker.Process
	for range processes {
		all = append(all, start(t, exec.Command("sleep", "3600")))
	}
	if more := threads(t) - before; more > processes/4 {
		t.Errorf("%d processes take %d threads", processes, more)
	}
	var stops sync.WaitGroup
	for _, p := range all {
		stops.Go(func() {
			if err := p.Stop(within(t)); err != nil || p.Status() != worker.StatusStopped {
				t.Errorf("Stop: %v, it is %s", err, p.Status())
			}
		})
	}
	stops.Wait()
}

// threads returns the number of threads of this process.
func threads(t *testing.T) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}

// On a system without pidfds, each wait takes a thread, and finds out the same.
func TestProcessEndsWithoutPidfd(t *testing.T) {
	for mode, want := range map[string]string{
		"nopidfd": "pidfd false\n",
		"ends":    "pidfd true\n",
	} {
		t.Run(mode, func(t *testing.T) {
			out := newLines()
			p := start(t, helperCommand(mode, out))
			<-p.Done()
			want += "Failed 3 \"\"\nFailed -1 \"SIGKILL\"\nFinished 0 \"\"\nStopped -1 \"SIGTERM\"\n"
			if strings.HasPrefix(out.String(), "no filter") {
				t.Skip("this machine allows no filter of system calls")
			}
			if got := out.String(); got != want {
				t.Errorf("it said %q, want %q; %v", got, want, p.Err())
			}
		})
	}
}

// beWithoutPidfd runs the helper "ends" under a filter that refuses pidfd_open,
// as the filter of an old container engine does.
func beWithoutPidfd() {
	const (
		setNoNewPrivs, setSeccomp, filterMode = 38, 22, 2 // of prctl(2)
		pidfdOpen                             = 434       // the same number on every architecture
	)
	type instruction struct { // struct sock_filter
		code   uint16
		yes    uint8
		no     uint8
		number uint32
	}
	program := []instruction{
		{code: 0x20}, // load the number of the system call
		{code: 0x15, yes: 0, no: 1, number: pidfdOpen}, // is it this one?
		{code: 0x06, number: 0x50000 | uint32(syscall.ENOSYS)},
		{code: 0x06, number: 0x7fff0000}, // allowed
	}
	filter := struct { // struct sock_fprog
		length uint16
		first  *instruction
	}{uint16(len(program)), &program[0]}
	runtime.LockOSThread() // the filter is of this thread, and after the exec of the whole process
	for _, args := range [][3]uintptr{{setNoNewPrivs, 1, 0}, {setSeccomp, filterMode, uintptr(unsafe.Pointer(&filter))}} {
		if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, args[0], args[1], args[2], 0, 0, 0); errno != 0 {
			fmt.Println("no filter:", errno)
			return
		}
	}
	next := helperCommand("ends", nil)
	panic(syscall.Exec(next.Path, next.Args, next.Environ()))
}

// endInSeveralWays runs processes that end in different ways and says how they did.
func endInSeveralWays() {
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		panic(err)
	}
	fmt.Println("pidfd", self.WithHandle(func(uintptr) {}) == nil)
	for _, mode := range []string{"exit:3", "suicide:9", "exit:0", "sleep"} {
		out := newLines()
		p := worker.NewProcess(mode, helperCommand(mode, out))
		if err := p.Start(context.Background()); err != nil {
			panic(err)
		}
		if mode == "sleep" {
			for out.String() == "" {
				<-out.more
			}
			_ = p.Stop(context.Background())
		}
		<-p.Done()
		exit := p.State().Exit
		fmt.Printf("%s %d %q\n", exit.Status, exit.Code, exit.Signal)
	}
}
