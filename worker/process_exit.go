package worker

import (
	"context"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// signalledTogether is how long judge waits for a stop of the worker after the
// program has ended by a SIGTERM or SIGINT that we did not send. systemd and a
// terminal signal all processes at once, and the child may end before this
// process has begun its own stop.
const signalledTogether = 250 * time.Millisecond

// judge records the exit of the program. It returns the error that it means, and
// whether the worker had to kill the program.
func (p *Process) judge(own context.Context, err error, oom bool) (killed bool, _ error) {
	exit, signal := exitOf(p.cmd)
	p.signalMu.Lock()
	asked, forced := p.asked && own.Err() != nil, p.forced && own.Err() != nil
	p.signalMu.Unlock()
	byOther := signal == syscall.SIGTERM || signal == syscall.SIGINT
	switch {
	case err == nil:
	case forced && signal == syscall.SIGKILL && p.StopRequested():
		killed = true
		err = &KilledError{Name: p.Name(), Err: err}
	case asked && (signal == p.stopBy || exit.Code == 128+int(p.stopBy)):
		err = fmt.Errorf("%w: %w", ErrInterrupted, err)
	case byOther && p.stopsSoon(own):
		err = fmt.Errorf("%w: %w", ErrInterrupted, err)
	case signal == syscall.SIGKILL && oom:
		exit.OOM = true
		err = fmt.Errorf("out of memory: %w", err)
	}
	if err != nil {
		exit.Error = err.Error()
	}
	p.exitMu.Lock()
	p.exit = &exit
	p.exitMu.Unlock()
	return killed, err
}

// stopsSoon reports whether a stop is in progress or begins within a moment.
func (p *Process) stopsSoon(own context.Context) bool {
	select {
	case <-own.Done():
	case <-p.held.Signaled():
	case <-time.After(signalledTogether):
		return false
	}
	return true
}

// recordEnd adds to the exit what is known once the output has ended.
func (p *Process) recordEnd(err error, cut bool) {
	p.exitMu.Lock()
	defer p.exitMu.Unlock()
	p.exit.Cut = cut
	if err != nil {
		p.exit.Error = err.Error()
	}
}

// exitOf returns how a program ended, and the signal that ended it, 0 for none.
func exitOf(cmd *exec.Cmd) (exit Exit, signal syscall.Signal) {
	exit = Exit{Code: -1, At: time.Now()}
	state := cmd.ProcessState
	if state == nil {
		return exit, 0
	}
	exit.PID, exit.Code = state.Pid(), state.ExitCode()
	if signal = signalOf(state); signal != 0 {
		exit.Signal = signalName(signal)
	}
	return exit, signal
}
