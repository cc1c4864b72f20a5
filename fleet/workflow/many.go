package workflow

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Move is one transition of [Manager.TransitionMany].
type Move struct {
	// EntityID is the entity, and To the phase to move it to.
	EntityID, To string
	// Source and Note are stored with the transition, as in [Manager.Transition].
	Source TransitionSource
	Note   string
	// Options modify this write alone.
	Options []WriteOption
}

// Moved is the result of a [Move].
type Moved struct {
	// Revision is that of the write, 0 when nothing was written.
	Revision uint64
	// Err is the error that [Manager.Transition] returns; nil when the entity was moved.
	Err error
}

// TransitionMany moves many entities of a workflow. The result has one element for each
// move, at the same index. Each move is a write of its own with all that
// [Manager.Transition] promises: it happens once or not at all, also when
// others fail, and its error is the one that Transition returns. They are not one
// transaction.
//
//	for i, moved := range mgr.TransitionMany(ctx, "drone-survey", moves) {
//		if moved.Err != nil {
//			log.Print(moves[i].EntityID, ": ", moved.Err)
//		}
//	}
//
// The writes are pipelined: TransitionMany sends further ones before the first is
// answered, at most 256 at once. So it takes less time than a loop of Transition, and
// less processor time than a goroutine for each move. Two moves of one entity happen in
// their order; others in any. A move waits for its own entity at most as long as
// Transition does, and when ctx ends, moves that were not sent are not sent.
func (m *Manager) TransitionMany(ctx context.Context, workflow string, moves []Move) []Moved {
	results := make([]Moved, len(moves))
	r, err := m.registration(workflow)
	if err != nil {
		for i := range results {
			results[i].Err = fmt.Errorf("transition: %w", err)
		}
		return results
	}
	if len(moves) == 0 {
		return results
	}
	p := &pipeline{m: m, r: r, ctx: ctx, moves: moves, results: results, room: make(chan struct{}, pipelined), flights: make(map[int]*flight)}
	stop := p.listen()
	defer stop()
	last := make(map[string]int, len(moves))
	for i := range moves {
		if before, again := last[moves[i].EntityID]; again {
			p.follow(i, before)
		}
		last[moves[i].EntityID] = i
	}
	for i := range moves {
		select {
		case p.room <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil { // the others are not begun
			for ; i < len(moves); i++ {
				results[i].Err = r.untransited(moves[i].EntityID, context.Cause(ctx))
			}
			break
		}
		p.begin(i)
	}
	p.running.Wait()
	return results
}

// pipelined is how many moves are under way at once.
const pipelined = 256

// pipeline is one call of TransitionMany.
type pipeline struct {
	m       *Manager
	r       *registration
	ctx     context.Context
	moves   []Move
	results []Moved
	room    chan struct{} // holds a token for each move that is under way
	running sync.WaitGroup
	inbox   string                // the answers' subject, before the index; "" for no pipeline
	after   map[int]int           // the move before it of the same entity
	ended   map[int]chan struct{} // closed when a move that another one follows has ended

	mu      sync.Mutex // guards flights
	flights map[int]*flight
}

// flight is a move whose message was sent.
type flight struct {
	i  int
	o  *operation
	a  *attempt
	at time.Time
}

// follow makes a move wait for another one.
func (p *pipeline) follow(i, before int) {
	if p.after == nil {
		p.after, p.ended = make(map[int]int), make(map[int]chan struct{})
	}
	p.after[i], p.ended[before] = before, make(chan struct{})
}

// listen takes the answers, until the caller calls stop. Without a connection every move
// goes alone, and says so.
func (p *pipeline) listen() (stop func()) {
	nc := p.r.bucket.nc
	inbox := nc.NewInbox() + "."
	answers := make(chan *nats.Msg, 2*pipelined)
	sub, err := nc.ChanSubscribe(inbox+"*", answers)
	if err != nil {
		return func() {}
	}
	p.inbox = inbox
	lost := nc.StatusChanged(nats.RECONNECTING, nats.DISCONNECTED, nats.CLOSED)
	end := make(chan struct{})
	var listener sync.WaitGroup
	listener.Go(func() { p.take(answers, lost, end) })
	return func() {
		close(end)
		listener.Wait()
		nc.RemoveStatusListener(lost)
		_ = sub.Unsubscribe() // fails only when the connection has ended
	}
}

// take takes the answers. What will get none, because it is late, the connection was
// lost or ctx has ended, goes on alone.
func (p *pipeline) take(answers <-chan *nats.Msg, lost <-chan nats.Status, end <-chan struct{}) {
	tick := time.NewTicker(answerTime / 10)
	defer tick.Stop()
	over := p.ctx.Done()
	for {
		select {
		case msg := <-answers:
			i, err := strconv.Atoi(strings.TrimPrefix(msg.Subject, p.inbox))
			if err != nil {
				continue
			}
			if f := p.land(i); f != nil {
				p.landed(f, msg)
			}
		case <-tick.C:
			p.divert(nats.ErrTimeout, time.Now().Add(-answerTime))
		case _, more := <-lost:
			if !more {
				lost = nil
			}
			p.divert(nats.ErrDisconnected, time.Now())
		case <-over:
			over = nil
			p.divert(context.Cause(p.ctx), time.Now())
		case <-end:
			return
		}
	}
}

// land returns a flight that ends, nil when it has ended.
func (p *pipeline) land(i int) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.flights[i]
	delete(p.flights, i)
	return f
}

