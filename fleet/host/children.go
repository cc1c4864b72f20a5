package host

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// EngineMain makes this program able to run the code of its host's workers in child
// processes. Call it first in main, with the engines that the host has; an engine for
// an interpreter, such as Python's, and engines of [engine.Trusted] need not to be
// among them. In a child it runs code and never returns. In any other process it
// returns at once.
//
//	func main() {
//		host.EngineMain(starlark.New(), js.New(), wasm.New())
//		…
//	}
//
// A program that does not call it names another one in Config.Isolation.
func EngineMain(engines ...engine.Engine) { isolate.Main(engines...) }

// children are the child processes of a host, and its cap on the handlers that run at
// once.
type children struct {
	*isolate.Children // nil when the host trusts all engines
	missing           atomic.Pointer[[]string]
	gate              gate
}

// close removes the private folder of this host's children.
func (c *children) close() error {
	if c.Children == nil {
		return nil
	}
	return c.Children.Close()
}

// isolateEngines replaces each engine that the host does not trust by one that runs
// code in children.
func (h *Host) isolateEngines() error {
	h.children.gate = newGate(h.cfg.MaxHandlers)
	trusts := true
	h.cfg.Engines.Each(func(_ string, e engine.Engine) engine.Engine {
		trusts = trusts && engine.IsTrusted(e)
		return e
	})
	if trusts {
		return nil
	}
	made, err := isolate.New(h.cfg.Isolation)
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	h.children.Children = made
	h.cfg.Engines = h.cfg.Engines.Each(made.Engine)
	return nil
}

// probeFloor says once in the log what children lack of their floor.
func (h *Host) probeFloor(ctx context.Context) {
	if h.children.Children == nil {
		return
	}
	h.running.Add(1)
	call.Go("floor of children", func() error {
		missing, err := h.children.Missing(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			h.log.Error("hosted workers: their code cannot run", "err", err)
		case err == nil:
			h.children.missing.Store(&missing)
			for _, part := range missing {
				h.log.Warn("hosted workers: their code runs without a part of its containment, see docs/hosted-security.md", "missing", part)
			}
		}
		return err
	}, func(error) { h.running.Done() })
}

// Isolation says what the child processes of a host do.
type Isolation struct {
	isolate.Stats
	// Missing are the parts of the containment that this system does not have, each
	// with the reason. It is nil until the host has found out, after Start.
	Missing []string
}

// Isolation returns what the child processes of this host do now. It is zero when the
// host trusts all its engines.
func (h *Host) Isolation() Isolation {
	var i Isolation
	if h.children.Children != nil {
		i.Stats = h.children.Stats()
	}
	if missing := h.children.missing.Load(); missing != nil {
		i.Missing = *missing
	}
	return i
}

// gate caps how many children handle messages at once. A worker whose last message
// took long gets a place only while others keep half of them, so that workers that
// never return delay each other and not those that are quick.
type gate struct {
	all, slow chan struct{}
}

// slowAfter is how long a message takes that makes its worker a slow one.
const slowAfter = 100 * time.Millisecond

func newGate(places int) gate {
	return gate{make(chan struct{}, places), make(chan struct{}, max(1, places/2))}
}

