package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// ErrUnknown is what a [Probe] returns, or wraps, when it cannot tell whether
// what it checks is up or down: it has not been able to look yet, or its
// measurement has gone. Unknown fails readiness and startup and passes
// liveness. Return any other error for something that is down.
var ErrUnknown = errors.New("state unknown")

var _ = call.Sentinels(ErrUnknown) // a foreign error may say so by an Is method

// ErrInvalidProbe is wrapped by the error of every registration that was
// refused: an empty or unusable name, a name used twice on a plane, a nil
// probe, an option out of range. Nothing was registered.
var ErrInvalidProbe = errors.New("lifecycle: invalid probe")

// ErrRegistryClosed is returned by [Registry.Start] and by the Register
// methods once [Registry.Close] was called.
var ErrRegistryClosed = errors.New("lifecycle: health registry is closed")

// ProbeState is the state of one check: up, down or unknown.
type ProbeState string

// The states of a check.
const (
	StateUp      ProbeState = "up"
	StateDown    ProbeState = "down"
	StateUnknown ProbeState = "unknown"
)

// probeTable lets a check go from any state to any other.
var probeTable = fsm.Table[ProbeState]{
	StateUnknown: {StateUp, StateDown},
	StateUp:      {StateDown, StateUnknown},
	StateDown:    {StateUp, StateUnknown},
}

// Probe looks at one thing that a process depends on.
type Probe interface {
	// Check returns nil when it is up, an error that is [ErrUnknown] when that
	// cannot be told, and any other error when it is down.
	//
	// It is never called while an earlier call of the same registration has
	// not returned. ctx ends when the check's timeout passes or the registry
	// closes, not when the prober that asked hangs up. A Check that does not
	// return then is down until it does. A panic and a runtime.Goexit are
	// failures of the check.
	Check(ctx context.Context) error
}

// ProbeFunc is a function as a [Probe].
type ProbeFunc func(ctx context.Context) error

// Check calls f.
func (f ProbeFunc) Check(ctx context.Context) error { return f(ctx) }

// DefaultProbeTimeout is how long a handler of a [Registry] takes to answer at
// most. The kubelet gives a probe 1 s unless timeoutSeconds says otherwise.
const DefaultProbeTimeout = 900 * time.Millisecond

// Registry holds the checks of a process in three planes and serves them over
// HTTP:
//
//   - liveness: is the process wedged? Kubernetes restarts the container.
//   - readiness: can it serve now? Kubernetes takes the pod out of rotation.
//   - startup: has it finished starting? Kubernetes waits with the other two.
//     Once this plane has passed it passes for ever.
//
// A plane passes when every critical check on it passes. A check passes when
// it is up, and on liveness also when it is unknown. Keep liveness free of
// dependencies, or a database that is away restarts every pod.
//
// The zero value is not usable; make one with [NewRegistry]. It works at once:
// checks run when somebody probes. [Registry.Start] runs the periodic ones in
// the background too, and [Registry.Close] ends everything. All methods may be
// called concurrently.
type Registry struct {
	events  *fsm.Dispatcher
	timeout time.Duration // a handler answers within it
	planes  [3]*plane     // in the order of the plane constants

	base   atomic.Pointer[context.Context] // what runs get their values and their end from
	cancel context.CancelCauseFunc         // ends base
	cond   atomic.Pointer[condition]       // the built-in condition; replaced, never changed
	active atomic.Bool                     // the scheduler runs the periodic checks
	wake   chan struct{}                   // holds a token when the scheduler has something new to look at

	firstReady chan struct{} // closed when readiness first passed
	readyOnce  sync.Once

	mu        sync.Mutex // guards everything that follows
	lifecycle *fsm.Machine[ProbeState]
	refused   []error
	closed    bool
	stop      context.CancelFunc // of the scheduler; nil before Start
	stopped   chan struct{}      // closed when the scheduler has ended
}

// RegistryOption changes what [NewRegistry] makes.
type RegistryOption func(*Registry) error

// WithProbeTimeout sets how long a handler takes to answer at most, whatever its
// checks do; [WithCheckTimeout] is for one of them. Defaults to
// [DefaultProbeTimeout]. Keep it below timeoutSeconds of the probe in the
// pod's manifest. A value that is not positive is refused: the default stays,
// and the refusal is reported with those of the registrations.
func WithProbeTimeout(d time.Duration) RegistryOption {
	return func(r *Registry) error {
		if d <= 0 {
			return fmt.Errorf("%w: probe timeout %v is not positive", ErrInvalidProbe, d)
		}
		r.timeout = d
		return nil
	}
}

// WithProbeEvents sends the changes of the checks to d in place of a
// dispatcher of the registry's own.
func WithProbeEvents(d *fsm.Dispatcher) RegistryOption {
	return func(r *Registry) error {
		if d == nil {
			return fmt.Errorf("%w: event dispatcher is nil", ErrInvalidProbe)
		}
		r.events = d
		return nil
	}
}

