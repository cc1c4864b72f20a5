package isolate

import (
	"context"
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
	child  *process                 // nil when there is none
	flight *flight                  // of a child that goes ahead; nil for none
	ahead  func() []*engine.Message // of the next Handle
	idle   *time.Timer              // ends the child
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

// Ahead keeps the function for the next Handle.
func (p *program) Ahead(next func() []*engine.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ahead = next
}

// Handle has the child handle the message. It loads the code first when the child has
// ended since Prepare.
func (p *program) Handle(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.rest()
	a, err := p.continued(ctx, m, s)
	messages := []*engine.Message{m}
	if a == nil && err == nil && p.ahead != nil {
		messages = append(messages, p.ahead()...)
	}
	p.ahead = nil
	for tries := 0; err == nil && (a == nil || a.Empty) && tries < 2; tries++ {
		switch {
		case p.child == nil:
			err = p.boot(ctx)
		case a != nil: // another child than the one that has loaded the code: that one ended while it was idle
			err = p.load(ctx)
		}
		if err == nil {
			a, err = p.call(ctx, asks(messages), "message", p.cfg.Limits.Time, p.cfg.Limits.TimeLimit(), s, messages)
		}
		if errors.Is(err, errAlone) {
			a, err, messages, tries = nil, nil, messages[:1], -1
		}
	}
	if err != nil {
		return nil, err
	}
	if a.Empty {
		return nil, errors.New("the process of the code forgets what it has loaded")
	}
	outputs, err := a.outputs()
	if errors.Is(err, engine.ErrLimit) {
		// The child may still hold the memory that the message took, and would end at the
		// next message.
		return nil, errors.Join(err, p.endLocked())
	}
	if err != nil {
		return nil, err
	}
	return outputs, p.cfg.Limits.Check(outputs)
}

// asks returns the question for messages.
func asks(messages []*engine.Message) ask {
	q := ask{Handle: make([]message, len(messages))}
	for i, m := range messages {
		q.Handle[i] = message{m.Worker, m.ID, m.Topic, m.Attempt, m.Fence, m.Header, m.Data, timerOf(m.Timer)}
	}
	return q
}

// continued returns the answer of a child that has gone ahead to the message, nil when
// there is none.
func (p *program) continued(ctx context.Context, m *engine.Message, s engine.State) (*answer, error) {
	f := p.flight
	if f == nil {
		return nil, nil
	}
	if !f.expects(m) {
		p.flight = nil
		f.end()
		return nil, nil
	}
	a, err := p.await(ctx, f, "message", p.cfg.Limits.Time, p.cfg.Limits.TimeLimit(), s)
	if errors.Is(err, errAlone) {
		return nil, nil
	}
	return a, err
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
	if _, err := p.call(ctx, ask{}, "start", p.engine.children.cfg.StartTimeout, errors.New("the process for the code did not start in time"), nil, nil); err != nil {
		return errors.Join(err, p.endLocked())
	}
	return p.load(ctx)
}

func (p *program) load(ctx context.Context) error {
	l := p.cfg.Limits
	question := ask{Load: &load{p.engine.mime, p.cfg.Worker, l, p.code, p.cfg.Env}}
	late := &engine.LimitError{What: "load time", Limit: l.Load.String()}
	if _, err := p.call(ctx, question, "load", l.Load, late, nil, nil); err != nil {
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
	c, f := p.child, p.flight
	p.child, p.flight = nil, nil
	if f != nil {
		f.end()
	}
	if c == nil {
		return nil
	}
	return c.end()
}

// call asks the child. It ends the child when limit or ctx is over. The error is late
// when limit is.
func (p *program) call(ctx context.Context, question ask, during string, limit time.Duration, late error, s engine.State, messages []*engine.Message) (*answer, error) {
	f, err := p.child.begin(question, messages)
	if f == nil {
		return nil, err
	}
	if err != nil {
		return nil, p.died(ctx, f, err, during, late)
	}
	return p.await(ctx, f, during, limit, late, s)
}

// errAlone says that the child ended while it had several messages: which of them ended
// it shows when each is handled alone.
var errAlone = errors.New("the process of the code ended with several messages")

// await returns the child's next answer.
func (p *program) await(parent context.Context, f *flight, during string, limit time.Duration, late error, s engine.State) (*answer, error) {
	stop := context.AfterFunc(parent, func() { f.cancel(context.Cause(parent)) })
	defer stop()
	timer := time.AfterFunc(limit, func() { f.cancel(late) })
	defer timer.Stop()
	f.seats[f.at].take(s)
	printer := engine.NewPrinter(p.cfg)
	a, last, err := f.read(printer)
	printer.Close()
	f.seats[f.at].end()
	if f.at++; err != nil {
		p.flight = nil
		return nil, p.died(parent, f, err, during, late)
	}
	if err = a.err(p.cfg.Limits); last || err != nil || f.at >= len(f.messages) {
		p.flight = nil
		f.end()
	} else {
		p.flight = f
	}
	return a, err
}

// died ends what is left of the child, and returns why there is no answer.
func (p *program) died(parent context.Context, f *flight, err error, during string, late error) error {
	c := p.child
	cause := context.Cause(f.ctx)
	f.end()
	if failed := p.endLocked(); failed != nil {
		p.engine.children.warn("end a child", p.cfg.Worker, failed)
	}
	killed := &engine.KilledError{During: during, Err: c.stderr.explain(err)}
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
	case len(f.messages) > 1:
		return errAlone
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
