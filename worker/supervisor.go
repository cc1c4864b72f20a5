package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/inbox"
	"github.com/pleme-io/lifecycle-go/internal/probe"
)

var (
	// ErrRestartIntensity ends a supervisor whose children failed more often than
	// its Backoff allows. It is joined with the last failure. For a function in a
	// [Restarter] the error is [ErrRestartBudget].
	ErrRestartIntensity = errors.New("restart intensity exceeded")

	// ErrNameTaken is returned by [Supervisor.Add] for the name of another child.
	ErrNameTaken = errors.New("there is a child of that name; want another name, or Replace or Remove that child")

	// ErrNoChild is returned by [Supervisor.Remove] and other methods for a name that
	// no child has.
	ErrNoChild = errors.New("there is no child of that name")

	// ErrSupervisorEnded is returned by the methods of a supervisor that has
	// ended or is ending.
	ErrSupervisorEnded = errors.New("supervisor is ending")

	errAbandonedStart = errors.New("did not start in time")
	errSuspended      = errors.New("the supervisor is suspended")
)

// SupervisorConfig shapes a [Supervisor]. The zero value of a field is its
// default.
type SupervisorConfig struct {
	// Strategy says which children are restarted together. Defaults to OneForOne.
	Strategy Strategy
	// Backoff says how long a child waits before a restart. Its MaxRestarts and
	// Window are the restart intensity. They count the restarts of all children
	// together; a restart of several children at once counts as one.
	Backoff Backoff
	// ContainTerminate keeps a child's [ErrTerminate] in this supervisor. The
	// supervisor stops its children and fails as it does without the field, but its
	// error is [ErrDoNotRestart] in place of ErrTerminate. A supervisor above goes on
	// and does not restart it; an App stops, as after any failed unit.
	ContainTerminate bool
	// PassThroughPanics lets a panic in the function of a child, a [Func] or a
	// [Restarter], end the process, as the option of that name does. It holds for the
	// children of this supervisor, not for those of a supervisor below it.
	PassThroughPanics bool
	// AutoShutdown says whether the end of significant children ends the supervisor.
	// Defaults to ShutdownNever.
	AutoShutdown AutoShutdown
	// StopTogether stops all children at the same time when the supervisor ends, for
	// children that do not need each other. Otherwise they stop in reverse order.
	StopTogether bool
	// Children are the first children, in the order of their start. Add more with
	// [Supervisor.Add].
	Children []Spec
}

// Validate returns an error that names each field that is wrong and says what is
// accepted.
func (c SupervisorConfig) Validate() error {
	var errs []error
	switch c.Strategy {
	case "", OneForOne, OneForAll, RestForOne:
	default:
		errs = append(errs, fmt.Errorf("strategy is %q, want %q, %q or %q", c.Strategy, OneForOne, OneForAll, RestForOne))
	}
	errs = append(errs, c.Backoff.Validate(), c.AutoShutdown.validate())
	seen := make(map[string]bool, len(c.Children))
	for _, spec := range c.Children {
		errs = append(errs, spec.Validate(), c.AutoShutdown.accepts(spec))
		if seen[spec.Name] {
			errs = append(errs, fmt.Errorf("child %q: %w", spec.Name, ErrNameTaken))
		}
		seen[spec.Name] = true
	}
	return errors.Join(errs...)
}

