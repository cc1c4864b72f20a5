package worker

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/probe"
	"github.com/pleme-io/lifecycle-go/internal/safe"
)

var (
	// ErrRestartIntensity ends a supervisor whose children failed more often
	// than its Backoff allows. It is joined with the last failure. A function
	// that runs alone has [ErrRestartBudget].
	ErrRestartIntensity = errors.New("restart intensity exceeded")

	// ErrNameTaken is returned by [Supervisor.Add] for a name that a child has.
	ErrNameTaken = errors.New("there is a child of that name")

	// ErrNoChild is returned for a name that no child has.
	ErrNoChild = errors.New("there is no child of that name")

	// ErrSupervisorEnded is returned by the verbs of a supervisor that has ended
	// or is about to.
	ErrSupervisorEnded = errors.New("supervisor is ending")

	errAbandonedStart = errors.New("did not start in time")
)

// SupervisorConfig shapes a [Supervisor]. The zero value of a field is its
// default.
type SupervisorConfig struct {
	// Strategy defaults to OneForOne.
	Strategy Strategy
	// Backoff is what a child waits before a restart. Its MaxRestarts and Window
	// are the restart intensity: they count the restarts of all children
	// together, where a restart of several at once counts as one.
	Backoff Backoff
	// Children are started in this order. More can be added later.
	Children []Spec
}

// Validate names each field that makes no sense, with what would.
func (c SupervisorConfig) Validate() error {
	var errs []error
	switch c.Strategy {
	case "", OneForOne, OneForAll, RestForOne:
	default:
		errs = append(errs, fmt.Errorf("strategy is %q, want %q, %q or %q", c.Strategy, OneForOne, OneForAll, RestForOne))
	}
	errs = append(errs, c.Backoff.Validate())
	seen := make(map[string]bool, len(c.Children))
	for _, spec := range c.Children {
		errs = append(errs, spec.Validate())
		if seen[spec.Name] {
			errs = append(errs, fmt.Errorf("child %q: %w", spec.Name, ErrNameTaken))
		}
		seen[spec.Name] = true
	}
	return errors.Join(errs...)
}

// Supervisor is a worker that keeps other workers alive, supervisors too, so
// that trees nest. Children are started in order and stopped in reverse, each
// once the one before is Running, or has stopped.
//
// When a child ends, its policy says whether it is restarted and the strategy
// who else is. They are Pending until the backoff is over. When that happens
// more often than the restart intensity allows, the supervisor stops its
// children in reverse order and fails, for its own supervisor to decide.
//
// There are never two instances of one name: when a child was abandoned because
// it did not stop, the next one stays Pending until it has returned.
//
// One goroutine owns the children; no lock is held while it calls one, and none
// of its calls is waited for longer than its timeout.
type Supervisor struct {
	BaseWorker
	cfg       SupervisorConfig
	base      context.Context // what children are started with: the values of ours
	probeCtx  context.Context // ends with the supervisor
	endProbes context.CancelFunc
	session   string
	intensity intensity
	box       mailbox
	probes    probe.Group

	begun   sync.Mutex // orders Start against Stop and Add; guards running
	running bool

	suspending chan struct{} // has room for one: who is in Suspend or Resume

	mu       sync.Mutex // guards what follows and the marked fields of child; only the loop writes once it runs
	children []*child
	byName   map[string]*child

	// What follows is the loop's alone.
	untried   int // children that were never started
	ops       int // goroutines that call a child
	haunts    map[any]string
	ghosts    map[string]int
	holding   bool
	suspended bool
	ending    bool
	ended     bool
	failure   error
	cause     error
	deadline  time.Time // of the stop, zero for none
	hurryAt   *time.Timer
	lostErrs  []error // about children whose Stop did not do what it says
}

