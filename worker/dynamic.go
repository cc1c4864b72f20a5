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
	// MaxChildren is how many children there may be at one time. Children that wait for a
	// restart or stop count; abandoned ones do not. 0 sets no limit.
	MaxChildren int
	// ContainTerminate is as in [SupervisorConfig].
	ContainTerminate bool
	// PassThroughPanics is as in [SupervisorConfig].
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
//
// While an App drains, Add goes on, because the requests that still arrive may need a
// child. No child is restarted then.
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
	d.init(name, cfg)
	return d
}

// NewDynamicOf returns a Dynamic whose children are the workers that newWorker returns,
// such as a [Process] or a [Supervisor]. newWorker gets the name of the child, which its
// worker must have, and the argument. It is called for each start, as the New of a [Spec]
// is.
func NewDynamicOf[A any](name string, cfg DynamicConfig, newWorker func(name string, arg A) (Worker, error)) *Dynamic[A] {
	d := &Dynamic[A]{make: newWorker}
	d.init(name, cfg)
	return d
}

func (d *Dynamic[A]) init(name string, cfg DynamicConfig) {
	d.setUp("dynamic", name, SupervisorConfig{
		Backoff:           cfg.Backoff,
		ContainTerminate:  cfg.ContainTerminate,
		PassThroughPanics: cfg.PassThroughPanics,
	})
	if cfg.Template.Name == "" {
		cfg.Template.Name = name
	}
	d.dynamic = &dynamic{self: d, template: cfg.template(), max: cfg.MaxChildren, refused: cfg.Validate()}
	if d.make == nil {
		d.dynamic.refused = errors.Join(errors.New("the function is nil"), d.dynamic.refused)
	}
	d.dynamic.template.withDefaults()
}

// Validate returns an error that names each field that is wrong and says what is
// accepted.
func (c DynamicConfig) Validate() error {
	errs := []error{c.Backoff.Validate()}
	spec := c.template()
	if spec.New != nil {
		errs = append(errs, errors.New("the Template has a New, want none: the function of the Dynamic takes its place"))
	}
	if spec.Significant {
		errs = append(errs, errors.New("the Template is Significant, but a Dynamic has no AutoShutdown"))
		spec.Significant = false // one error is enough
	}
	if c.MaxChildren < 0 {
		errs = append(errs, fmt.Errorf("MaxChildren is %d, want 0 or more", c.MaxChildren))
	}
	if spec.Name == "" {
		spec.Name = "template" // the Dynamic has a name
	}
	spec.New = func(string) (Worker, error) { return nil, nil } // it is never called
	return errors.Join(append(errs, spec.Validate())...)
}

// template returns the Template with the policy that is the default here.
func (c DynamicConfig) template() Spec {
	spec := c.Template
	if spec.Restart == "" {
		spec.Restart = Temporary
	}
	return spec
}

// Add starts a child with an argument. It returns the child's name once the Dynamic has
// accepted the child: the Template's name, "-" and a number that no other child of the
// Dynamic has had. The error is [ErrTooManyChildren] when there are MaxChildren, and
// [ErrSupervisorEnded] when the Dynamic starts no more children. Before Start it is an
// error that says so.
func (d *Dynamic[A]) Add(arg A) (name string, err error) {
	return d.addOne(func(name string) (Worker, error) { return d.make(name, arg) })
}

// addOne is the part of Add that does not depend on the argument.
func (s *Supervisor) addOne(newWorker func(name string) (Worker, error)) (name string, err error) {
	err = s.requestStarted(context.Background(), "add to "+s.Name(), func(reply chan<- error) {
		d := s.dynamic
		switch {
		case s.ending:
			reply <- ErrSupervisorEnded
			return
		case d.max > 0 && len(s.children) >= d.max:
			reply <- ErrTooManyChildren
			return
		}
		d.made++
		name = d.template.Name + "-" + strconv.FormatUint(d.made, 10)
		c := &child{s: s, name: name, spec: &d.template, factory: newWorker}
		s.mu.Lock()
		s.place(c)
		s.mu.Unlock()
		reply <- nil
		s.enter(c)
	})
	if err != nil {
		return "", err
	}
	return name, nil
}

// dynamic is what the children of a [Dynamic] have in common.
type dynamic struct {
	self     Worker // the Dynamic
	template Spec
	max      int
	refused  error  // Start returns it
	made     uint64 // children so far
}

// errTemplate is the error of the methods that give one child a Spec of its own.
var errTemplate = errors.New("the children of a Dynamic share its Template")

// treeOf returns the supervisor that w is, or nil for another worker.
func treeOf(w Worker) *Supervisor {
	switch t := w.(type) {
	case *Supervisor:
		return t
	case interface{ tree() *Supervisor }:
		// A type of a user may embed a Dynamic and have methods of its own.
		if s := t.tree(); s != nil && s.dynamic != nil && s.dynamic.self == w {
			return s
		}
	}
	return nil
}

func (s *Supervisor) tree() *Supervisor { return s }
