package worker_test

import (
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

// A process that runs takes one thread, as with package exec.
func TestProcessTakesOneThread(t *testing.T) {
	const processes = 100
	before := threads(t)
	var all []*worker.Process
	for range processes {
		all = append(all, start(t, exec.Command("sleep", "3600")))
	}
	if more := threads(t) - before; more > processes+20 {
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

// filtered returns what a helper under a filter has said.
func filtered(t *testing.T, out *lines) string {
	t.Helper()
	if strings.HasPrefix(out.String(), "no filter") {
		t.Skip("this machine allows no filter of system calls")
	}
	return out.String()
}

// beWithout becomes another helper, under a filter that refuses system calls, as
// the filter of a container engine does. arg is "NUMBER:HELPER".
func beWithout(arg string) {
	const setNoNewPrivs, setSeccomp, filterMode = 38, 22, 2 // of prctl(2)
	type instruction struct {                               // struct sock_filter
		code   uint16
		yes    uint8
		no     uint8
		number uint32
	}
	number, mode, _ := strings.Cut(arg, ":")
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		panic(err)
	}
	program := []instruction{
		{code: 0x20}, // load the number of the system call
		{code: 0x15, yes: 0, no: 1, number: uint32(n)}, // is it this one?
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
	next := helperCommand(mode, nil)
	panic(syscall.Exec(next.Path, next.Args, next.Environ()))
}
