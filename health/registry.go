package health

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// ErrUnknown is the error of a [Probe] that cannot tell whether its subject is up
// or down, for example because it has no measurement yet. A probe may wrap it.
// Unknown fails readiness and startup and passes liveness. For a subject that is
// down, return any other error.
var ErrUnknown = errors.New("state unknown")

var _ = call.Sentinels(ErrUnknown) // a probe's error may answer to it with an Is method

// ErrInvalid is wrapped by the error of every registration and every option that
// is refused: an empty or unusable name, a name that is used twice on a plane, a
// nil probe, an option out of range. Nothing is registered then.
var ErrInvalid = errors.New("health: invalid probe")

// ErrClosed is returned by [Registry.Start] and by the Register methods after
// [Registry.Close].
var ErrClosed = errors.New("health: registry is closed")

// State is the state of one check: up, down or unknown.
type State string

// The states of a check.
const (
	Up      State = "up"
	Down    State = "down"
	Unknown State = "unknown"
)

// table lets a check go from any state to any other.
var table = fsm.Table[State]{
	Unknown: {Up, Down},
	Up:      {Down, Unknown},
	Down:    {Up, Unknown},
}

// Probe looks at one thing that a process depends on.
type Probe interface {
	// Check returns nil when its subject is up, an error that is [ErrUnknown]
	// when it cannot tell, and any other error when its subject is down.
	//
	// A registration has one call at a time: the next one begins after the last
	// one has returned. ctx ends when the check's timeout passes or the registry
	// closes; it does not end when the client of a probe hangs up. A Check that
	// has not returned by its timeout is down until it returns. A panic and a
	// runtime.Goexit are failures of the check.
	Check(ctx context.Context) error
}

// ProbeFunc makes a function a [Probe].
type ProbeFunc func(ctx context.Context) error

// Check calls f.
func (f ProbeFunc) Check(ctx context.Context) error { return f(ctx) }

// DefaultProbeTimeout is the longest time that a handler of a [Registry] takes to
// answer. The kubelet gives a probe 1 s unless timeoutSeconds says otherwise.
const DefaultProbeTimeout = 900 * time.Millisecond

// Registry holds the checks of a process on three planes and serves them over
// HTTP:
//
//   - liveness: is the process wedged? Kubernetes restarts the container.
//   - readiness: can it serve now? Kubernetes takes the pod out of rotation.
//   - startup: has it finished starting? Kubernetes holds the other two probes
//     back until then. Once this plane has passed, it passes for ever.
//
// A plane passes when every critical check on it passes. A check passes when it
// is up; on liveness it also passes when it is unknown. Keep liveness free of
// dependencies: a database that is away must not restart every pod.
//
// Make one with [NewRegistry]; the zero value is not usable. It works at once:
// each probe runs the checks. [Registry.Start] also runs the periodic checks in
// the background, and [Registry.Close] ends everything. All methods may be called
// concurrently.
type Registry struct {
	events  *fsm.Dispatcher
	timeout time.Duration // a handler answers within it
	planes  [3]*plane     // in the order of the plane constants

	base   atomic.Pointer[context.Context] // the runs take their values and their end from it
	cancel context.CancelCauseFunc         // ends base
	cond   atomic.Pointer[condition]       // of the owner; replaced, never changed
	active atomic.Bool                     // the scheduler runs the periodic checks
	wake   fsm.Wake                        // the scheduler has to look at the checks again

	firstReady chan struct{} // closed when readiness first passed
	readyOnce  sync.Once

	mu        sync.Mutex // guards everything below
	lifecycle *fsm.Machine[State]
	refused   []error
	closed    bool
	stop      context.CancelFunc // of the scheduler; nil before Start
	stopped   chan struct{}      // closed when the scheduler has ended
}

// RegistryOption changes what [NewRegistry] makes.
type RegistryOption func(*Registry) error

// WithProbeTimeout sets the longest time that a handler takes to answer, however
// long its checks take; [WithTimeout] is for one check. Defaults to
// [DefaultProbeTimeout]. Keep it below timeoutSeconds of the probe in the pod's
// manifest. A value that is not positive is refused: the default stays, and
// [Registry.Err] reports it.
func WithProbeTimeout(d time.Duration) RegistryOption {
	return func(r *Registry) error {
		if d <= 0 {
			return fmt.Errorf("%w: probe timeout %v is not positive", ErrInvalid, d)
		}
		r.timeout = d
		return nil
	}
}

// WithEvents sends the changes of the checks to d instead of a dispatcher of the
// registry's own. A nil d is refused, and [Registry.Err] reports it.
func WithEvents(d *fsm.Dispatcher) RegistryOption {
	return func(r *Registry) error {
		if d == nil {
			return fmt.Errorf("%w: event dispatcher is nil", ErrInvalid)
		}
		r.events = d
		return nil
	}
}

