package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Strategy says which children of a [Supervisor] are restarted when one is.
type Strategy string

// The strategies. With each of them the [Restart] policy of the child that ended
// decides whether children are restarted, and the backoff decides when.
const (
	OneForOne  Strategy = "one-for-one"  // the child alone; the default
	OneForAll  Strategy = "one-for-all"  // all children
	RestForOne Strategy = "rest-for-one" // the child, and the children that were added after it
)

// Restart says after which ends a supervisor restarts a child.
type Restart string

// The policies. Always, OnFailure and Temporary are Erlang's permanent, transient and
// temporary. With each of them a child that ends with [ErrDoNotRestart] is done, and
// one that ends with [ErrTerminate] ends its supervisor.
const (
	Always    Restart = "always"     // after every end; the default
	OnFailure Restart = "on-failure" // after Failed and Killed, not after Finished and Stopped
	Never     Restart = "never"      // after no end, and not when the strategy restarts its siblings; the State shows how the child ended
	Temporary Restart = "temporary"  // like Never, and the supervisor forgets the child when it ends
)

// BrutalKill is a StopTimeout of [Spec]: the supervisor does not wait for the end of
// the child. A process is killed, and a function is abandoned as its context is
// cancelled. A child that is Killed in this way does not make its supervisor Killed.
const BrutalKill time.Duration = -2

// Spec describes one child of a [Supervisor]. The zero value of a field is its
// default.
type Spec struct {
	// Name identifies the child among its siblings.
	Name string
	// New makes an instance, which must have the given name. The supervisor calls
	// it for each start, because a worker starts only once. When New returns an
	// error or nil, or panics, the start has failed. The supervisor treats a
	// failed start like a failed child.
	New func(name string) (Worker, error)
	// Restart defaults to Always.
	Restart Restart
	// Backoff says how long the child waits before a restart. It replaces the
	// supervisor's. Its MaxRestarts and Window must be zero: only the supervisor
	// has those.
	Backoff Backoff
	// StartTimeout bounds New, Start and the wait until the child is Running; a
	// child that takes longer has failed. Defaults to 1 minute.
	StartTimeout time.Duration
	// StopTimeout bounds the child's Stop. Defaults to 15 seconds, and for a
	// Supervisor to the time that its children may take. The child gets less when
	// less time remains for the stop of the whole tree. [NoLimit] sets no other
	// bound than that one, and [BrutalKill] leaves the child no time. A Stop that
	// does not return when its context ends is given up a second later.
	StopTimeout time.Duration
	// Probe returns the health of the running child. Nil means the child's own
	// Probe, if it is a [Prober].
	Probe func(ctx context.Context) ProbeResult
	// ProbePeriod is the time from one probe to the next. Defaults to 10 seconds.
	// With [NoLimit] only [Supervisor.Inspect] probes the child.
	ProbePeriod time.Duration
	// ProbeTimeout is how long a probe may take. Defaults to 1 second.
	ProbeTimeout time.Duration
	// RestartUnhealthy is the number of failed probes in a row that count as a
	// failure of the child. The supervisor then restarts it under its policy and
	// backoff. 0 means never.
	RestartUnhealthy int
	// Significant lets the end of the child end its supervisor, as the supervisor's
	// AutoShutdown says. It needs a Restart that lets the child end: OnFailure,
	// Never or Temporary.
	Significant bool
}

const (
	defaultStartTimeout = time.Minute
	defaultStopTimeout  = 15 * time.Second
	defaultProbePeriod  = 10 * time.Second
	defaultProbeTimeout = time.Second
)

// FuncSpec describes a child that runs a function.
func FuncSpec(name string, fn func(context.Context) error, opts ...FuncOption) Spec {
	return Spec{Name: name, New: func(name string) (Worker, error) {
		return NewFunc(name, fn, opts...), nil
	}}
}

