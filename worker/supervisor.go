package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/inbox"
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
	// children of this supervisor, not for the children of a supervisor below it.
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
// each starts once the one before it is Running. When a child does not start, the
// children after it wait until it runs or is given up: its policy does not restart it,
// it is removed, or its start was abandoned. A child that [Supervisor.Add] adds waits
// for no other. Children stop in reverse order: each stops once the one after it has
// stopped.
//
// When a child ends, its policy says whether it is restarted, and the strategy
// says which others are restarted with it. They are Pending until the backoff is
// over. When restarts are more frequent than the restart intensity allows, the
// supervisor stops its children in reverse order and fails. Its own supervisor
// then decides what to do.
//
// A child that has ended and is not started again stays in the State. The supervisor keeps
// the last 1,000 such children, and forgets the others. Add may use their names again at any
// time.
//
// A child never has two running instances: while an abandoned instance still
// runs, the next one stays Pending. The exception is a [Process] with listeners, which
// [Supervisor.RestartChild] replaces by overlap.
//
// One goroutine owns the children: its loop handles one message after the other. It
// holds no lock while it calls a child, and waits for no call longer than that
// call's timeout.
type Supervisor struct {
	BaseWorker
	cfg       SupervisorConfig // without the Children, each of which has its own Spec
	dynamic   *dynamic         // of a Dynamic; nil for any other
	base      context.Context  // the context of children: it has the values of the supervisor's
	probeCtx  context.Context  // ends with the supervisor
	endProbes context.CancelFunc
	session   string
	intensity intensity
	box       inbox.Inbox[func()] // the messages: each is what the loop has to do

	startMu sync.Mutex // orders Start against changes of the children; guards running
	running bool       // the loop runs, or has ended

	// mu guards children, byName, beside and the marked fields of child. The loop alone writes
	// them once it runs.
	mu       sync.Mutex
	children []*child
	byName   map[string]*child
	beside   []*child // children that start or stop beside the one that has their name

	// Only the loop uses the fields below.
	log            limitedLog     // of restarts
	failures       limitedLog     // that no restart answers
	history        []*child       // children that are done, the oldest first
	first          *group         // the children of the config, until each was started or given up
	untried        int            // children that were never started
	calls          int            // goroutines that call a child
	abandoned      map[string]int // abandoned instances and starts that still run, by the child's name
	holding        bool
	suspended      bool
	awaitSettled   []chan<- error // callers that wait until no child is starting or stopping
	ending         bool
	final          *group // all children, as they stop because the supervisor ends; nil before
	ended          bool
	allAskedToStop bool // stopNext has asked all children to stop at the same time
	failure        error
	cause          error
	deadline       time.Time // of the stop, zero for none
	abandonedErrs  []error   // about children that were abandoned while the supervisor stops
}

// NewSupervisor returns a worker that runs the children of cfg. Start returns an
// error when cfg is not valid.
func NewSupervisor(name string, cfg SupervisorConfig) *Supervisor {
	s := &Supervisor{}
	s.setUp("supervisor", name, cfg)
	return s
}

func (s *Supervisor) setUp(kind, name string, cfg SupervisorConfig) {
	s.box = inbox.New[func()]()
	s.byName = make(map[string]*child, len(cfg.Children))
	s.Init(kind, name)
	for _, spec := range cfg.Children {
		s.place(s.newChild(spec))
	}
	cfg.Children = nil
	s.cfg = cfg
}

func (s *Supervisor) newChild(spec Spec) *child {
	spec.withDefaults()
	return &child{s: s, name: spec.Name, factory: spec.New, spec: &spec}
}

// place puts c last in the order. The caller holds mu, except the constructor.
func (s *Supervisor) place(c *child) {
	c.index = len(s.children)
	s.children = append(s.children, c)
	s.byName[c.name] = c
}

// Start starts the children in the background and returns. The supervisor is
// Running once it has tried to start each child. Cancelling ctx stops the
// children in reverse order. Their contexts have ctx's values, but are not
// cancelled with ctx.
func (s *Supervisor) Start(ctx context.Context) error {
	s.startMu.Lock()
	defer s.startMu.Unlock()
	own, err := s.beginWork(ctx)
	if err != nil {
		return err
	}
	if err := s.validate(); err != nil {
		return s.refuse(err)
	}
	s.running = true
	s.base = context.WithoutCancel(withoutFunc(ctx))
	if h, ok := HandoverFrom(ctx); ok {
		s.session = h.Session
	} else {
		s.session = rand.Text()
	}
	s.probeCtx, s.endProbes = context.WithCancel(s.base)
	limits := s.cfg.Backoff.WithDefaults()
	s.intensity = intensity{limit: limits.MaxRestarts, window: limits.Window}
	s.abandoned = make(map[string]int)
	s.untried = len(s.children)
	unwatch := context.AfterFunc(own, func() {
		s.box.Post(func() { s.stopAll(s.causeOf(own), time.Time{}) })
	})
	call.Go(s.Name(), s.loop, func(err error) {
		unwatch()
		if err != nil { // a defect of this package: no child can be started
			s.Finish(err)
		}
	})
	return nil
}

