package procpool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"github.com/pleme-io/lifecycle-go/worker"
)

// At most one goroutine reads a worker's connection at a time. Which one changes:
//
//   - The caller of Do reads the answer itself when no other goroutine reads. Then
//     an answer wakes up only the caller: with a goroutine that reads half of the round
//     trips of 100 bytes take 51 µs in place of 21.
//   - Otherwise a goroutine of the pool reads while the worker has a query.
//   - While the worker has no query, no goroutine reads until check starts one. So an
//     idle worker needs no goroutine, and the pool still reads its messages soon. (The
//     pool waits for each process, so it sees an exit at once.)

// ensureReadingLocked starts a goroutine that reads, unless one already does.
func (w *proc) ensureReadingLocked() {
	if w.reading || w.closed || w.reader == nil {
		return
	}
	w.reading = true
	w.readers.Go(w.read)
}

// read takes the worker's messages until it has no query, the connection ends, or
// the worker breaks the protocol.
func (w *proc) read() {
	_ = w.conn.SetReadDeadline(time.Time{})
	for {
		err := w.step()
		if errors.Is(err, os.ErrDeadlineExceeded) && !w.isLeaving() {
			_ = w.conn.SetReadDeadline(time.Time{}) // an earlier reader set it
			continue
		}
		if err != nil {
			w.readEnd <- err
			return
		}
		w.p.mu.Lock()
		if w.idle() && w.machine.State() == WorkerReady {
			w.reading = false
			w.p.mu.Unlock()
			return
		}
		w.p.mu.Unlock()
	}
}

func (w *proc) isLeaving() bool {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.leaving
}

// readFor reads on the goroutine of the attempt's caller until the attempt has
// ended. The query needs no timer meanwhile: the connection has its deadline. With a timer for
// each query a round trip of 4 KB takes a fifth more processor time and a third longer on average.
func (w *proc) readFor(a *attempt) {
	p := w.p
	if a.q.into != nil {
		w.into = a
	}
	for {
		err := w.step()
		late := errors.Is(err, os.ErrDeadlineExceeded)
		if late && !time.Now().Before(a.q.until) {
			a.q.expire()
		}
		p.mu.Lock()
		if !w.has(a) || err != nil {
			w.into = nil // the caller's buffer is out of use before another goroutine reads
			w.reader.Keep()
		}
		switch {
		case err != nil && !late:
			w.direct = nil
			p.mu.Unlock()
			w.readEnd <- err
			a.q.arm() // reading has ended, and the worker is ending
			return
		case w.has(a) && !late:
			p.mu.Unlock()
			continue
		}
		w.direct, w.reading = nil, false
		if !w.idle() || w.machine.State() != WorkerReady {
			w.ensureReadingLocked()
		}
		p.mu.Unlock()
		a.q.arm()
		return
	}
}

