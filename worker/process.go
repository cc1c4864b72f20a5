package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

const (
	defaultGrace     = 10 * time.Second
	defaultWaitDelay = 2 * time.Second
	// signalledTogether is how long judge waits for a stop of the worker after the
	// program has ended by a SIGTERM or SIGINT that we did not send. systemd and a
	// terminal signal all processes at once, and the child may end before this
	// process has begun its own stop.
	signalledTogether = 250 * time.Millisecond
)

// Process is a worker that runs a program in a process group of its own.
//
// Stop and the end of the context given to Start signal the whole group: SIGTERM
// first, and SIGKILL once the grace is over. When the program has ended by
// itself, the worker ends the other processes of the group in the same way before
// it is done, so that no grandchild runs beside the next instance. It cannot
// reach a grandchild that has left the group (setsid). It signals no process
// after it was reaped.
//
// The worker is Stopped when the program dies of the signal that the worker sent,
// or exits with 128 plus its number, as shells and the JVM do. It is Killed when
// the worker had to kill the program, and Failed when another process ended it.
// There is one exception, because service managers signal all processes at once:
// when a stop is in progress, an end by SIGTERM or SIGINT counts as Stopped.
//
// On Linux the kernel kills the program when this process dies. On other Unix
// systems the program then runs on, and the worker kills the rest of the group
// without a grace when the program has ended. On Windows the worker has neither
// signals nor groups: a stop ends only the program, at once and by force.
type Process struct {
	BaseWorker
	cmd     *exec.Cmd
	grace   time.Duration
	stopBy  syscall.Signal
	env     []string
	refused error // of the options

	begun     sync.Mutex // orders the begin of Start against Stop
	cancel    context.CancelCauseFunc
	exited    fsm.Signal // the program has ended; other processes of its group may still run
	force     fsm.Signal // the grace ends early
	known     fsm.Signal // the exit is recorded
	held      fsm.Signal // HoldRestarts was called
	pipes     *pipes     // set before the program runs
	reapOnce  sync.Once
	reapErr   error
	wasKilled bool // a signal ended the program, as far as is known before it is reaped; set before exited is signaled

	sig    sync.Mutex // held while signalling, guards everything below up to exitMu
	pid    int        // of the group and its leader; 0 before the start
	reaped bool       // another process may have the number now
	asked  bool       // the stop signal was sent
	forced bool       // SIGKILL was sent to the program while it ran

	exitMu sync.Mutex // guards exit
	exit   *Exit
}

// ProcessOption shapes a [Process].
type ProcessOption func(*Process)

// WithGrace sets how long the program may take to end when it is asked to stop.
// Then the worker kills it. Defaults to 10 seconds. The deadline of the context
// given to Stop shortens it: the worker kills the program a little before that
// deadline.
func WithGrace(d time.Duration) ProcessOption { return func(p *Process) { p.grace = d } }

// WithStopSignal sets the signal that asks the program to end. Defaults to
// SIGTERM.
func WithStopSignal(s syscall.Signal) ProcessOption { return func(p *Process) { p.stopBy = s } }

// WithEnv adds variables, each "NAME=value", to the program's environment.
func WithEnv(vars ...string) ProcessOption {
	return func(p *Process) { p.env = append(p.env, vars...) }
}

// NewProcess returns a worker that runs cmd. Make cmd with [exec.Command] and set
// its Dir, Env, Stdin, Stdout, Stderr, ExtraFiles and SysProcAttr as needed. From
// then on the worker owns cmd: only the worker may start it and wait for it.
// Start refuses a command made by [exec.CommandContext]: to end the program, stop
// the worker.
//
// The worker copies to and from a Stdin, Stdout and Stderr that is not a file.
// When the program has ended, the worker copies no more input. It does not wait
// for a Read of Stdin that is under way, and drops what that Read returns. It
// reads the rest of the output for WaitDelay, and then stops, because a process
// outside of the group may keep the output open; [Exit] says that it was Cut. A
// WaitDelay of 0 becomes 2 seconds.
//
// An Env of nil means
// this process's environment, without the variables that systemd means for this
// process alone (NOTIFY_SOCKET, WATCHDOG_PID, WATCHDOG_USEC). A nil option is an
// error of Start.
func NewProcess(name string, cmd *exec.Cmd, opts ...ProcessOption) *Process {
	p := &Process{cmd: cmd, grace: defaultGrace, stopBy: syscall.SIGTERM}
	p.Init("process", name)
	for i, opt := range opts {
		if opt == nil {
			p.refused = nilOption(i)
			continue
		}
		opt(p)
	}
	return p
}

func (p *Process) validate() error {
	switch {
	case p.refused != nil:
		return p.refused
	case p.cmd == nil:
		return errors.New("there is no command: want one made by exec.Command")
	case p.cmd.Cancel != nil:
		return errors.New("the command was made by exec.CommandContext: use exec.Command, the worker's context stops it")
	case p.cmd.Process != nil:
		return errors.New("the command was started before: want one of its own for each worker")
	case p.grace < 0:
		return fmt.Errorf("grace is %v, want 0 or more", p.grace)
	case p.stopBy <= 0:
		return fmt.Errorf("stop signal is %d, want a signal", p.stopBy)
	}
	return nil
}

