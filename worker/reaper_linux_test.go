package worker_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// The reaper and package exec, side by side in one process: see beSubreaper.
func TestReaperStealsNothing(t *testing.T) {
	out := newLines()
	p := start(t, helperCommand("subreaper", out))
	<-p.Done()
	if got := out.String(); got != "stolen 0, not inherited 0, left 0\n" {
		t.Errorf("it is %s, %v, said %q", p.Status(), p.Err(), got)
	}
}

// beSubreaper inherits orphans while plain commands run beside them. It waits for
// some of these long after they have ended.
func beSubreaper() {
	const setChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER of prctl(2)
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, setChildSubreaper, 1, 0, 0, 0, 0); errno != 0 {
		panic(errno)
	}
	reaper := worker.NewReaper("reaper")
	_ = reaper.Start(context.Background())

	var stolen, lost atomic.Int32
	var late []*exec.Cmd
	for code := range 20 {
		cmd := exec.Command("sh", "-c", fmt.Sprint("exit ", code))
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		late = append(late, cmd)
	}
	check := func(cmd *exec.Cmd, err error, code int) {
		if err != nil && cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code {
			fmt.Println(err)
			stolen.Add(1)
		}
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 20 {
				code := (i*20 + n) % 100
				cmd := exec.Command("sh", "-c", fmt.Sprint("sleep 0.01 & exit ", code)) // leaves an orphan
				check(cmd, cmd.Run(), code)
			}
		})
		all.Go(func() {
			left, err := exec.Command("sh", "-c", "sleep 3600 >/dev/null 2>&1 & echo $!").Output()
			if err != nil {
				stolen.Add(1)
			}
			pid, _ := strconv.Atoi(string(bytes.TrimSpace(left)))
			if pid == 0 {
				lost.Add(1)
				return
			}
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			_ = syscall.Kill(pid, syscall.SIGKILL) // the reaper reaps it, too
			_, rest, _ := strings.Cut(string(stat), ") ")
			if fields := strings.Fields(rest); len(fields) < 2 || fields[1] != strconv.Itoa(os.Getpid()) {
				fmt.Println(string(stat), err)
				lost.Add(1)
			}
		})
	}
	all.Wait()
	for code, cmd := range late {
		check(cmd, cmd.Wait(), code)
	}
	left := 1
	for end := time.Now().Add(30 * time.Second); left > 0 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		left = childrenOf(os.Getpid())
	}
	_ = reaper.Stop(context.Background())
	fmt.Printf("stolen %d, not inherited %d, left %d\n", stolen.Load(), lost.Load(), left)
}
