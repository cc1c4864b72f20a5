package worker_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
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

// The numbers are the same on every architecture.
const (
	sysPidfdOpen = 434
	sysClone3    = 435
)

// On a system without pidfds, each wait takes a thread, and finds out the same.
func TestProcessEndsWithoutPidfd(t *testing.T) {
	for mode, want := range map[string]string{
		fmt.Sprintf("without:%d:ends", sysPidfdOpen): "pidfd false\n",
		"ends": "pidfd true\n",
	} {
		t.Run(mode, func(t *testing.T) {
			out := newLines()
			p := start(t, helperCommand(mode, out))
			<-p.Done()
			want += "Failed 3 \"\"\nFailed -1 \"SIGKILL\"\nFinished 0 \"\"\nStopped -1 \"SIGTERM\"\n"
			if got := filtered(t, out); got != want {
				t.Errorf("it said %q, want %q; %v", got, want, p.Err())
			}
		})
	}
}

// filtered returns what a helper under a filter has said.
func filtered(t *testing.T, out *lines) string {
	t.Helper()
	if strings.HasPrefix(out.String(), "no filter") {
		t.Skip("this machine allows no filter of system calls")
	}
	return out.String()
}

// beWithout becomes another helper, under a filter that refuses system calls, as
// the filter of a container engine does. arg is "NUMBER,NUMBER:HELPER".
func beWithout(arg string) {
	const setNoNewPrivs, setSeccomp, filterMode = 38, 22, 2 // of prctl(2)
	type instruction struct {                               // struct sock_filter
		code   uint16
		yes    uint8
		no     uint8
		number uint32
	}
	numbers, mode, _ := strings.Cut(arg, ":")
	program := []instruction{{code: 0x20}} // load the number of the system call
	for number := range strings.SplitSeq(numbers, ",") {
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			panic(err)
		}
		program = append(program,
			instruction{code: 0x15, yes: 0, no: 1, number: uint32(n)}, // is it this one?
			instruction{code: 0x06, number: 0x50000 | uint32(syscall.ENOSYS)})
	}
	program = append(program, instruction{code: 0x06, number: 0x7fff0000}) // allowed
	filter := struct {                                                     // struct sock_fprog
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
	next := helperCommand(mode, nil)
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