// divert ends the flights that began at a time or earlier, for want of an answer.
func (p *pipeline) divert(why error, at time.Time) {
	if p.ctx.Err() != nil {
		at = time.Now() // also one that began as ctx ended
	}
	p.mu.Lock()
	var late []*flight
	for i, f := range p.flights {
		if !f.at.After(at) {
			late = append(late, f)
			delete(p.flights, i)
		}
	}
	p.mu.Unlock()
	for _, f := range late {
		p.alone(f, &answer{err: why})
	}
}

// begin begins a move.
func (p *pipeline) begin(i int) {
	p.running.Add(1)
	before, second := p.after[i]
	if !second && p.inbox != "" && p.launch(i) {
		return
	}
	p.running.Go(func() {
		if second {
			<-p.ended[before]
		}
		o, err := p.operation(i)
		if err == nil {
			err = o.run(p.ctx)
		}
		p.end(i, o, err)
	})
}

func (p *pipeline) operation(i int) (*operation, error) {
	mv := &p.moves[i]
	w := options(mv.Options)
	if w.revision == nil {
		w.revision = new(uint64)
	}
	return p.m.transit(p.r, mv.EntityID, mv.Source, mv.Note, nil, w, func(string, *entry) (string, error) { return mv.To, nil })
}

// launch sends a move's message, if it can do so at once.
func (p *pipeline) launch(i int) bool {
	o, err := p.operation(i)
	if err != nil || p.ctx.Err() != nil {
		return false
	}
	a := o.begin()
	if a == nil {
		return false
	}
	f := &flight{i: i, o: o, a: a, at: time.Now()}
	p.mu.Lock()
	p.flights[i] = f
	p.mu.Unlock()
	a.msg.Reply = p.inbox + strconv.Itoa(i)
	if err := p.r.bucket.nc.PublishMsg(a.msg); err != nil && p.land(i) != nil {
		p.alone(f, &answer{err: err})
	}
	return true
}

// landed ends a move with its answer.
func (p *pipeline) landed(f *flight, msg *nats.Msg) {
	var err error
	if len(msg.Data) == 0 && msg.Header.Get("Status") == "503" {
		err = nats.ErrNoResponders
	}
	got := answered(msg, err)
	if got.err == nil && f.a.d.next == nil { // to show it takes no question to the server
		f.o.end(p.ctx, f.a, got.revision)
		p.r.bucket.queue.leave(f.o.key)
		p.end(f.i, f.o, nil)
		return
	}
	p.alone(f, got)
}

// alone ends a move on a goroutine of its own.
func (p *pipeline) alone(f *flight, got *answer) {
	p.running.Go(func() { p.end(f.i, f.o, f.o.persist(p.ctx, f.a, got)) })
}

// end notes the result of a move, and makes room for another one.
func (p *pipeline) end(i int, o *operation, err error) {
	p.results[i].Err = p.r.untransited(p.moves[i].EntityID, err)
	if err == nil && !o.w.dry {
		p.results[i].Revision = *o.w.revision
	}
	if ended := p.ended[i]; ended != nil {
		close(ended)
	}
	<-p.room
	p.running.Done()
}