// NewSupervisor returns a worker that runs the children of cfg. What is wrong
// with cfg is returned by Start.
func NewSupervisor(name string, cfg SupervisorConfig) *Supervisor {
	s := &Supervisor{cfg: cfg, byName: make(map[string]*child, len(cfg.Children))}
	s.box.wake, s.suspending = make(chan struct{}, 1), make(chan struct{}, 1)
	s.Init("supervisor", name)
	for _, spec := range cfg.Children {
		s.append(spec)
	}
	return s
}

// append makes a child. The caller holds mu, or nobody knows the supervisor.
func (s *Supervisor) append(spec Spec) *child {
	spec.withDefaults()
	c := &child{s: s, spec: &spec}
	s.children = append(s.children, c)
	s.byName[spec.Name] = c
	return c
}

// Start starts the children in the background and returns. The supervisor is
// Running once each has been tried. Cancelling ctx stops them in reverse order;
// their own contexts have ctx's values and are not cancelled with it.
func (s *Supervisor) Start(ctx context.Context) error {
	s.begun.Lock()
	defer s.begun.Unlock()
	own, cancel := context.WithCancelCause(ctx)
	if err := s.Begin(own); err != nil {
		cancel(nil)
		return err
	}
	if err := s.cfg.Validate(); err != nil {
		err = fmt.Errorf("start %s: %w", s.Name(), err)
		s.Finish(err)
		cancel(nil)
		return err
	}
	s.running = true
	s.cfg.Children = nil // each child has its own
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
	s.haunts, s.ghosts = make(map[any]string), make(map[string]int)
	s.untried = len(s.children)
	unwatch := context.AfterFunc(ctx, func() {
		s.box.post(func() { s.end(context.Cause(ctx), time.Time{}) })
	})
	s.box.post(func() {
		if s.untried == 0 {
			s.MarkRunning()
		}
		first := &group{members: slices.Clone(s.children), phase: groupStarting}
		for _, c := range first.members {
			c.join(first)
			c.want = true
		}
		s.advance(first)
	})
	safe.Go(s.Name(), s.loop, nil, func(err error) {
		unwatch()
		cancel(nil)
		if err != nil { // a defect of this package: nothing can be done for the children
			s.Finish(err)
		}
	})
	return nil
}

// loop does, one after the other, what was posted.
func (s *Supervisor) loop() error {
	var todo []func()
	for !s.ended || s.ops > 0 || len(s.haunts) > 0 {
		todo = s.box.take(todo)
		for i, do := range todo {
			do()
			todo[i] = nil // what it held is not held until the next comes in its place
		}
	}
	s.box.close()
	s.Finish(s.failure)
	return nil
}

// Stop stops the children in reverse order and waits until all have. When a
// tenth of the time until ctx's deadline is left those that remain are stopped at
// once. When ctx ends first the supervisor is Killed and the error names each
// child that has not stopped; [BaseWorker.Gone] closes when they have returned.
func (s *Supervisor) Stop(ctx context.Context) error {
	s.begun.Lock()
	live, running := s.RequestStop(ErrStopRequested), s.running
	s.begun.Unlock()
	if !live || !running {
		return s.killedErr()
	}
	deadline, _ := ctx.Deadline()
	s.box.post(func() { s.end(stopCause(ctx), deadline) })
	select {
	case <-s.Done():
		return s.killedErr()
	case <-ctx.Done():
	}
	s.box.post(func() { s.hurry(time.Now()) })
	select {
	case <-s.Done(): // both were true
		return s.killedErr()
	default:
	}
	var errs []error
	for _, c := range s.snapshot() {
		if c.lives() {
			errs = append(errs, &AbandonedError{Name: c.spec.Name})
		}
	}
	err := fmt.Errorf("%s: did not stop in time: %w", s.Name(), errors.Join(errs...))
	if s.Kill(err) {
		return err
	}
	return s.killedErr()
}