func (s *Supervisor) validate() error {
	cfg := s.cfg
	for _, c := range s.children {
		cfg.Children = append(cfg.Children, c.fullSpec())
	}
	err := cfg.Validate()
	if s.dynamic != nil {
		err = errors.Join(err, s.dynamic.refused)
	}
	return err
}

// loop starts the first children, and then handles one message after the other until the
// supervisor has ended and all its children are gone.
func (s *Supervisor) loop() error {
	if s.untried == 0 {
		s.MarkRunning()
	}
	s.first = newGroup(groupStarting, slices.Clone(s.children)...)
	for _, c := range s.first.members {
		c.join(s.first)
		c.toStart = true
	}
	s.advanceFirst()
	var batch []func()
	for !s.ended || s.calls > 0 || len(s.abandoned) > 0 {
		batch, _ = s.box.Take(batch)
		for _, handle := range batch {
			handle()
			s.advanceFirst()
			s.answerSettled()
		}
	}
	s.box.Close()
	s.Finish(s.failure)
	return nil
}

// advanceFirst goes on with the first starts. It is called after each message, because a child
// that has left the group may have held it up.
func (s *Supervisor) advanceFirst() {
	if s.first != nil {
		s.advance(s.first)
		if s.first.phase == groupOver {
			s.first = nil
		}
	}
}

// request makes the loop handle a message and waits for the reply, until ctx ends or the
// supervisor is gone. Before Start the caller handles the message. A reply has room for one
// answer, so that the loop never waits.
func (s *Supervisor) request(ctx context.Context, what string, handle func(reply chan<- error)) error {
	reply := make(chan error, 1)
	var err error
	s.startMu.Lock()
	if !s.running && s.Status() == StatusCreated {
		handle(reply)
		s.startMu.Unlock()
		err = <-reply
	} else {
		s.startMu.Unlock()
		err = ErrSupervisorEnded
		if s.box.Post(func() { handle(reply) }) {
			err = s.await(ctx, reply)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// await waits for the answer of the loop, until ctx ends or the supervisor is gone.
func (s *Supervisor) await(ctx context.Context, reply <-chan error) error {
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-s.Gone():
	}
	select {
	case err := <-reply:
		return err
	default:
		return ErrSupervisorEnded
	}
}

// Stop stops the children in reverse order and waits until all have stopped. A child has
// half of the time until ctx's deadline, so that the others have time too, and the last
// one that lives has the whole. When ctx ends first, it stops all that remain at once, the
// supervisor is Killed and the error names each child that has not stopped;
// [BaseWorker.Gone] closes when they have returned.
func (s *Supervisor) Stop(ctx context.Context) error {
	cause := stopCause(ctx)
	if s.RequestStop(cause) {
		deadline, _ := ctx.Deadline()
		s.box.Post(func() { s.stopAll(cause, deadline) })
	}
	return s.awaitStop(ctx, func() error {
		now := time.Now()
		s.box.Post(func() { s.stopNow(now) })
		return s.late()
	})
}

// late returns the error of a supervisor that did not stop in time, with each child on every
// level whose code still runs. All levels have the same deadline, so a supervisor below may not
// have said it itself yet.
func (s *Supervisor) late() error {
	var running []error
	for _, c := range s.snapshot() {
		if !c.lives() && !c.isAbandoned() {
			continue
		}
		w := c.current()
		if inner, ok := w.Worker.(interface{ late() error }); ok {
			running = append(running, inner.late())
		} else {
			running = append(running, call.Abandoned(KindWorker, c.name))
		}
	}
	err := fmt.Errorf("%s: did not stop in time", s.Name())
	if len(running) > 0 { // otherwise all children have stopped, but the loop has not noticed yet
		err = fmt.Errorf("%w: %w", err, errors.Join(running...))
	}
	return err
}

// snapshot returns the children in order.
func (s *Supervisor) snapshot() []*child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.children)
}

// listed returns the children that have their name, in order, and the others.
func (s *Supervisor) listed() (children, beside []*child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	beside = slices.Clone(s.beside)
	children = slices.DeleteFunc(slices.Clone(s.children), func(c *child) bool { return slices.Contains(beside, c) })
	return children, beside
}

// State describes the supervisor and its children, without probing them.
func (s *Supervisor) State() State {
	state := s.BaseWorker.State()
	children, beside := s.listed()
	for _, c := range children {
		state.Children = append(state.Children, c.describe(beside))
	}
	return state
}

// HoldRestarts lets running children finish, and starts no more. An App calls it
// when it begins to drain. A [Dynamic] still starts children that [Dynamic.Add] adds.
func (s *Supervisor) HoldRestarts() { s.box.Post(s.holdRestarts) }

func (s *Supervisor) holdRestarts() {
	s.holding = true
	for _, c := range s.children {
		if s.admits(c) {
			continue
		}
		s.unhold(c)
		c.toStart = false
		if c.op == nil {
			c.answer(wantsStart, ErrSupervisorEnded)
		}
		if !c.lives() {
			continue
		}
		if h, ok := c.instance.Worker.(interface{ HoldRestarts() }); ok {
			c.instance.callOptional("HoldRestarts", h.HoldRestarts)
		}
	}
}

// admits reports whether c starts while an App drains: a new child of a Dynamic does.
func (s *Supervisor) admits(c *child) bool { return s.dynamic != nil && !c.tried }