// Start runs the program. It returns nil once the kernel has started the program.
// Otherwise it returns an error, and the worker is Failed. Cancelling ctx asks
// the program to stop. Start adds the variables of a [Handover] that ctx carries
// to the program's environment.
func (p *Process) Start(ctx context.Context) error {
	own, cancel := context.WithCancelCause(ctx)
	p.begun.Lock()
	err := p.Begin(own)
	if err == nil {
		p.cancel = cancel
	}
	p.begun.Unlock() // the kernel may take long to start the program, and Stop must not wait for that
	if err != nil {
		cancel(nil)
		return err
	}
	err = p.validate()
	if err == nil {
		err = p.launch(ctx)
		if _, missing := os.Stat(p.cmd.Dir); errors.Is(err, fs.ErrNotExist) && p.cmd.Dir != "" && missing != nil {
			err = missing // the kernel does not say which of the two is missing
		}
	}
	if err != nil {
		err = fmt.Errorf("start %s: %w", p.Name(), err)
		p.Finish(err)
		cancel(nil)
		return err
	}
	p.sig.Lock()
	p.pid = p.cmd.Process.Pid
	p.sig.Unlock()
	p.MarkRunning()
	call.Go(p.Name(), func() error { return p.live(own) }, func(err error) {
		processEnded()
		p.Finish(err)
		cancel(nil)
	})
	return nil
}

// launch starts the program.
func (p *Process) launch(ctx context.Context) (err error) {
	p.shape(ctx)
	if p.pipes, err = newPipes(p.cmd); err != nil {
		return err
	}
	if err := startCommand(p.cmd); err != nil {
		p.pipes.close()
		return err
	}
	p.pipes.start(p.Name())
	return nil
}

// shape completes the caller's command.
func (p *Process) shape(ctx context.Context) {
	if p.cmd.WaitDelay == 0 {
		p.cmd.WaitDelay = defaultWaitDelay
	}
	env, inherited := p.cmd.Environ(), p.cmd.Env == nil
	if inherited {
		env = slices.DeleteFunc(env, func(v string) bool {
			name, _, _ := strings.Cut(v, "=")
			return name == "NOTIFY_SOCKET" || name == "WATCHDOG_PID" || name == "WATCHDOG_USEC"
		})
	}
	if h, ok := HandoverFrom(ctx); ok {
		env = append(env, h.Environ()...)
	}
	p.cmd.Env = append(env, p.env...)
	ownGroup(p.cmd)
}

// live waits for the end of the program and of its group, and stops them when ctx
// ends.
func (p *Process) live(own context.Context) error {
	go func() {
		p.awaitExit()
		p.exited.Signal()
	}()
	oom := watchOOM(p.cmd)
	select {
	case <-p.exited.Signaled():
	case <-own.Done():
	}
	grace := time.NewTimer(p.grace)
	defer grace.Stop()
	ended := make(chan struct{}) // all of the group
	go func() {
		defer close(ended)
		<-p.exited.Signaled()
		p.awaitGroup(p.force.Signaled())
	}()
	select {
	case <-ended:
	default:
		p.ask()
		select {
		case <-ended:
		case <-grace.C:
		case <-p.force.Signaled():
		}
		p.kill()
		p.forceNow() // no process of the group needs a grace any more
		<-ended
	}
	p.kill() // the group is empty or dying, and its number is still ours
	outOfMemory := p.wasKilled && oom()
	waited := p.reap()
	killed, err := p.judge(own, waited, outOfMemory)
	p.known.Signal()
	return p.endStreams(waited, err, killed)
}

// ask asks the group to stop. A stopped process gets no signal but SIGKILL
// before it is continued.
func (p *Process) ask() {
	p.sig.Lock()
	defer p.sig.Unlock()
	if !p.reaped && !p.forced {
		p.asked = true
		_ = p.signalLocked(p.stopBy) // without permission to signal the group, the worker can only wait for its end
		_ = p.signalLocked(sigCont)
	}
}

func (p *Process) kill() {
	p.sig.Lock()
	defer p.sig.Unlock()
	if p.pid == 0 || p.reaped {
		return
	}
	select {
	case <-p.exited.Signaled(): // only the rest of the group was killed
	default:
		p.forced = true
	}
	_ = p.signalLocked(syscall.SIGKILL)
}

// reap waits for the program, once.
func (p *Process) reap() error {
	p.reapOnce.Do(func() {
		if holdsZombie {
			// The program is a zombie now: do not signal it any more, because it
			// is about to be reaped.
			p.sig.Lock()
			p.reaped = true
			p.sig.Unlock()
		}
		p.reapErr = p.cmd.Wait()
		p.sig.Lock()
		p.reaped = true
		p.sig.Unlock()
	})
	return p.reapErr
}