// interruptLocked interrupts the caller that reads for the attempt.
func (w *proc) interruptLocked(a *attempt) {
	if w.direct == a {
		_ = w.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// step takes one message. It returns errGone at the end of the connection, a
// [*ProtocolError], or an error that is [os.ErrDeadlineExceeded].
func (w *proc) step() error {
	e := &w.message
	err := w.readMessage()
	if err == nil {
		err = w.take(e)
		e.Payload, e.Content, e.Result, e.Params, w.data = nil, nil, nil, nil, nil // they would keep a large buffer alive
		if err == nil {
			return nil
		}
		return &ProtocolError{Worker: w.name, Err: err}
	}
	var broken *ProtocolError
	var long *wire.TooLongError
	switch {
	case errors.As(err, &broken):
		return broken
	case errors.As(err, &long) && w.takesBytes():
		// Bytes may follow the line, and the field that says so may be in the part that was
		// not kept. The pool must not read these bytes as messages.
		err = fmt.Errorf("%w; bytes may follow it, so what comes next cannot be read", long)
	case errors.As(err, &long):
		_ = wire.Decode(long.Head, e) // decodes as much as there is
		err = w.tooLong(e, long)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
	default:
		return errGone
	}
	if err != nil {
		return &ProtocolError{Worker: w.name, Err: err}
	}
	return nil
}

// errGone says that the connection has ended.
var errGone = errors.New("it closed its connection")

// maxIgnored bounds the messages that a worker may send per query and that the pool has no use
// for: one that sends them in a loop would keep a core busy until the query's deadline.
const maxIgnored = 10_000

// take acts on one message.
func (w *proc) take(e *wire.Envelope) error {
	switch e.Type {
	case wire.Message, wire.Session, wire.Complete, wire.Error:
		return w.takeAnswer(e)
	case wire.HealthOK:
		return w.takeHealth()
	case wire.Call:
		return w.takeCall(e)
	case wire.Stacks:
		return w.takeStacks(e.Stacks)
	case wire.ShutdownAck:
		if !w.isGentle() {
			return errors.New("it said shutdown_ack and was not asked to shut down")
		}
	case wire.Ready:
		return errors.New("it said ready again")
	default:
		w.p.mu.Lock()
		defer w.p.mu.Unlock()
		return w.ignoreLocked(&w.p.stats.Unknown)
	}
	return nil
}

// ignore counts a message that no counter has.
func (w *proc) ignore() error {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.ignoreLocked(nil)
}

// ignoreLocked counts a message that the pool has no use for, also in counter unless that is nil.
func (w *proc) ignoreLocked(counter *uint64) error {
	if counter != nil {
		w.p.count(counter)
	}
	if w.ignored++; w.ignored > maxIgnored {
		return fmt.Errorf("it sent %d messages that the pool had to ignore since its last query", w.ignored)
	}
	return nil
}

// takeHealth acts on the answer to a health check.
func (w *proc) takeHealth() error {
	p := w.p
	p.mu.Lock()
	if w.asked.IsZero() {
		defer p.mu.Unlock()
		return w.ignoreLocked(&p.stats.Late)
	}
	w.asked = time.Time{}
	w.proven, p.deaths = true, 0
	var next *attempt
	if w.trial && w.usable() {
		next = p.passLocked(w)
	}
	p.mu.Unlock()
	w.process.SetHealth(worker.HealthHealthy)
	w.sendNext(next)
	return nil
}

// attemptOf returns the attempt that a message is about. It returns neither an attempt nor an error
// for a request that has ended, and an error for one that the worker was not given, or when there
// were too many.
func (w *proc) attemptOf(e *wire.Envelope) (*attempt, error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	a := w.find(e.RequestID)
	switch {
	case a == nil && !slices.Contains(w.recent, e.RequestID):
		return nil, fmt.Errorf("it sent %q for the request %s, which it was not given",
			e.Type, wire.Excerpt([]byte(e.RequestID)))
	case a == nil:
		return nil, w.ignoreLocked(&w.p.stats.Late)
	case e.Type == wire.Message:
		a.q.streamed = true
	}
	return a, nil
}

func (w *proc) takeAnswer(e *wire.Envelope) error {
	p := w.p
	a, err := w.attemptOf(e)
	if a == nil {
		return err
	}
	q := a.q
	switch e.Type { //nolint:exhaustive // take handles the others
	case wire.Session:
		q.mu.Lock()
		q.session = e.SessionID
		q.mu.Unlock()
	case wire.Message:
		if !q.push(Part{bytes.Clone(e.Content), w.data}, w.gone.Signaled()) {
			p.count(&p.stats.Late) // CancelGrace bounds their number
		}
	case wire.Complete, wire.Error:
		// Release first: a caller that has its answer finds a free worker.
		next := p.release(w, a, true)
		var ended bool
		if e.Type == wire.Complete {
			q.keep(w.data)
			ended = q.finish(QueryComplete, bytes.Clone(e.Result), nil)
		} else {
			ended = q.finish(QueryError, nil, &WorkerError{Query: q.id, Worker: w.name, Message: e.Error})
		}
		if !ended {
			p.count(&p.stats.Late)
		}
		w.sendNext(next)
	}
	return nil
}

// sendNext writes the worker's next query, nil for none. It is called by the goroutine
// that reads, which has an answer to return. So it must not block on a worker that does
// not read: it leaves large writes to another goroutine.
func (w *proc) sendNext(next *attempt) {
	switch {
	case next == nil:
	case next.q.size() <= smallWrite && !w.mayWaitToWrite(next.q):
		w.send(next)
	default:
		w.p.mu.Lock()
		defer w.p.mu.Unlock()
		w.p.sendLater(w, next)
	}
}

// tooLong fails the one request whose line was too long. The line's beginning may
// show that it was the end of the request.
func (w *proc) tooLong(e *wire.Envelope, long *wire.TooLongError) error {
	p := w.p
	p.mu.Lock()
	a := w.find(e.RequestID)
	if a == nil && e.RequestID == "" && len(w.attempts) == 1 {
		a = w.attempts[0]
	}
	p.mu.Unlock()
	if a == nil {
		return long
	}
	err := &ProtocolError{Query: a.q.id, Worker: w.name, Err: long}
	if e.RequestID == a.id && (e.Type == wire.Complete || e.Type == wire.Error) {
		next := p.release(w, a, true)
		a.q.finish(QueryError, nil, err)
		w.sendNext(next)
		return nil
	}
	p.abandon(a.q, QueryError, err)
	return nil
}
