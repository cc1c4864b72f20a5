package worker

import (
	"context"
	"os/exec"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// live waits for the end of the program and of its group, and stops them when ctx
// ends.
func (p *Process) live(own context.Context) error {
	runs, cancel := context.WithCancel(own)
	go func() {
		p.awaitExit()
		p.exited.Signal()
		cancel()
	}()
	oom := p.bounds.oom()
	if oom == nil {
		oom = watchOOM(p.cmd)
	}
	if p.ready != nil && runs.Err() == nil {
		asking := call.Start(p.Name(), func() error { p.awaitReady(runs); return nil })
		defer func() { _ = asking.Wait(runs.Done(), call.Settle) }() // a check that does not return is left to itself
	}
	select {
	case <-p.exited.Signaled():
	case <-own.Done():
	}
	grace := time.After(p.grace)
	ended := make(chan struct{}) // all of the group
	go func() {
		defer close(ended)
		<-p.exited.Signaled()
		p.awaitGroup(p.force.Signaled())
	}()
	select {
	case <-ended:
	default:
		if p.askProgram(grace) {
			p.ask(true)
			select {
			case <-ended:
			case <-grace:
			case <-p.force.Signaled():
			}
		}
		p.kill()
		p.force.Signal() // no process of the group needs a grace any more
		<-ended
	}
	p.kill() // the group is empty or dying, and its number is still ours
	outOfMemory := p.wasKilled && oom()
	waited := p.reap()
	killed, err := p.judge(own, waited, outOfMemory)
	p.exitRecorded.Signal()
	err = p.endStreams(waited, err, killed)
	if endedEarly := p.ready != nil && !p.isReady.Load() && own.Err() == nil; endedEarly && err == nil {
		err = ErrStartCondition
	}
	p.awaitDeath()
	p.endBounds()
	return err
}

// askProgram asks the program to stop, when it has not ended, and reports whether it ended
// within the grace.
func (p *Process) askProgram(grace <-chan time.Time) bool {
	select {
	case <-p.exited.Signaled():
		return true
	default:
	}
	p.ask(false)
	select {
	case <-p.exited.Signaled():
		return true
	case <-grace:
	case <-p.force.Signaled():
	}
	return false
}

// reap waits for the program, once.
func (p *Process) reap() error {
	p.reapOnce.Do(func() {
		if holdsZombie {
			// The program is a zombie now: do not signal it any more, because it
			// is about to be reaped.
			p.signalMu.Lock()
			p.reaped = true
			p.signalMu.Unlock()
		}
		p.reapErr = p.wait()
		p.signalMu.Lock()
		p.reaped = true
		p.signalMu.Unlock()
	})
	return p.reapErr
}

// wait waits for the program as the Wait of its command does, and leaves the pipes of
// the caller's (StdoutPipe) open, which may hold output that was not read yet.
func (p *Process) wait() error {
	state, err := p.cmd.Process.Wait()
	p.cmd.ProcessState = state
	if err == nil && !state.Success() {
		err = &exec.ExitError{ProcessState: state}
	}
	return err
}
