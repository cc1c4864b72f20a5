//go:build !linux

package worker

import "os/exec"

// holdsZombie is false: a process is known to have ended once it was reaped. From
// then on the kernel may give its number to another process; it does so only after it
// has used all others.
const holdsZombie = false

func startCommand(cmd *exec.Cmd) error { return cmd.Start() }

func processEnded() {}

func (p *Process) awaitExit() { _ = p.reap() }

// awaitGroup does not wait: the system does not say which processes are in a group.
func (p *Process) awaitGroup(<-chan struct{}) {}

func watchOOM(*exec.Cmd) func() bool { return func() bool { return false } }

// isStopped trusts the kernel, which has accepted the signal.
func (p *Process) isStopped() bool { return true }
