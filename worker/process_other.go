//go:build !linux

package worker

import (
	"net"
	"os/exec"
)

// holdsZombie is false: this system shows the end of a process only after it was
// reaped. From then on the kernel may give its number to another process, but
// only after it has used all other numbers.
const holdsZombie = false

func startCommand(cmd *exec.Cmd, hold func() error) error {
	if err := cmd.Start(); err != nil || hold == nil {
		return err
	}
	return hold()
}

func processEnded() {}

// There are no listeners on this system, so no connection to one.
func acceptedSockets(net.Conn) []string { return nil }

func programHas(int, []string) bool { return false }

func (p *Process) awaitExit() { _ = p.reap() }

// awaitGroup and awaitDeath do not wait, because the system does not show which processes are in a
// group.
func (p *Process) awaitGroup(<-chan struct{}) {}

func (p *Process) awaitDeath() {}

func watchOOM(*exec.Cmd) func() bool { return func() bool { return false } }

// isStopped returns true, because the kernel has accepted the signal.
func (p *Process) isStopped() bool { return true }
