package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

const (
	defaultGrace     = 10 * time.Second
	defaultWaitDelay = 2 * time.Second
)

// Process is a worker that runs a program in a process group of its own.
//
// Stop and the end of the context given to Start send SIGTERM to the program alone, as
// the kubelet and tini do: a program with processes of its own, such as a server that
// forks before it serves, stops them in its own order ([WithGroupSignals] for one that
// does not). When the program has ended, then or by itself, the worker sends SIGTERM to
// what is left of the group before it is done, so that no grandchild runs beside the
// next instance. SIGKILL goes to the whole group, once the grace is over. The worker
// cannot reach a grandchild that has left the group (setsid), unless the program has a
// cgroup ([WithCgroup]). It signals no process after it was reaped.
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
	given   time.Duration // the grace, when an option has set it
	stopBy  syscall.Signal
	toGroup bool
	env     []string
	refused error // of the options
	bounds  bounds

	listeners []net.Listener
	ready     func(context.Context, *Process) error // nil for a program that is Running as soon as it has started
	isReady   atomic.Bool                           // ready has returned nil

	exited       fsm.Signal // the program has ended; other processes of its group may still run
	force        fsm.Signal // the grace ends early
	exitRecorded fsm.Signal // the exit is recorded
	held         fsm.Signal // HoldRestarts was called
	pipes        *pipes     // set before the program runs
	reapOnce     sync.Once
	reapErr      error
	wasKilled    bool // SIGKILL has ended the program, which is not reaped yet; set before exited is signaled

	signalMu sync.Mutex // held while signalling, guards everything below up to exitMu
	pid      int        // of the group and its leader; 0 before the start
	reaped   bool       // another process may have the number now
	asked    bool       // the stop signal was sent
	forced   bool       // SIGKILL was sent to the program while it ran

	exitMu sync.Mutex // guards exit
	exit   *Exit
}

// ProcessOption shapes a [Process].
type ProcessOption func(*Process)

// WithGrace sets how long the program may take to end when it is asked to stop.
// Then the worker kills it. Defaults to 10 seconds. The deadline of the context
// given to Stop shortens it: the worker kills the program a little before that
// deadline.
func WithGrace(d time.Duration) ProcessOption { return func(p *Process) { p.grace, p.given = d, d } }

// WithStopSignal sets the signal that asks the program to end. Defaults to
// SIGTERM.
func WithStopSignal(s syscall.Signal) ProcessOption { return func(p *Process) { p.stopBy = s } }

// WithGroupSignals sends the stop signal, and those of [Process.Signal], to the program's
// whole group, as a terminal does at Ctrl-C, and not to the program alone. It suits a
// program that leaves its processes to the signal, such as a shell script without a trap.
func WithGroupSignals() ProcessOption { return func(p *Process) { p.toGroup = true } }

// WithEnv adds variables, each "NAME=value", to the program's environment.
func WithEnv(vars ...string) ProcessOption {
	return func(p *Process) { p.env = append(p.env, vars...) }
}

// NewProcess returns a worker that runs cmd. Make cmd with [exec.Command] and set
// its Dir, Env, Stdin, Stdout, Stderr, ExtraFiles and SysProcAttr as needed. From
// then on the worker owns cmd: only the worker may start it and wait for it.
// Start refuses a command made by [exec.CommandContext]: to end the program, stop
// the worker. The program leads a group of its own: Setpgid and Pgid have no effect.
//
// The worker copies to and from a Stdin, Stdout and Stderr that is not a file. When the program
// fails, the worker's error has the last line of such a Stderr, or the message of a traceback;
// with a Stderr that is nil or a file it has neither.
// When the program has ended, the worker copies no more input. It does not wait
// for a Read of Stdin that is under way, and drops what that Read returns. It
// reads the rest of the output for WaitDelay, and then stops, because a process
// outside of the group may keep the output open; [Exit] says that it was Cut. A
// WaitDelay of 0 becomes 2 seconds.
//
// A pipe of StdinPipe, StdoutPipe or StderrPipe stays open when the program has
// ended, so that the caller can read the rest of the output. Close it then.
//
// With a nil Env the program gets this process's environment, without the variables
// that systemd sets for this process alone (NOTIFY_SOCKET, WATCHDOG_PID,
// WATCHDOG_USEC). A nil option is an error of Start.
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

// StopTime returns the grace of [WithGrace], and 0 without that option.
func (p *Process) StopTime() time.Duration { return p.given }

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
	return p.bounds.validate()
}

// Start runs the program. It returns nil once the kernel has started the program, or the shell
// that becomes it ([WithListeners]). Otherwise it returns an error, and the worker is Failed. Cancelling ctx asks
// the program to stop. Start adds the variables of a [Handover] that ctx carries
// to the program's environment.
func (p *Process) Start(ctx context.Context) error {
	own, err := p.beginWork(ctx)
	if err != nil {
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
		return p.refuse(err)
	}
	if p.ready == nil {
		p.markRunning(p.bounds.lacks())
	}
	call.Go(p.Name(), func() error { return p.live(own) }, func(err error) {
		processEnded()
		p.Finish(err)
	})
	return nil
}

// launch starts the program.
func (p *Process) launch(ctx context.Context) (err error) {
	p.shape(ctx)
	listeners, err := p.passListeners()
	if err != nil {
		return err
	}
	defer closeAll(listeners) // the program has copies
	if err := p.bounds.open(p.Name(), p.cmd.SysProcAttr); err != nil {
		return err
	}
	if p.pipes, err = newPipes(p.cmd); err != nil {
		return errors.Join(err, p.bounds.remove())
	}
	err = startCommand(p.cmd, p.bounds.holder(p.cmd))
	if p.cmd.Process == nil {
		p.pipes.close()
		return p.bounds.startFailed(err, p.cmd)
	}
	p.signalMu.Lock()
	p.pid = p.cmd.Process.Pid
	p.signalMu.Unlock()
	if err != nil { // a limit is refused
		p.pipes.close()
		p.kill()
		_ = p.reap() // its error says only that the program was killed
		processEnded()
		return errors.Join(err, p.bounds.close())
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

// PID returns the program's process id, 0 before it was started.
func (p *Process) PID() int {
	p.signalMu.Lock()
	defer p.signalMu.Unlock()
	return p.pid
}

// State describes the worker, with its process id, its limits and, once it has ended, its
// exit.
func (p *Process) State() State {
	s := p.BaseWorker.State()
	s.PID, s.Containment = p.PID(), p.bounds.state()
	p.exitMu.Lock()
	defer p.exitMu.Unlock()
	if p.exit != nil {
		exit := *p.exit
		exit.Status = s.Status
		s.Exit = &exit
	}
	return s
}
