package worker

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// A process that has ended has no sockets. Without CAP_SYS_PTRACE the kernel hides what a process has
// that is not reaped yet, as it does for one that has changed its user.
func TestFamilyHasNoUnreapedProcess(t *testing.T) {
	live, ended := exec.Command("cat"), exec.Command("true")
	in, err := live.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []*exec.Cmd{live, ended} {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
	}
	defer in.Close()
	for {
		s, ok := readStat(ended.Process.Pid)
		if !ok {
			t.Fatal("there is no process to reap")
		}
		if s.state == 'Z' {
			break
		}
		time.Sleep(time.Millisecond)
	}
	family := familyOf(os.Getpid())
	if !family[os.Getpid()] || !family[live.Process.Pid] || family[ended.Process.Pid] {
		t.Errorf("the family is %v, want %d and %d, without %d",
			family, os.Getpid(), live.Process.Pid, ended.Process.Pid)
	}
}