// NewRegistry returns a registry without checks: every plane passes. A nil option
// is refused, and [Registry.Err] reports it.
func NewRegistry(opts ...RegistryOption) *Registry {
	r := &Registry{
		events:     new(fsm.Dispatcher),
		timeout:    DefaultProbeTimeout,
		wake:       fsm.NewWake(),
		firstReady: make(chan struct{}),
	}
	for i, opt := range opts {
		if opt == nil {
			r.refused = append(r.refused, fmt.Errorf("%w: registry option %d is nil", ErrInvalid, i+1))
			continue
		}
		if err := opt(r); err != nil {
			r.refused = append(r.refused, err)
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	r.cancel = cancel
	r.base.Store(&ctx)
	r.cond.Store(&condition{state: Up})
	r.lifecycle = r.newMachine(readinessPlane, conditionName, Up)
	for kind := range r.planes {
		r.planes[kind] = newPlane(r, planeKind(kind))
	}
	return r
}

// newMachine returns the machine of one check. Its events go where the registry's
// events go; this is the one place that decides what they carry.
func (r *Registry) newMachine(kind planeKind, name string, start State) *fsm.Machine[State] {
	return fsm.MustNew("probe", kind.String()+"/"+name, table, start, r.events)
}

// RegisterLiveness adds a check to the liveness plane: /livez and /healthz.
//
// The name appears in answers and as /livez/NAME. It is 1 to 128 ASCII letters,
// digits and the characters - . _ ~ : @ in any order, other than "." and "..".
// Each plane takes a name once, and "lifecycle" is reserved on every plane. A
// registration that is refused returns an error that wraps [ErrInvalid] and says
// what is allowed; [Registry.Err] keeps it.
//
// Checks may be added at any time before [Registry.Close]. A check that has not
// run is unknown.
func (r *Registry) RegisterLiveness(name string, p Probe, opts ...Option) error {
	return r.register(livenessPlane, name, p, opts)
}

// RegisterReadiness adds a check to the readiness plane, /readyz. It takes the same
// names and returns the same errors as [Registry.RegisterLiveness].
func (r *Registry) RegisterReadiness(name string, p Probe, opts ...Option) error {
	return r.register(readinessPlane, name, p, opts)
}

// RegisterStartup adds a check to the startup plane, /startupz. It takes the same names
// and returns the same errors as [Registry.RegisterLiveness]. Once the plane has passed,
// its checks do not run again.
func (r *Registry) RegisterStartup(name string, p Probe, opts ...Option) error {
	return r.register(startupPlane, name, p, opts)
}

func (r *Registry) register(kind planeKind, name string, p Probe, opts []Option) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.registerLocked(kind, name, p, opts)
	if err != nil {
		err = fmt.Errorf("register %s check %q: %w", kind, text.Clip(name, maxNameLen), err)
		r.refused = append(r.refused, err)
	}
	return err
}

func (r *Registry) registerLocked(kind planeKind, name string, p Probe, opts []Option) error {
	if r.closed {
		return ErrClosed
	}
	if err := validateName(name); err != nil {
		return err
	}
	if call.IsNil(p) {
		return fmt.Errorf("%w: probe is nil", ErrInvalid)
	}
	cfg, err := newConfig(r.timeout, opts)
	if err != nil {
		return err
	}
	pl := r.planes[kind]
	old := *pl.checks.Load()
	at, taken := search(old, name)
	if taken {
		return fmt.Errorf("%w: the name is used on this plane already", ErrInvalid)
	}
	if way := cycle(name, cfg.dependsOn, old); way != nil {
		return fmt.Errorf("%w: the check would depend on itself: %s", ErrInvalid, strings.Join(way, " -> "))
	}
	// Handlers go on reading the old list.
	checks := slices.Insert(slices.Clone(old), at, newCheck(pl, name, p, cfg))
	pl.checks.Store(&checks)
	r.wake.Notify()
	return nil
}

// Events returns the dispatcher that every change of a check's state goes to.
// The events are of kind "probe"; their name is the plane and the check's name,
// as in "readiness/db". Each change comes once, in order. A reader that is too
// slow gets the number of events that it missed; it never delays the registry.
func (r *Registry) Events() *fsm.Dispatcher { return r.events }

// Err returns every registration and every option that was refused so far, and
// every dependency of a check ([WithDependsOn]) that is not registered now. They
// are joined; nil means that there are none.
func (r *Registry) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	errs := slices.Clone(r.refused)
	for _, p := range r.planes {
		errs = append(errs, p.missing()...)
	}
	return errors.Join(errs...)
}

// maxNameLen bounds the name of a check, in bytes.
const maxNameLen = 128

// validateName accepts the names that need no escaping in a path segment and in a
// query (RFC 3986, section 3.3: pchar, without the sub-delims, which have a
// meaning in a query).
func validateName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: the name is empty", ErrInvalid)
	case len(name) > maxNameLen:
		return fmt.Errorf("%w: the name has %d bytes, at most %d are allowed", ErrInvalid, len(name), maxNameLen)
	case name == "." || name == "..":
		return fmt.Errorf("%w: HTTP clients remove the path segment %q", ErrInvalid, name)
	case name == conditionName:
		return fmt.Errorf("%w: the name is taken by the built-in condition", ErrInvalid)
	}
	for i, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '-', c == '.', c == '_', c == '~', c == ':', c == '@':
		default:
			return fmt.Errorf("%w: the name is part of a URL and may have letters, digits and - . _ ~ : @ only, not %q at byte %d", ErrInvalid, c, i)
		}
	}
	return nil
}