// Supervisor is a worker that keeps other workers, its children, alive. A child
// may be a supervisor too, so supervisors form trees. Children start in order:
// each starts once the one before it is Running. When a child does not start, those
// after it wait until it runs or is given up: its policy does not restart it, it is
// removed, or its start was abandoned. A child that [Supervisor.Add] adds waits for
// no other. Children stop in reverse order: each stops once the one after it has
// stopped.
//
// When a child ends, its policy says whether it is restarted, and the strategy
// says which others are restarted with it. They are Pending until the backoff is
// over. When restarts are more frequent than the restart intensity allows, the
// supervisor stops its children in reverse order and fails. Its own supervisor
// then decides what to do.
//
// A child that has ended and is not started again stays in the State. When more
// than 1,000 children are done, the supervisor forgets the oldest 500 of them. Add
// may use their names again at any time.
//
// A child never has two running instances: while an abandoned instance still
// runs, the next one stays Pending.
//
// One goroutine owns the children: its loop handles one message after the other. It
// holds no lock while it calls a child, and waits for no call longer than that
// call's timeout.
type Supervisor struct {
	BaseWorker
	cfg       SupervisorConfig
	kin       *kin            // of a Dynamic; nil for any other
	parts     *fsm.Dispatcher // for the events of children
	shared    *Spec           // of the last child that got a spec
	base      context.Context // the context of children: it has the values of the supervisor's
	probeCtx  context.Context // ends with the supervisor
	endProbes context.CancelFunc
	session   string
	intensity intensity
	box       inbox.Inbox[message]
	probes    probe.Group

	begun   sync.Mutex // orders Start against Stop and Add; guards running
	running bool

	moved fsm.Wake // the loop has handled a message while the supervisor is suspended

	// mu guards children, byName, gate and the marked fields of child. The loop alone
	// writes them once it runs.
	mu       sync.Mutex
	gate     chan struct{} // not nil while the supervisor is suspended; Resume closes it
	children []*child
	byName   map[string]*child

	// Only the loop uses the fields below.
	log           restartLog
	failures      failureLog
	history       []*child       // children that are done, the oldest first
	first         *group         // the children of the config, until each was started or given up
	untried       int            // children that were never started
	calls         int            // goroutines that call a child
	abandoned     map[any]string // abandoned instances and starts that still run, with the child's name
	abandonedOf   map[string]int // their number for each name
	holding       bool
	suspended     bool
	ending        bool
	ended         bool
	failure       error
	cause         error
	deadline      time.Time // of the stop, zero for none
	hurryAt       *time.Timer
	inTime        []askedFunc // some may have returned
	overdue       *time.Timer // for them; nil before the first
	overdueAt     time.Time   // when it fires; zero when it does not
	abandonedErrs []error     // about children that were abandoned while the supervisor stops
}

// NewSupervisor returns a worker that runs the children of cfg. Start returns an
// error when cfg is not valid.
func NewSupervisor(name string, cfg SupervisorConfig) *Supervisor {
	s := &Supervisor{}
	s.setUp("supervisor", name, cfg)
	for _, spec := range cfg.Children {
		s.append(spec)
	}
	return s
}

func (s *Supervisor) setUp(kind, name string, cfg SupervisorConfig) {
	s.cfg, s.byName = cfg, make(map[string]*child, len(cfg.Children))
	s.box, s.moved = inbox.New[message](), fsm.NewWake()
	s.Init(kind, name)
}

// append adds a child. The caller holds mu, except the constructor.
func (s *Supervisor) append(spec Spec) *child {
	spec.withDefaults()
	c := &child{s: s, name: spec.Name, make: spec.New, spec: s.intern(spec)}
	s.place(c)
	return c
}

// place puts c last in the order. The caller holds mu, except the constructor.
func (s *Supervisor) place(c *child) {
	c.at = int32(len(s.children))
	s.children = append(s.children, c)
	s.byName[c.name] = c
}

