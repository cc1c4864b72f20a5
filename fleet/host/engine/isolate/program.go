package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/procpool"
)

// isolated is an engine whose code runs in children.
type isolated struct {
	children *Children
	mime     string
	inner    engine.Engine
}

// MIMETypes returns the type of the engine.
func (e *isolated) MIMETypes() []string { return []string{e.mime} }

// Features says that a child is isolated, and ends when its code breaks a limit.
func (e *isolated) Features() engine.Features {
	return engine.Features{
		Interrupts: true, MemoryLimit: true, Isolated: true,
		Notes: "each worker's code runs in a process of its own, which ends with a code that breaks a limit; " + e.inner.Features().Notes,
	}
}

// Load starts a child and has it load the code.
func (e *isolated) Load(ctx context.Context, code []byte, cfg engine.Config) (engine.Program, error) {
	p := e.program(code, cfg)
	if err := p.Prepare(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// LoadLater starts nothing. The program's Prepare does what Load does.
func (e *isolated) LoadLater(code []byte, cfg engine.Config) engine.Program {
	return e.program(code, cfg)
}

func (e *isolated) program(code []byte, cfg engine.Config) *program {
	cfg.Limits = cfg.Limits.WithDefaults()
	return &program{engine: e, code: code, cfg: cfg}
}

// program is code that a child runs when there are messages.
type program struct {
	engine *isolated
	cfg    engine.Config
	code   []byte

	mu     sync.Mutex // held during a call; guards everything below
	closed bool
	child  *process    // nil when there is none
	idle   *time.Timer // ends the child
}

var errClosed = errors.New("the program is closed")

// Prepare starts a child that has loaded the code, unless there is one.
func (p *program) Prepare(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.rest()
	if p.child != nil {
		return nil
	}
	return p.boot(ctx)
}

// Handle sends the message to the child. It loads the code first when the child has
// ended since Prepare.
func (p *program) Handle(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.rest()
	if p.child == nil {
		if err := p.boot(ctx); err != nil {
			return nil, err
		}
	}
	question := ask{Handle: &message{m.Worker, m.ID, m.Topic, m.Attempt, m.Fence, m.Header, m.Data}}
	limit := p.cfg.Limits.Time
	a, err := p.call(ctx, question, "message", limit, p.cfg.Limits.TimeLimit(), s)
	if err == nil && a.Empty { // another child than the one that has loaded the code: that one ended while it was idle
		if err = p.load(ctx); err == nil {
			a, err = p.call(ctx, question, "message", limit, p.cfg.Limits.TimeLimit(), s)
		}
	}
	if err != nil {
		return nil, err
	}
	outputs, err := a.outputs()
	if err != nil {
		return nil, err
	}
	return outputs, p.cfg.Limits.Check(outputs)
}

// Close ends the child.
func (p *program) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.idle != nil {
		p.idle.Stop()
	}
	return p.endLocked()
}

// rest begins the time after which an idle child ends.
func (p *program) rest() {
	switch after := p.engine.children.cfg.Idle; {
	case p.child == nil || p.closed:
	case p.idle == nil:
		p.idle = time.AfterFunc(after, p.sleep)
	default:
		p.idle.Reset(after)
	}
}

// sleep ends a child that is idle.
func (p *program) sleep() {
	if p.mu.TryLock() { // otherwise a call runs, and rests when it ends
		defer p.mu.Unlock()
		if err := p.endLocked(); err != nil {
			p.engine.children.warn("end an idle child", p.cfg.Worker, err)
		}
	}
}

// boot starts a child and has it load the code.
func (p *program) boot(ctx context.Context) error {
	if p.closed {
		return errClosed
	}
	c, err := p.engine.start(p.cfg)
	if err != nil {
		return fmt.Errorf("start a process for the code: %w", err)
	}
	p.child = c
	// The start of the process is not the code's time.
	if _, err := p.call(ctx, ask{}, "start", p.engine.children.cfg.StartTimeout, errors.New("the process for the code did not start in time"), nil); err != nil {
		return errors.Join(err, p.endLocked())
	}
	return p.load(ctx)
}

func (p *program) load(ctx context.Context) error {
	l := p.cfg.Limits
	question := ask{Load: &load{p.engine.mime, p.cfg.Worker, l, p.code}}
	late := &engine.LimitError{What: "load time", Limit: l.Load.String()}
	if _, err := p.call(ctx, question, "load", l.Load, late, nil); err != nil {
		err = errors.Join(err, p.endLocked())
		if errors.Is(err, engine.ErrLimit) && !errors.Is(err, engine.ErrBadCode) {
			err = engine.BadCode(err)
		}
		return err
	}
	return nil
}

// end ends the child and waits until its processes have ended.
func (p *program) endLocked() error {
	c := p.child
	p.child = nil
	if c == nil {
		return nil
	}
	return c.end()
}

// call asks the child. It ends the child when limit or ctx is over. The error is late
// when limit is.
func (p *program) call(parent context.Context, question ask, during string, limit time.Duration, late error, s engine.State) (*answer, error) {
	payload, err := json.Marshal(question)
	if err != nil {
		return nil, err
	}
	// The pool would ask a worker whose deadline has passed for its stacks. A deadline
	// of ours is a cancellation.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	defer cancel(nil)
	stop := context.AfterFunc(parent, func() { cancel(context.Cause(parent)) })
	defer stop()
	timer := time.AfterFunc(limit, func() { cancel(late) })
	defer timer.Stop()
	shared := &sharedState{state: s}
	defer shared.end()
	q, err := p.child.pool.Submit(ctx, payload, procpool.Calls(shared.answer))
	var raw json.RawMessage
	if err == nil {
		printer := engine.NewPrinter(p.cfg)
		for part, err := range q.Messages() {
			var line printed
			if err == nil && json.Unmarshal(part, &line) == nil {
				_ = printer.Println(line.Print)
			}
		}
		printer.Close()
		raw, err = q.Result()
	}
	if err != nil {
		return nil, p.died(ctx, parent, err, during, late)
	}
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, p.died(ctx, parent, fmt.Errorf("its answer: %w", err), during, late)
	}
	return &a, a.err(p.cfg.Limits)
}

