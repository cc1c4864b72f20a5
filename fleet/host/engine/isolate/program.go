package isolate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// isolated is an engine whose code runs in children.
type isolated struct {
	children *Children
	mime     string
	inner    engine.Engine
}

// MIMETypes returns the type of the engine.
func (e *isolated) MIMETypes() []string { return []string{e.mime} }

// Load starts a child and makes it load the code.
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
	return &program{engine: e, code: code, cfg: withDefaults(cfg)}
}

// program is a worker's code, which a child process runs while there are messages.
type program struct {
	engine *isolated
	cfg    engine.Config
	code   []byte

	mu     sync.Mutex // held during a call; guards everything below
	closed bool
	child  *process                 // nil when no child runs
	batch  *batch                   // messages that the child handles ahead; nil for none
	ahead  func() []*engine.Message // of the next Handle
	idle   *time.Timer              // calls endIdle
}

var errClosed = errors.New("the program is closed")

// Prepare starts a child that has loaded the code, unless there is one.
func (p *program) Prepare(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.resetIdle()
	if p.child != nil {
		return nil
	}
	return p.startChild(ctx)
}

// Ahead keeps the function for the next Handle.
func (p *program) Ahead(next func() []*engine.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ahead = next
}

// Handle makes the child handle the message. When the child has ended since Prepare, Handle
// starts another one.
func (p *program) Handle(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.resetIdle()
	a, err := p.handle(ctx, m, s)
	if err != nil {
		return nil, err
	}
	outputs, err := a.outputs()
	if errors.Is(err, engine.ErrLimit) {
		// The child may still hold the memory that the message took, and would end at the next
		// message.
		return nil, errors.Join(err, p.endChild())
	}
	if err != nil {
		return nil, err
	}
	return outputs, p.cfg.Limits.Check(outputs)
}

// handle returns the child's answer to a message.
func (p *program) handle(ctx context.Context, m *engine.Message, s engine.State) (*answer, error) {
	ahead := p.ahead
	p.ahead = nil // it is for this message alone, also when the child has answered it already
	if a, err := p.answeredAhead(ctx, m, s); a != nil || err != nil {
		return a, err
	}
	messages := []*engine.Message{m}
	if ahead != nil {
		messages = append(messages, ahead()...)
	}
	const tries = 2 // a child that was idle may have ended
	for range tries {
		a, err := p.ask(ctx, messages, s)
		if errors.Is(err, errBatchEnded) {
			messages = messages[:1]
			a, err = p.ask(ctx, messages, s)
		}
		if err != nil || !a.Empty {
			return a, err
		}
		if err := p.load(ctx); err != nil { // another child than the one that has loaded the code
			return nil, err
		}
	}
	return nil, errors.New("the process of the code forgets what it has loaded")
}

// ask asks the child for messages. It starts the child when there is none.
func (p *program) ask(ctx context.Context, messages []*engine.Message, s engine.State) (*answer, error) {
	if p.child == nil {
		if err := p.startChild(ctx); err != nil {
			return nil, err
		}
	}
	question := ask{Handle: make([]message, len(messages))}
	for i, m := range messages {
		question.Handle[i] = message{m, timerOf(m.Timer), m.Trace().Parent}
	}
	return p.call(ctx, question, nil, p.handling(), s, messages)
}