// Add gives the supervisor one more child, the last in order, and returns once
// it is accepted. Before Start that is all; afterwards it is started. The error
// is [ErrNameTaken] for a name that a child has, until Remove has returned, and
// [ErrSupervisorEnded] for a supervisor that no longer starts any.
func (s *Supervisor) Add(spec Spec) error {
	if err := spec.Validate(); err != nil {
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
	return s.ask(context.Background(), "add "+spec.Name+" to "+s.Name(), func(reply func(error)) {
		switch {
		case s.ending || s.holding:
			reply(ErrSupervisorEnded)
			return
		case s.byName[spec.Name] != nil:
			reply(ErrNameTaken)
			return
		}
		s.mu.Lock()
		c := s.append(spec)
		s.mu.Unlock()
		s.untried++
		c.want = true
		g := &group{members: []*child{c}, phase: groupStarting}
		c.join(g)
		reply(nil)
		s.advance(g)
	})
}

// Remove stops a child, or its wait for a restart, and takes it out. It returns
// once that is done; when ctx ends first it returns ctx's error and the removal
// goes on. An unknown name is [ErrNoChild].
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
	return s.ask(ctx, "remove "+name+" from "+s.Name(), func(reply func(error)) {
		c := s.byName[name]
		if c == nil {
			reply(ErrNoChild)
			return
		}
		c.removed = append(c.removed, reply)
		if s.ending || len(c.removed) > 1 {
			return // answered when it has stopped
		}
		s.unhold(c)
		c.want = false
		g := &group{members: []*child{c}, phase: groupStopping, removes: true}
		old := c.join(g)
		s.advance(g)
		s.advance(old)
	})
}

// drop takes a child out of the order. The caller holds mu.
func (s *Supervisor) drop(c *child) {
	delete(s.byName, c.spec.Name)
	if i := slices.Index(s.children, c); i >= 0 {
		s.children = slices.Delete(s.children, i, i+1)
	}
}

// ask has the loop do something and waits for its answer.
func (s *Supervisor) ask(ctx context.Context, what string, do func(reply func(error))) error {
	answer := make(chan error, 1)
	if !s.box.post(func() { do(func(err error) { answer <- err }) }) {
		return fmt.Errorf("%s: %w", what, ErrSupervisorEnded)
	}
	var err error
	select {
	case err = <-answer:
	case <-ctx.Done():
		err = ctx.Err()
	case <-s.Gone():
		select {
		case err = <-answer:
		default:
			err = ErrSupervisorEnded
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// HoldRestarts lets every child that runs finish, and starts none any more. An
// App calls it when it begins to drain.
func (s *Supervisor) HoldRestarts() {
	s.box.post(func() {
		s.holding = true
		for _, c := range s.children {
			s.unhold(c)
			c.want = false
			if !c.lives() {
				continue
			}
			w, _ := c.current()
			if h, ok := w.Worker.(interface{ HoldRestarts() }); ok {
				w.tell("HoldRestarts", h.HoldRestarts)
			}
		}
	})
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

// sessionOf returns the session of the child of that name.
func (s *Supervisor) sessionOf(name string) string {
	sum := sha256.Sum256([]byte(s.session + "\x00" + name))
	return hex.EncodeToString(sum[:16])
}

// mailbox is what the loop has to do. It takes any number: who posts never
// waits.
type mailbox struct {
	wake chan struct{} // holds a token when there may be something

	mu     sync.Mutex // guards what follows
	queue  []func()
	closed bool
}

// post reports false, and drops do, once the loop has ended.
func (m *mailbox) post(do func()) bool {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return false
	}
	m.queue = append(m.queue, do)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default: // a token is there already
	}
	return true
}

// take waits for something to do and returns all there is. done is what an earlier
// call returned, to be filled anew.
func (m *mailbox) take(done []func()) []func() {
	if cap(done) > maxKept {
		done = nil // a crowd came once: its room is not held for good
	}
	<-m.wake
	m.mu.Lock()
	defer m.mu.Unlock()
	queue := m.queue
	m.queue = done[:0]
	return queue
}

// maxKept is how many places of a queue are kept for the next.
const maxKept = 64

func (m *mailbox) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed, m.queue = true, nil
}
