package worker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
)

// ErrTooManyChildren is returned by [Dynamic.Add] when the MaxChildren of the
// [DynamicConfig] are there.
var ErrTooManyChildren = errors.New("there are MaxChildren children")

// DynamicConfig shapes a [Dynamic]. The zero value of a field is its default.
type DynamicConfig struct {
	// Template is the Spec of every child. Its New must be nil, and it cannot be
	// Significant. Its Name is the first part of the children's names, and defaults to
	// the name of the Dynamic. Its Restart defaults to Temporary.
	Template Spec
	// Backoff says how long a child waits before a restart, unless the Template has a
	// Backoff. Its MaxRestarts and Window are the restart intensity. They count the
	// restarts of all children together.
	Backoff Backoff
	// MaxChildren is the most children that there may be at one time, those that wait
	// for a restart or stop included. 0 sets no limit.
	MaxChildren int
	// ContainTerminate is that of [SupervisorConfig].
	ContainTerminate bool
	// PassThroughPanics is that of [SupervisorConfig].
	PassThroughPanics bool
}

// Dynamic is a [Supervisor] whose children are all of one kind: connections, jobs,
// sessions. [Dynamic.Add] starts a child with an argument of its own. A child that has
// ended and is not restarted is forgotten, so a Dynamic may have millions of children
// over its life. Children are independent of each other: each starts at once and is
// restarted alone, and all stop at the same time. The State lists them in no order.
//
// It has the methods of Supervisor with three differences. StopChild removes the child.
// RestartChild returns an error for a child whose Restart is Temporary or Never, because
// its argument is not kept once it has started. Replace, and the Add of the embedded
// Supervisor, return an error. A Dynamic may be the child of a Supervisor, and its
// children may be Supervisors.
type Dynamic[A any] struct {
	Supervisor
	make func(name string, arg A) (Worker, error)
}

// NewDynamic returns a Dynamic whose children call run with their argument. Start returns
// an error when cfg is not valid.
func NewDynamic[A any](name string, cfg DynamicConfig, run func(ctx context.Context, arg A) error) *Dynamic[A] {
	d := &Dynamic[A]{}
	if run != nil {
		d.make = func(name string, arg A) (Worker, error) {
			return NewFunc(name, func(ctx context.Context) error { return run(ctx, arg) }), nil
		}
	}
	d.init(name, cfg, true)
	return d
}

// NewDynamicOf returns a Dynamic whose children are the workers that newWorker returns,
// such as a [Process] or a [Supervisor]. newWorker gets the name of the child, which its
// worker must have, and the argument. It is called for each start, as the New of a [Spec]
// is.
func NewDynamicOf[A any](name string, cfg DynamicConfig, newWorker func(name string, arg A) (Worker, error)) *Dynamic[A] {
	d := &Dynamic[A]{make: newWorker}
	d.init(name, cfg, false)
	return d
}

func (d *Dynamic[A]) init(name string, cfg DynamicConfig, plain bool) {
	d.setUp("dynamic", name, SupervisorConfig{Backoff: cfg.Backoff, ContainTerminate: cfg.ContainTerminate, PassThroughPanics: cfg.PassThroughPanics})
	k := &kin{self: d, template: cfg.Template, max: cfg.MaxChildren, plain: plain}
	if k.template.Name == "" {
		k.template.Name = name
	}
	if k.template.Restart == "" {
		k.template.Restart = Temporary
	}
	switch {
	case d.make == nil:
		k.refused = errors.New("the function is nil")
	case k.template.New != nil:
		k.refused = errors.New("the Template has a New, want none: the function of the Dynamic takes its place")
	case k.template.Significant:
		k.refused = errors.New("the Template is Significant, but a Dynamic has no AutoShutdown")
	case k.max < 0:
		k.refused = fmt.Errorf("MaxChildren is %d, want 0 or more", k.max)
	default:
		spec := k.template
		spec.New = func(string) (Worker, error) { return nil, nil } // only for Validate
		k.refused = spec.Validate()
	}
	k.template.withDefaults()
	d.kin = k
}

// Add starts a child with an argument. It returns the child's name once the Dynamic has
// accepted the child: the Template's name, "-" and a number that no other child of the
// Dynamic has had. The error is [ErrTooManyChildren] when there are MaxChildren, and
// [ErrSupervisorEnded] when the Dynamic starts no more children. Before Start it is an
// error that says so.
func (d *Dynamic[A]) Add(arg A) (name string, err error) {
	m := addKin{make: func(name string) (Worker, error) { return d.make(name, arg) }, name: &name}
	err = d.askStarted(context.Background(), "add to "+d.Name(), func(reply chan<- error) message {
		m.reply = reply
		return m
	})
	if err != nil {
		return "", err
	}
	return name, nil
}

// kin is what the children of a [Dynamic] have in common.
type kin struct {
	self     Worker // the Dynamic
	template Spec
	max      int
	plain    bool   // the children are functions without options
	refused  error  // Start returns it
	made     uint64 // children so far
}

// errTemplate is the error of the methods that give one child a Spec of its own.
var errTemplate = errors.New("the children of a Dynamic share its Template")

func (s *Supervisor) addKin(m addKin) {
	k := s.kin
	switch {
	case s.ending || s.holding:
		m.reply <- ErrSupervisorEnded
		return
	case k.max > 0 && len(s.children) >= k.max:
		m.reply <- ErrTooManyChildren
		return
	}
	k.made++
	c := &child{s: s, name: k.template.Name + "-" + strconv.FormatUint(k.made, 10), spec: &k.template, make: m.make}
	*m.name = c.name
	s.mu.Lock()
	s.place(c)
	s.mu.Unlock()
	m.reply <- nil
	s.enter(c)
}

// treeOf returns the supervisor that w is, or nil for another worker.
func treeOf(w Worker) *Supervisor {
	switch t := w.(type) {
	case *Supervisor:
		return t
	case interface{ tree() *Supervisor }:
		// A type of a user may embed a Dynamic and have methods of its own.
		if s := t.tree(); s != nil && s.kin != nil && s.kin.self == w {
			return s
		}
	}
	return nil
}

func (s *Supervisor) tree() *Supervisor { return s }