// died ends what is left of the child, and returns why there is no answer.
func (p *program) died(ctx, parent context.Context, err error, during string, late error) error {
	c := p.child
	if failed := p.endLocked(); failed != nil {
		p.engine.children.warn("end a child", p.cfg.Worker, failed)
	}
	killed := &engine.KilledError{During: during, Err: c.stderr.explain(err)}
	cause := context.Cause(ctx)
	switch {
	case during == "start":
		if cause != nil {
			err = cause
		}
		return fmt.Errorf("start a process for the code: %w", c.stderr.explain(err))
	case cause != nil && (errors.Is(cause, late) || errors.Is(cause, engine.ErrLimit) || errors.Is(cause, context.DeadlineExceeded)):
		if errors.Is(cause, context.DeadlineExceeded) {
			cause = late
		}
		p.engine.children.killed.Add(1)
		return fmt.Errorf("%w: %w", cause, &engine.KilledError{During: during, Err: errors.New("it did not return in time")})
	case cause != nil:
		return cause // the host has ended the call
	case parent.Err() != nil:
		return context.Cause(parent)
	case c.stderr.outOfMemory():
		p.engine.children.killed.Add(1)
		return fmt.Errorf("%w: %w", p.cfg.Limits.MemoryLimit(), killed)
	}
	p.engine.children.killed.Add(1)
	if during == "load" {
		return engine.BadCode(killed)
	}
	return killed
}

// process is a pool of one process that runs the code of one program.
type process struct {
	children *Children
	pool     *procpool.Pool
	stderr   *lastWords
	dir      string // private to it; "" for none
}

// soon is how long a child may take for a step of its end. It has nothing to lose.
const soon = time.Millisecond

func (e *isolated) start(cfg engine.Config) (*process, error) {
	c := &process{children: e.children, stderr: new(lastWords)}
	s := spec{Read: systemFiles}
	memory := cfg.Limits.Memory + margin
	if ext, ok := e.inner.(External); ok {
		var err error
		if c.dir, err = e.children.own.child(e.children.cfg.UID, e.children.cfg.GID); err != nil {
			return nil, err
		}
		var read []string
		if s.Exec, s.Env, read, err = ext.Command(c.dir); err != nil {
			return nil, errors.Join(err, os.RemoveAll(c.dir))
		}
		s.Read = append(read, s.Read...)
		s.Write = c.dir
	}
	s.Required = e.children.cfg.Required
	var err error
	c.pool, err = procpool.New(procpool.Config{
		Name: "engine-" + cfg.Worker, Command: func() *exec.Cmd { return e.children.command(s, c.stderr) }, Process: e.children.process(memory),
		MaxWorkers: 1, MaxQueue: 1, Inherit: true, QueryTimeout: math.MaxInt64 / 4, StartTimeout: e.children.cfg.StartTimeout, BreakAfter: 1,
		CancelGrace: soon, ShutdownGrace: soon, KillGrace: soon, DrainTimeout: soon, HealthInterval: procpool.Off,
		MaxFrame: maxFrame, OutputLines: procpool.Off, Logger: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		err = c.pool.Start(context.Background())
	}
	if err != nil {
		if c.dir != "" {
			err = errors.Join(err, os.RemoveAll(c.dir))
		}
		return nil, err
	}
	e.children.running.Add(1)
	e.children.started.Add(1)
	return c, nil
}

// maxFrame bounds a message to and from a child: code of 32 MiB as JSON.
const maxFrame = 64 << 20

// endTakes bounds the end of a child. The kernel ends a process that was killed
// sooner.
const endTakes = 10 * time.Second

// end ends the process and removes its folder.
func (c *process) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTakes)
	defer cancel()
	err := c.pool.Stop(ctx)
	c.children.running.Add(-1)
	if c.dir != "" {
		err = errors.Join(err, os.RemoveAll(c.dir))
	}
	return err
}
