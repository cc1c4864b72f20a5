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

// Who reads. At most one goroutine reads a worker's connection at a time, and
// which one changes:
//
//   - The caller of Do reads for itself when nobody does: the answer wakes up who
//     waits for it, and nobody else. That is half of what a round trip costs.
//   - Otherwise a goroutine of the worker's reads, while it has a query.
//   - While it has none nobody reads, until the pool looks after it (tend) and
//     sets a goroutine on it; so what an idle worker does wrong is seen soon, and
//     one that is asked all the time costs no goroutine. (That a process ends is
//     seen at once: its exit is waited for.)

// ensureReadingLocked sets a goroutine on the connection unless somebody reads.
func (w *proc) ensureReadingLocked() {
	if w.reading || w.closed || w.reader == nil {
		return
	}
	w.reading = true
	w.readUntil = time.Time{} // it sets none
	w.readers.Go(w.read)
}

// armReadLocked sees to it that a caller who reads for q stops when q's time is
// over, at the latest. To set a deadline costs as much as to decode an answer,
// so one that is there stays when it leaves half of the time or more: should it
// pass before the answer comes, a goroutine reads on and q has a timer.
func (w *proc) armReadLocked(q *Query) {
	if w.readUntil.After(q.until) || w.readUntil.Sub(q.begun) < q.until.Sub(q.begun)/2 {
		w.readUntil = q.until
		_ = w.conn.SetReadDeadline(q.until)
	}
}

// read takes the worker's messages until it has no query, or until the
// connection ends or it breaks the protocol.
func (w *proc) read() {
	_ = w.conn.SetReadDeadline(time.Time{})
	for {
		err := w.step()
		if errors.Is(err, os.ErrDeadlineExceeded) && !w.isLost() {
			_ = w.conn.SetReadDeadline(time.Time{}) // somebody's who has read before us
			continue
		}
		if err != nil {
			w.readEnd <- err
			return
		}
		w.p.mu.Lock()
		if w.cur == nil && w.machine.State() == WorkerReady {
			w.reading = false
			w.p.mu.Unlock()
			return
		}
		w.p.mu.Unlock()
	}
}

func (w *proc) isLost() bool {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.lost
}

// readFor reads as the caller whose attempt it is, until that has ended. The
// query has no timer meanwhile: its deadline is the connection's.
func (w *proc) readFor(a *attempt) {
	p := w.p
	w.heard.RequestID = a.id // most likely, and then it is not copied
	for {
		err := w.step()
		late := errors.Is(err, os.ErrDeadlineExceeded)
		if late && !time.Now().Before(a.q.until) {
			a.q.expire()
		}
		p.mu.Lock()
		switch {
		case err != nil && !late:
			w.direct = nil
			p.mu.Unlock()
			w.readEnd <- err
			a.q.arm() // its fate is decided elsewhere now
			return
		case w.cur == a && !late:
			p.mu.Unlock()
			continue
		}
		w.direct, w.reading = nil, false
		if w.cur != nil || w.machine.State() != WorkerReady {
			w.ensureReadingLocked()
		}
		p.mu.Unlock()
		a.q.arm()
		return
	}
}

// kickLocked makes a caller who reads for an attempt stop with it.
func (w *proc) kickLocked(a *attempt) {
	if w.direct == a {
		w.readUntil = time.Time{}
		_ = w.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// step takes one message. It returns errGone when there are no more, a
// [*ProtocolError], or an error that is [os.ErrDeadlineExceeded].
func (w *proc) step() error {
	e := &w.heard
	line, err := w.reader.Next()
	if err == nil {
		if err = wire.Decode(line, e); err == nil {
			err = w.take(e)
		}
		e.Payload, e.Content, e.Result = nil, nil, nil // they would keep a large buffer alive
		if err == nil {
			return nil
		}
		return &ProtocolError{Worker: w.name, Err: err}
	}
	var long *wire.TooLongError
	switch {
	case errors.As(err, &long):
		_ = wire.Decode(long.Head, e) // as much as there is
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

// maxIgnored bounds the messages that a worker may send for each query and that
// nobody has asked for.
const maxIgnored = 10_000

// take acts on one message.
func (w *proc) take(e *wire.Envelope) error {
	switch e.Type {
	case wire.Message, wire.Session, wire.Complete, wire.Error:
		return w.takeAnswer(e)
	case wire.HealthOK:
		w.p.mu.Lock()
		asked := !w.asked.IsZero()
		w.asked = time.Time{}
		w.p.mu.Unlock()
		w.process.SetHealth(worker.HealthHealthy)
		if asked {
			return nil
		}
		return w.ignore(nil)
	case wire.ShutdownAck:
		if !w.isGentle() {
			return errors.New("it said shutdown_ack and was not told to shut down")
		}
		w.acked.close()
		return nil
	case wire.Ready:
		return errors.New("it said ready again")
	default:
		return w.ignore(&w.p.counts.unknown)
	}
}

// ignore counts a message of no use.
func (w *proc) ignore(count *counter) error {
	if count != nil {
		count.Add(1)
	}
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if w.ignored++; w.ignored > maxIgnored {
		return fmt.Errorf("it sent %d messages of no use since its last query", w.ignored)
	}
	return nil
}

func (w *proc) takeAnswer(e *wire.Envelope) error {
	p := w.p
	p.mu.Lock()
	a := w.cur
	if a == nil || a.id != e.RequestID {
		known := slices.Contains(w.recent[:], e.RequestID)
		p.mu.Unlock()
		if !known {
			return fmt.Errorf("it sent %q for the request %q, which it was not given", e.Type, e.RequestID)
		}
		return w.ignore(&p.counts.late)
	}
	q := a.q
	if e.Type == wire.Message {
		q.streamed = true
	}
	p.mu.Unlock()
	switch e.Type { //nolint:exhaustive // the others do not come here
	case wire.Session:
		q.mu.Lock()
		q.session = e.SessionID
		q.mu.Unlock()
	case wire.Message:
		if !q.push(bytes.Clone(e.Content), w.gone.ch) {
			p.counts.late.Add(1) // its number needs no bound: CancelGrace is one
		}
	case wire.Complete, wire.Error:
		// In this order: who has the answer finds a worker free for the next.
		next := p.release(w, a, true)
		var ended bool
		if e.Type == wire.Complete {
			ended = q.finish(QueryComplete, bytes.Clone(e.Result), nil)
		} else {
			ended = q.finish(QueryError, nil, &WorkerError{Query: q.id, Worker: w.name, Message: e.Error})
		}
		if !ended {
			p.counts.late.Add(1)
		}
		w.sendNext(next)
	}
	return nil
}

// sendNext writes what a worker gets that has answered, nil for nothing. Whoever
// reads has an answer to return, and must not wait for a worker to take more than
// its socket does.
func (w *proc) sendNext(next *attempt) {
	switch {
	case next == nil:
	case len(next.q.payload) <= smallWrite:
		w.send(next)
	default:
		w.p.mu.Lock()
		defer w.p.mu.Unlock()
		w.p.sendLater(w, next)
	}
}

// tooLong fails the request whose line was too long, and no other. What of the
// line is known may say that it was the request's end.
func (w *proc) tooLong(e *wire.Envelope, long *wire.TooLongError) error {
	p := w.p
	p.mu.Lock()
	a := w.cur
	p.mu.Unlock()
	if a == nil || e.RequestID != "" && e.RequestID != a.id {
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
