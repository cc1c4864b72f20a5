//go:build !linux

package worker

import "os/exec"

// holdsZombie is false: a process is known to have ended once it was reaped.
// Its number is the kernel's to give away from then on; it does not do so for as
// long as the numbers have not all been used since.
const holdsZombie = false

func startCommand(cmd *exec.Cmd) error { return cmd.Start() }

func processEnded() {}

func (p *Process) awaitExit() { _ = p.reap() }

// awaitGroup does not wait: nothing says who is in a group.
func (p *Process) awaitGroup(<-chan struct{}) {}

func watchOOM(*exec.Cmd) func() bool { return func() bool { return false } }

// isStopped takes the kernel at its word that it has.
func (p *Process) isStopped() bool { return true }