// enter waits for a place. leave gives it back.
func (g gate) enter(ctx context.Context, slow bool) (leave func(), err error) {
	if slow {
		select {
		case g.slow <- struct{}{}:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	select {
	case g.all <- struct{}{}:
		return func() {
			<-g.all
			if slow {
				<-g.slow
			}
		}, nil
	case <-ctx.Done():
		if slow {
			<-g.slow
		}
		return nil, context.Cause(ctx)
	}
}

// defaultHandlers is enough for the handlers that wait for state while others compute.
func defaultHandlers() int { return 4 * max(2, runtime.GOMAXPROCS(0)) }

// kills counts the messages that ended the process of a program's code.
type kills struct {
	mu       sync.Mutex // guards everything below
	messages map[string]struct{}
}

// add counts a message once, and returns how many there are.
func (k *kills) add(message string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.messages == nil {
		k.messages = make(map[string]struct{})
	}
	k.messages[message] = struct{}{}
	return len(k.messages)
}

// prepare waits for a place for the handler of a message and makes the program ready
// for it. It returns a function that gives the place back. A program in this process
// needs no place.
func (r *runner) prepare(ctx context.Context, d *delivery) (leave func(), err error) {
	p, ok := d.member.program.(engine.Preparer)
	if !ok {
		return func() {}, nil
	}
	place, err := r.host.children.gate.enter(ctx, d.member.slow.Load())
	if err != nil {
		return nil, err
	}
	if err := call.Do("engine", func() error { return p.Prepare(ctx) }); err != nil {
		place()
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		err = d.member.veil.err(err)
		r.slot.hasBroken(d.member.record, fmt.Errorf("load code: %w", err))
		r.halt()
		return nil, err
	}
	began := time.Now()
	return func() {
		d.member.slow.Store(time.Since(began) > slowAfter)
		place()
	}, nil
}

// wasKilled counts a message that has ended the process of its worker's code. The
// worker is put into quarantine when there were too many.
func (r *runner) wasKilled(d *delivery, err error) {
	killed, is := didKill(err)
	if !is {
		return
	}
	if n := d.member.kills.add(messageKey(d)); n >= r.host.cfg.MaxKills {
		r.slot.hasBroken(d.member.record, fmt.Errorf("%d messages ended the process of the code, the last one: %w", n, d.member.veil.err(killed)))
		r.halt()
	}
}

// messageOf returns a message as a handler sees it.
func (r *runner) messageOf(d *delivery, attempt int) *engine.Message {
	return &engine.Message{Worker: d.member.record.ID, ID: d.id, Topic: d.topic, Attempt: attempt, Fence: r.part.fence, Header: d.header, Data: d.data, Timer: r.firedOf(d)}
}

// maxAhead bounds how many messages a child handles ahead, and maxAheadSize their bytes.
const (
	maxAhead     = 64
	maxAheadSize = 256 << 10
)

// lookAhead tells the program of a message which messages will come next, so that its
// child need not wait for the host between two of them. A slow worker gains nothing.
func (r *runner) lookAhead(t *task, d *delivery) {
	p, ok := d.member.program.(engine.Forerunner)
	if !ok || d.member.slow.Load() || len(*r.members.Load()) > 1 {
		return
	}
	p.Ahead(func() (messages []*engine.Message) {
		size := 0
		for _, next := range r.queue.Behind(t, maxAhead) {
			done, was, doomed := r.part.about(next.seq)
			size += len(next.data)
			if done || doomed != nil || was.Failed > 0 || was.Spared || (*r.members.Load())[0].versionFor(next, was).program != d.member.program || next.suspect || next.redriven || next.alarm != nil || size > maxAheadSize || !matches(d.member.record.Topic, next.topic) {
				break
			}
			messages = append(messages, &engine.Message{Worker: d.member.record.ID, ID: next.id, Topic: next.topic, Attempt: 1, Fence: r.part.fence, Header: next.header, Data: next.data})
		}
		return messages
	})
}

// broken is code that turned out to be unable to run after its program was made.
type broken struct {
	uid string
	err error
}

// hasBroken takes a worker out of service once its runner has ended.
func (s *slot) hasBroken(rec *Record, err error) {
	s.mu.Lock()
	s.broken[tally{rec.ID, rec.Generation}] = broken{rec.UID, err}
	s.mu.Unlock()
}

// takeBroken returns why rec's code cannot run, once.
func (s *slot) takeBroken(rec *Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := tally{rec.ID, rec.Generation}
	b, ok := s.broken[key]
	delete(s.broken, key)
	if !ok || b.uid != rec.UID {
		return nil
	}
	return b.err
}
