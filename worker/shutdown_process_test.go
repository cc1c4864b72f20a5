//go:build unix

package worker_test

import (
	"os/exec"
	"testing"

	"github.com/pleme-io/lifecycle-go/worker"
)

// A process with BrutalKill gets no signal that it could handle.
func TestBrutalKillOfAProcess(t *testing.T) {
	out := newLines()
	spec := worker.CommandSpec("child", func() *exec.Cmd { return helperCommand("ignore", out) })
	spec.StopTimeout = worker.BrutalKill
	s := supervise(t, worker.SupervisorConfig{Children: []worker.Spec{spec}})
	out.await(t, "ready")
	if err := s.Stop(within(t)); err != nil {
		t.Errorf("Stop: %v", err)
	}
	<-s.Gone()
	if c, _ := s.Child("child"); c.Status != worker.StatusKilled || c.Exit == nil || c.Exit.Signal != "SIGKILL" || s.Status() != worker.StatusStopped {
		t.Errorf("it is %+v, %+v, the supervisor %s", c, c.Exit, s.Status())
	}
}