// judge records the exit of the program. It returns the error that it means, and
// whether the worker had to kill the program.
func (p *Process) judge(own context.Context, err error, oom bool) (killed bool, _ error) {
	exit := exitOf(p.cmd)
	p.sig.Lock()
	asked, forced := p.asked && own.Err() != nil, p.forced && own.Err() != nil
	p.sig.Unlock()
	byOther := exit.signal == syscall.SIGTERM || exit.signal == syscall.SIGINT
	switch {
	case err == nil:
	case forced && exit.signal == syscall.SIGKILL && p.StopRequested():
		killed = true
		err = &KilledError{Name: p.Name(), Err: err}
	case asked && (exit.signal == p.stopBy || exit.Code == 128+int(p.stopBy)):
		err = fmt.Errorf("%w: %w", ErrInterrupted, err)
	case byOther && p.stopsSoon(own):
		err = fmt.Errorf("%w: %w", ErrInterrupted, err)
	case exit.signal == syscall.SIGKILL && oom:
		exit.OOM = true
		err = fmt.Errorf("out of memory: %w", err)
	}
	if err != nil {
		exit.Error = err.Error()
	}
	p.exitMu.Lock()
	p.exit = &exit.Exit
	p.exitMu.Unlock()
	return killed, err
}

// stopsSoon reports whether a stop is in progress or begins within a moment.
func (p *Process) stopsSoon(own context.Context) bool {
	timer := time.NewTimer(signalledTogether)
	defer timer.Stop()
	select {
	case <-own.Done():
	case <-p.held.Signaled():
	case <-timer.C:
		return false
	}
	return true
}

// HoldRestarts tells the worker that a stop is in progress: from now on an end by
// SIGTERM or SIGINT is not a failure. An App calls it when it begins to drain.
func (p *Process) HoldRestarts() { p.held.Signal() }

// Stop asks the program to end, and waits until the program and its group have
// ended. It kills them when the grace is over or ctx is about to end. When ctx
// ends before the kernel has ended a killed program, the worker is Killed at once
// and the error is an [*AbandonedError]. [BaseWorker.Gone] closes when the
// program has ended.
func (p *Process) Stop(ctx context.Context) error {
	p.begun.Lock()
	live, cancel := p.RequestStop(ErrStopRequested), p.cancel
	p.begun.Unlock()
	if cancel != nil {
		cancel(stopCause(ctx))
	}
	if !live {
		return p.killedErr()
	}
	if deadline, ok := ctx.Deadline(); ok {
		// The kernel needs a moment to end killed processes.
		left := time.Until(deadline)
		last := time.AfterFunc(left-min(left/10, 500*time.Millisecond), p.forceNow)
		defer last.Stop()
	}
	select {
	case <-p.Done():
		return p.killedErr()
	case <-ctx.Done():
	}
	p.kill()
	p.forceNow()
	select {
	case <-p.Done(): // both were ready
		return p.killedErr()
	default:
	}
	var err error = &AbandonedError{Name: p.Name(), Where: fmt.Sprintf("process %d, which SIGKILL has not ended yet", p.PID())}
	select {
	case <-p.exited.Signaled():
		<-p.known.Signaled() // no process of the group is waited for any more
		if blocked := p.pipes.blocked(p.Name()); blocked != nil {
			err = blocked
			p.recordEnd(err, true)
		}
	default:
	}
	if p.Kill(err) {
		return err
	}
	return p.killedErr()
}

func (p *Process) forceNow() { p.force.Signal() }

// PID returns the program's process id, 0 before it was started.
func (p *Process) PID() int {
	p.sig.Lock()
	defer p.sig.Unlock()
	return p.pid
}

// Signal sends a signal to the whole group. Before the start and after the end
// it returns [os.ErrProcessDone].
func (p *Process) Signal(s syscall.Signal) error {
	p.sig.Lock()
	defer p.sig.Unlock()
	if p.pid == 0 || p.reaped {
		return fmt.Errorf("signal %s: %w", p.Name(), os.ErrProcessDone)
	}
	if err := p.signalLocked(s); err != nil {
		return fmt.Errorf("signal %s: %w", p.Name(), err)
	}
	return nil
}

// State describes the worker, with its process id and, once it has ended, its
// exit.
func (p *Process) State() State {
	s := p.BaseWorker.State()
	s.PID = p.PID()
	p.exitMu.Lock()
	defer p.exitMu.Unlock()
	if p.exit != nil {
		exit := *p.exit
		exit.Status = s.Status
		s.Exit = &exit
	}
	return s
}

// processExit is an Exit with the signal as a number.
type processExit struct {
	Exit
	signal syscall.Signal // 0 for none
}

func exitOf(cmd *exec.Cmd) processExit {
	e := processExit{Exit: Exit{Code: -1, At: time.Now()}}
	state := cmd.ProcessState
	if state == nil {
		return e
	}
	e.PID, e.Code = state.Pid(), state.ExitCode()
	if e.signal = signalOf(state); e.signal != 0 {
		e.Signal = signalName(e.signal)
	}
	return e
}