// Start starts the children in the background and returns. The supervisor is
// Running once it has tried to start each child. Cancelling ctx stops the
// children in reverse order. Their contexts have ctx's values, but are not
// cancelled with ctx.
func (s *Supervisor) Start(ctx context.Context) error {
	s.begun.Lock()
	defer s.begun.Unlock()
	own, cancel := context.WithCancelCause(ctx)
	if err := s.Begin(own); err != nil {
		cancel(nil)
		return err
	}
	err := s.cfg.Validate()
	if s.kin != nil {
		err = errors.Join(err, s.kin.refused)
	}
	if err != nil {
		err = fmt.Errorf("start %s: %w", s.Name(), err)
		s.Finish(err)
		cancel(nil)
		return err
	}
	s.running, s.parts = true, s.dispatcher()
	s.cfg.Children = nil // each child has its own Spec
	s.base = context.WithoutCancel(unnamed(ctx))
	if h, ok := HandoverFrom(ctx); ok {
		s.session = h.Session
	} else {
		s.session = rand.Text()
	}
	s.probeCtx, s.endProbes = context.WithCancel(s.base)
	limits := s.cfg.Backoff.WithDefaults()
	s.intensity = intensity{limit: limits.MaxRestarts, window: limits.Window}
	s.cfg.Backoff.MaxRestarts, s.cfg.Backoff.Window = NoLimit, 0
	s.abandoned, s.abandonedOf = make(map[any]string), make(map[string]int)
	s.untried = len(s.children)
	unwatch := context.AfterFunc(ctx, func() {
		s.box.Post(stopAll{cause: call.Take("the cause of "+s.Name()+"'s context", context.Cause(ctx))})
	})
	s.box.Post(begin{})
	call.Go(s.Name(), s.loop, func(err error) {
		unwatch()
		cancel(nil)
		if err != nil { // a defect of this package: no child can be started
			s.Finish(err)
		}
	})
	return nil
}

// begin starts the first children.
func (s *Supervisor) begin() {
	if s.untried == 0 {
		s.MarkRunning()
	}
	first := &group{members: slices.Clone(s.children), phase: groupStarting}
	for _, c := range first.members {
		c.join(first)
		c.want = true
	}
	s.first = first
	s.advance(first)
}

// Stop stops the children in reverse order and waits until all have stopped. When a
// tenth of the time until ctx's deadline is left, it stops all that remain at once.
// When ctx ends first, the supervisor is Killed and the error names each child that
// has not stopped; [BaseWorker.Gone] closes when they have returned.
func (s *Supervisor) Stop(ctx context.Context) error {
	s.begun.Lock()
	live, running := s.RequestStop(ErrStopRequested), s.running
	s.begun.Unlock()
	if !live || !running {
		return s.killedErr()
	}
	deadline, _ := ctx.Deadline()
	s.box.Post(stopAll{cause: stopCause(ctx), by: deadline})
	select {
	case <-s.Done():
		return s.killedErr()
	case <-ctx.Done():
	}
	s.box.Post(stopNow{by: time.Now()})
	select {
	case <-s.Done(): // both were true
		return s.killedErr()
	default:
	}
	var errs []error
	for _, c := range s.snapshot() {
		if c.lives() {
			errs = append(errs, &AbandonedError{Name: c.name})
		}
	}
	err := fmt.Errorf("%s: did not stop in time", s.Name())
	if len(errs) > 0 { // otherwise all children have stopped, but the loop has not noticed yet
		err = fmt.Errorf("%w: %w", err, errors.Join(errs...))
	}
	if s.Kill(err) {
		return err
	}
	return s.killedErr()
}

// Add adds a child, the last in order, and returns once the supervisor has
// accepted it. After Start, the supervisor also starts the child. The child takes
// the place of one of the same name that is done: it has ended, and is not started
// again. The error is [ErrNameTaken] while any other child has the name, even if
// Remove is stopping that child. It is [ErrSupervisorEnded] when the supervisor starts no more
// children.
func (s *Supervisor) Add(spec Spec) error {
	if err := s.accepts(spec); err != nil {
		return fmt.Errorf("add to %s: %w", s.Name(), err)
	}
	s.begun.Lock()
	if !s.running && s.Status() == StatusCreated {
		defer s.begun.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.byName[spec.Name] != nil {
			return fmt.Errorf("add %s to %s: %w", spec.Name, s.Name(), ErrNameTaken)
		}
		s.append(spec)
		s.cfg.Children = append(slices.Clip(s.cfg.Children), spec)
		return nil
	}
	s.begun.Unlock()
	return s.ask(context.Background(), "add "+spec.Name+" to "+s.Name(), func(reply chan<- error) message {
		return addChild{spec: spec, reply: reply}
	})
}