// CommandSpec describes a child that runs a program. The supervisor calls command
// for each start, because an [exec.Cmd] cannot be used twice.
func CommandSpec(name string, command func() *exec.Cmd, opts ...ProcessOption) Spec {
	return Spec{Name: name, New: func(name string) (Worker, error) {
		if command == nil {
			return nil, errors.New("there is no function that makes the command")
		}
		return NewProcess(name, command(), opts...), nil
	}}
}

// Validate returns an error that names each invalid field and the values that it
// takes.
func (s Spec) Validate() error {
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("child %q: "+format, append([]any{s.Name}, args...)...))
	}
	if s.Name == "" {
		fault("the name is empty")
	}
	if s.New == nil {
		fault("New is nil, want a function that makes an instance")
	}
	switch s.Restart {
	case "", Always, OnFailure, Never, Temporary:
	default:
		fault("Restart is %q, want %q, %q, %q or %q", s.Restart, Always, OnFailure, Never, Temporary)
	}
	if s.Significant && (s.Restart == "" || s.Restart == Always) {
		fault("it is Significant, but is restarted after every end; want a Restart of %q, %q or %q",
			OnFailure, Never, Temporary)
	}
	if s.Restart == Temporary && s.RestartUnhealthy > 0 {
		fault("RestartUnhealthy is %d, but a Temporary child is never restarted; want 0, or a Restart of %q",
			s.RestartUnhealthy, OnFailure)
	}
	if s.Restart == Temporary && s.Backoff != (Backoff{}) {
		fault("it has a Backoff, but a Temporary child is never restarted; want none, or a Restart of %q", OnFailure)
	}
	if s.Backoff.MaxRestarts != 0 || s.Backoff.Window != 0 {
		fault("Backoff has MaxRestarts or Window, which belong to the supervisor's")
	}
	if err := s.Backoff.Validate(); err != nil {
		fault("%w", err)
	}
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"StartTimeout", s.StartTimeout}, {"ProbeTimeout", s.ProbeTimeout}} {
		if d.value < 0 {
			fault("%s is %v, want more than 0", d.field, d.value)
		}
	}
	if s.StopTimeout < 0 && s.StopTimeout != NoLimit && s.StopTimeout != BrutalKill {
		fault("StopTimeout is %v, want more than 0, NoLimit or BrutalKill", s.StopTimeout)
	}
	if s.ProbePeriod < 0 && s.ProbePeriod != NoLimit {
		fault("ProbePeriod is %v, want more than 0, or NoLimit", s.ProbePeriod)
	}
	if s.RestartUnhealthy < 0 {
		fault("RestartUnhealthy is %d, want 0 or more", s.RestartUnhealthy)
	}
	return errors.Join(errs...)
}

func (s *Spec) withDefaults() {
	s.Restart = cmp.Or(s.Restart, Always)
	s.StartTimeout = cmp.Or(s.StartTimeout, defaultStartTimeout)
	s.ProbePeriod = cmp.Or(s.ProbePeriod, defaultProbePeriod)
	s.ProbeTimeout = cmp.Or(s.ProbeTimeout, defaultProbeTimeout)
}

// once reports whether the policy never restarts a child.
func (r Restart) once() bool { return r == Never || r == Temporary }

// stopLimit returns how long a Stop of the child may take. It returns false when the
// spec does not bound it.
func (s *Spec) stopLimit(w Worker) (limit time.Duration, bounded bool) {
	switch {
	case s.StopTimeout == NoLimit, s.StopTimeout == 0 && w != nil && treeOf(w) != nil:
		return 0, false
	case s.StopTimeout == 0:
		return defaultStopTimeout, true
	}
	return max(s.StopTimeout, 0), true // BrutalKill is 0
}

// after reports whether the policy restarts a child after this end.
func (r Restart) after(end Status, err error) bool {
	switch {
	case r.once() || call.Is(err, ErrDoNotRestart):
		return false
	case r == OnFailure:
		return end == StatusFailed || end == StatusKilled
	}
	return true
}