// answeredAhead returns the answer of a child that has handled the message ahead, nil when
// there is none.
func (p *program) answeredAhead(ctx context.Context, m *engine.Message, s engine.State) (*answer, error) {
	b := p.batch
	if b == nil {
		return nil, nil
	}
	if !b.expects(m) {
		p.batch = nil
		b.end()
		return nil, nil
	}
	a, err := p.await(ctx, b, p.handling(), s)
	if errors.Is(err, errBatchEnded) {
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
	return p.endChild()
}

// resetIdle begins the time after which an idle child ends.
func (p *program) resetIdle() {
	switch after := p.engine.children.cfg.Idle; {
	case p.child == nil || p.closed:
	case p.idle == nil:
		p.idle = time.AfterFunc(after, p.endIdle)
	default:
		p.idle.Reset(after)
	}
}

func (p *program) endIdle() {
	if p.mu.TryLock() { // otherwise a call runs, and resets the time when it ends
		defer p.mu.Unlock()
		if err := p.endChild(); err != nil {
			p.warn("end an idle child", err)
		}
	}
}

func (p *program) warn(what string, err error) {
	slog.Warn("hosted worker: "+what, "worker", p.cfg.Worker, "error", err)
}

// startChild starts a child and makes it load the code.
func (p *program) startChild(ctx context.Context) error {
	if p.closed {
		return errClosed
	}
	c, err := p.engine.start(p.cfg)
	if err != nil {
		return fmt.Errorf("start a process for the code: %w", err)
	}
	p.child = c
	// The start of the process is not the code's time.
	starting := step{
		during: "start",
		limit:  p.engine.children.cfg.StartTimeout,
		late:   errors.New("the process for the code did not start in time"),
	}
	if _, err := p.call(ctx, ask{}, nil, starting, nil, nil); err != nil {
		return errors.Join(err, p.endChild())
	}
	return p.load(ctx)
}

// load makes a child that has answered load the code.
func (p *program) load(ctx context.Context) error {
	p.engine.children.threads.add(p.child)
	l := p.cfg.Limits
	question := ask{Load: &load{p.engine.mime, p.cfg.Worker, l, p.cfg.MaxCall, p.cfg.Env}}
	loading := step{
		during: "load",
		limit:  l.Load,
		late:   &engine.LimitError{What: "load time", Limit: l.Load.String()},
	}
	_, err := p.call(ctx, question, p.code, loading, nil, nil)
	if err == nil {
		return nil
	}
	err = errors.Join(err, p.endChild())
	if errors.Is(err, engine.ErrLimit) && !errors.Is(err, engine.ErrBadCode) {
		err = engine.BadCode(err)
	}
	return err
}

// endChild ends the child and waits until its processes have ended.
func (p *program) endChild() error {
	c, b := p.child, p.batch
	p.child, p.batch = nil, nil
	if b != nil {
		b.end()
	}
	if c == nil {
		return nil
	}
	return c.end()
}

// step is the work of a child for one answer. When limit is over, the answer is the error late.
type step struct {
	during string // "start", "load" or "message"
	limit  time.Duration
	late   error
}

func (p *program) handling() step {
	return step{during: "message", limit: p.cfg.Limits.Time, late: p.cfg.Limits.TimeLimit()}
}

// call asks the child. It ends the child when the step takes too long or ctx ends.
func (p *program) call(
	ctx context.Context, question ask, code []byte, s step, state engine.State, messages []*engine.Message,
) (*answer, error) {
	b, err := p.child.begin(question, code, messages)
	if b == nil {
		return nil, err
	}
	if err != nil {
		return nil, p.ended(ctx, b, err, s)
	}
	return p.await(ctx, b, s, state)
}

// errBatchEnded says that the child ended while it had several messages. To find out which of
// them ended it, the program handles each alone.
var errBatchEnded = errors.New("the process of the code ended with several messages")

// await returns the child's next answer.
func (p *program) await(ctx context.Context, b *batch, s step, state engine.State) (*answer, error) {
	stop := context.AfterFunc(ctx, func() { b.cancel(context.Cause(ctx)) })
	defer stop()
	timer := time.AfterFunc(s.limit, func() { b.cancel(s.late) })
	defer timer.Stop()
	b.states[b.at].give(state)
	printer := engine.NewPrinter(p.cfg)
	a, last, err := b.read(printer)
	printer.Close()
	b.states[b.at].end()
	if b.at++; err != nil {
		p.batch = nil
		return nil, p.ended(ctx, b, err, s)
	}
	if err = a.err(p.cfg.Limits); last || err != nil || b.at >= len(b.messages) {
		p.batch = nil
		b.end()
	} else {
		p.batch = b
	}
	return a, err
}

// ended ends the rest of the child, and returns why there is no answer.
func (p *program) ended(ctx context.Context, b *batch, err error, s step) error {
	stderr, tooMany := p.child.stderr, p.child.tooMany.Load()
	cause := context.Cause(b.ctx)
	b.end()
	if err := p.endChild(); err != nil {
		p.warn("end a child", err)
	}
	if s.during == "start" {
		if cause != nil {
			err = cause
		}
		return fmt.Errorf("start a process for the code: %w", stderr.explain(err))
	}
	killed := &engine.KilledError{During: s.during, Err: stderr.explain(err)}
	late := errors.Is(cause, s.late) || errors.Is(cause, engine.ErrLimit)
	switch {
	case errors.Is(cause, context.DeadlineExceeded):
		cause, late = s.late, true
	case late:
	case cause != nil:
		return cause // the host has ended the call
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case len(b.messages) > 1:
		return errBatchEnded
	}
	p.engine.children.killed.Add(1)
	switch {
	case late:
		killed.Err = errors.New("it did not return in time")
		return fmt.Errorf("%w: %w", cause, killed)
	case tooMany:
		return fmt.Errorf("%w: %w", &engine.LimitError{What: "threads", Limit: strconv.Itoa(maxThreads)}, killed)
	case stderr.outOfMemory():
		return fmt.Errorf("%w: %w", p.cfg.Limits.MemoryLimit(), killed)
	case s.during == "load":
		return engine.BadCode(killed)
	case errors.Is(err, engine.ErrLimit):
		return fmt.Errorf("%w: %w", err, killed)
	case errors.As(err, new(*wire.TooLongError)):
		return fmt.Errorf("%w: %w", p.cfg.Limits.OutputLimit(), killed)
	}
	return killed
}