// NewRegistry returns a registry without checks: every plane passes.
func NewRegistry(opts ...RegistryOption) *Registry {
	r := &Registry{
		events:     new(fsm.Dispatcher),
		timeout:    DefaultProbeTimeout,
		wake:       make(chan struct{}, 1),
		firstReady: make(chan struct{}),
	}
	for _, opt := range opts {
		if opt == nil {
			continue
		}
		if err := opt(r); err != nil {
			r.refused = append(r.refused, err)
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	r.cancel = cancel
	r.base.Store(&ctx)
	r.cond.Store(&condition{state: StateUp})
	r.lifecycle = fsm.MustNew("probe", readinessPlane.String()+"/"+conditionName, probeTable, StateUp, r.events)
	for kind := range r.planes {
		r.planes[kind] = newPlane(r, planeKind(kind))
	}
	return r
}

// RegisterLiveness adds a check to the liveness plane: /livez and /healthz.
//
// The name appears in answers and as /livez/NAME. It is 1 to 128 ASCII
// letters, digits and the characters - . _ ~ : @ in any order, other than "."
// and "..", and is used once on a plane. "lifecycle" is taken on every plane.
// What is refused returns an error that wraps [ErrInvalidProbe] and says what
// would be right; nothing is registered then.
//
// Checks may be added at any time before [Registry.Close]. A check that has
// not run is unknown.
func (r *Registry) RegisterLiveness(name string, p Probe, opts ...ProbeOption) error {
	return r.register(livenessPlane, name, p, opts)
}

// RegisterReadiness adds a check to the readiness plane, /readyz, as
// [Registry.RegisterLiveness] does to its own.
func (r *Registry) RegisterReadiness(name string, p Probe, opts ...ProbeOption) error {
	return r.register(readinessPlane, name, p, opts)
}

// RegisterStartup adds a check to the startup plane, /startupz, as
// [Registry.RegisterLiveness] does to its own. Once the plane has passed its
// checks are not run any more.
func (r *Registry) RegisterStartup(name string, p Probe, opts ...ProbeOption) error {
	return r.register(startupPlane, name, p, opts)
}

func (r *Registry) register(kind planeKind, name string, p Probe, opts []ProbeOption) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.registerLocked(kind, name, p, opts)
	if err != nil {
		err = fmt.Errorf("register %s check %q: %w", kind, clip(name, maxNameLen), err)
		r.refused = append(r.refused, err)
	}
	return err
}

func (r *Registry) registerLocked(kind planeKind, name string, p Probe, opts []ProbeOption) error {
	if r.closed {
		return ErrRegistryClosed
	}
	if err := validateName(name); err != nil {
		return err
	}
	if isNilProbe(p) {
		return fmt.Errorf("%w: probe is nil", ErrInvalidProbe)
	}
	cfg, err := newProbeConfig(r.timeout, opts)
	if err != nil {
		return err
	}
	pl := r.planes[kind]
	old := *pl.checks.Load()
	at, taken := slices.BinarySearchFunc(old, name, func(c *check, name string) int {
		switch {
		case c.name < name:
			return -1
		case c.name > name:
			return 1
		}
		return 0
	})
	if taken {
		return fmt.Errorf("%w: the name is used on this plane already", ErrInvalidProbe)
	}
	// Handlers read the old list while this builds the new one.
	checks := slices.Insert(slices.Clone(old), at, newCheck(pl, name, p, cfg))
	pl.setChecks(checks)
	r.nudge()
	return nil
}

// isNilProbe finds the two ways in which a caller has nothing to run: no probe,
// and a ProbeFunc around no function.
func isNilProbe(p Probe) bool {
	f, isFunc := p.(ProbeFunc)
	return p == nil || isFunc && f == nil
}

// Events is where every change of a check's state goes: events of kind "probe"
// whose name is the plane and the check's name, as in "readiness/db". Subscribe
// or listen there. Each change comes once, in order; a reader that is too slow
// is told how many it missed, and never holds the registry up.
func (r *Registry) Events() *fsm.Dispatcher { return r.events }

// errs returns every registration and option that was refused, joined, or nil.
func (r *Registry) errs() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.refused...)
}

// maxNameLen bounds the name of a check, in bytes.
const maxNameLen = 128

// validateName accepts what stands in a path segment and in a query without
// escaping (RFC 3986, section 3.3: pchar, less the sub-delims, which a query
// gives a meaning of its own).
func validateName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: the name is empty", ErrInvalidProbe)
	case len(name) > maxNameLen:
		return fmt.Errorf("%w: the name has %d bytes, at most %d are allowed", ErrInvalidProbe, len(name), maxNameLen)
	case name == "." || name == "..":
		return fmt.Errorf("%w: HTTP clients remove the path segment %q", ErrInvalidProbe, name)
	case name == conditionName:
		return fmt.Errorf("%w: the name is taken by the built-in condition", ErrInvalidProbe)
	}
	for i, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-', c == '.', c == '_', c == '~', c == ':', c == '@':
		default:
			return fmt.Errorf("%w: the name is part of a URL and may have letters, digits and - . _ ~ : @ only, not %q at byte %d", ErrInvalidProbe, c, i)
		}
	}
	return nil
}