func (s *Supervisor) add(m addChild) {
	switch {
	case s.ending || s.holding:
		m.reply <- ErrSupervisorEnded
		return
	case s.byName[m.spec.Name] != nil && !s.byName[m.spec.Name].done:
		m.reply <- ErrNameTaken
		return
	}
	s.mu.Lock()
	if old := s.byName[m.spec.Name]; old != nil {
		s.drop(old)
	}
	c := s.append(m.spec)
	s.mu.Unlock()
	m.reply <- nil
	s.enter(c)
}

// enter starts a child that was added.
func (s *Supervisor) enter(c *child) {
	s.untried++
	c.want = true
	g := &group{phase: groupStarting}
	g.members = g.one[:]
	g.one[0] = c
	c.join(g)
	s.advance(g)
}

// Remove stops a child, or ends its wait for a restart, and removes it from the
// supervisor. It returns when the child is removed. When ctx ends first, it
// returns ctx's error and the removal goes on. For a name that no child has it
// returns [ErrNoChild].
func (s *Supervisor) Remove(ctx context.Context, name string) error {
	s.begun.Lock()
	if !s.running {
		defer s.begun.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		c := s.byName[name]
		if c == nil {
			return fmt.Errorf("remove %s from %s: %w", name, s.Name(), ErrNoChild)
		}
		s.drop(c)
		s.cfg.Children = slices.DeleteFunc(slices.Clone(s.cfg.Children), func(spec Spec) bool { return spec.Name == name })
		return nil
	}
	s.begun.Unlock()
	return s.ask(ctx, "remove "+name+" from "+s.Name(), func(reply chan<- error) message {
		return removeChild{name: name, reply: reply}
	})
}

func (s *Supervisor) remove(m removeChild) {
	c := s.byName[m.name]
	switch {
	case s.ended:
		m.reply <- ErrSupervisorEnded
		return
	case c == nil:
		m.reply <- ErrNoChild
		return
	}
	already := c.waits(awaitsRemoval)
	c.callers = append(c.callers, caller{awaitsRemoval, m.reply})
	if s.ending || already {
		return // the stop in progress answers
	}
	s.withdraw(c, &group{phase: groupStopping, removes: true})
}

// drop removes a child from the order. The caller holds mu.
func (s *Supervisor) drop(c *child) {
	delete(s.byName, c.name)
	if s.kin != nil { // its children have no order
		last := len(s.children) - 1
		s.children[c.at] = s.children[last]
		s.children[c.at].at = c.at
		s.children[last] = nil
		s.children = s.children[:last]
		return
	}
	if i := slices.Index(s.children, c); i >= 0 {
		s.children = slices.Delete(s.children, i, i+1)
	}
}

// ask posts a message and waits for the reply of the loop. It waits until ctx ends
// or the supervisor is gone.
func (s *Supervisor) ask(ctx context.Context, what string, request func(reply chan<- error) message) error {
	reply := make(chan error, 1)
	if !s.box.Post(request(reply)) {
		return fmt.Errorf("%s: %w", what, ErrSupervisorEnded)
	}
	if err := s.await(ctx, reply); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// snapshot returns the children in order.
func (s *Supervisor) snapshot() []*child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.children)
}

// State describes the supervisor and its children, without probing them.
func (s *Supervisor) State() State {
	state := s.BaseWorker.State()
	children := s.snapshot()
	if len(children) > 0 {
		state.Children = make([]State, len(children))
	}
	for i, c := range children {
		state.Children[i] = c.state()
	}
	return state
}
