package procpool

import (
	"bytes"
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/safe"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
	"github.com/pleme-io/lifecycle-go/worker"
)

// proc is one worker process, from spawn to dead.
type proc struct {
	p       *Pool
	n       int
	name    string
	machine *fsm.Machine[WorkerState]
	link    *fsm.Machine[ConnState]
	process *worker.Process
	stderr  *tail
	limits  limits
	stop    *once // it is to end; gently says how
	acked   *once // it has said shutdown_ack
	gone    *once // what it says is not waited for any more

	// Set once, before it is ready.
	conn *net.UnixConn
	pid  int // of the process that has connected, which a wrapper may have started

	wmu    sync.Mutex // held while writing
	writer *wire.Writer

	// Guarded by p.mu.
	cur          *attempt
	confirm      *time.Timer // ends it unless it confirms the end of cur
	recent       [32]string  // the last requests it was given
	given        int
	waiting      list.List // queries whose key is bound to it
	used, keyed  bool
	key          string   // of its first query
	keys         []string // bound to it
	created      time.Time
	readyAt      time.Time
	lastActivity time.Time
	queries      int
	ignored      int   // messages of no use since its last query
	retire       error // it is to go once it is not busy
	recycling    bool
	lost         bool // it is ending, whatever its state still says
	gently       bool // by message first
	cause        error
	broke        error // what it did wrong, when that is why it ends
	asked        time.Time // when it was asked for its health; zero when it has answered
	checkedAt    time.Time
	after        []func() // to be called once the lock is free; see settle
}

func (w *proc) usable() bool {
	s := w.machine.State()
	return !w.lost && w.retire == nil && (s == WorkerReady || s == WorkerBusy)
}

// spawnLocked adds a worker, which starts in the background.
func (p *Pool) spawnLocked() {
	p.spawned++
	p.counts.spawned.Add(1)
	name := p.cfg.Name + "/" + strconv.Itoa(p.spawned)
	now := time.Now()
	w := &proc{
		p: p, n: p.spawned, name: name, created: now, lastActivity: now, limits: p.cfg.Recycle.draw(), stop: newOnce(), acked: newOnce(), gone: newOnce(),
		machine: fsm.MustNew(KindWorker, name, workerTable, WorkerStarting, &p.events),
		link:    fsm.MustNew(KindConnection, name, connTable, ConnDisconnected, &p.events),
		stderr:  &tail{size: p.cfg.StderrTail},
	}
	_ = w.link.To(ConnConnecting, nil)
	w.process = worker.NewProcess(name, nil) // in its place until there is a command
	p.workers = append(p.workers, w)
	p.resizedLocked()
	p.alive.Add(1)
	safe.Go(name, func() error { return w.live() }, nil, func(err error) {
		w.buried(err)
		p.alive.Done()
	})
}

// live accompanies the worker from spawn to the end of its process. It returns
// why it ended when nobody asked it to.
func (w *proc) live() error {
	p := w.p
	d, err := newDoor(fmt.Sprintf("%s%06d.sock", p.prefix, w.n), p.cfg.MaxFrame)
	if err != nil {
		return fmt.Errorf("%s: start: %w", w.name, err)
	}
	defer d.close()
	process, err := w.command(d.path)
	if err != nil {
		return fmt.Errorf("%s: start: %w", w.name, err)
	}
	process.PublishTo(&p.tree)
	p.mu.Lock()
	w.process = process
	p.mu.Unlock()
	// Under no context of the pool's: the pool asks by message first.
	if err := process.Start(context.Background()); err != nil {
		return err
	}
	d.open(w.belongs, func(err error) {
		p.counts.strangers.Add(1)
		p.log.Warn("procpool: a connection was refused", "worker", w.name, "error", err)
	})
	a, err := w.arrive(d)
	if err != nil || a.conn == nil {
		w.end()
		return w.verdict(err)
	}
	read := make(chan error, 1)
	var reading sync.WaitGroup
	next := w.connected(a)
	reading.Go(func() {
		if next != nil {
			w.send(next)
		}
		read <- w.read(a.reader)
	})
	select {
	case err = <-read:
	case <-process.Done():
	case <-w.stop.ch:
	}
	w.lose()
	if err == nil && w.isGentle() {
		w.askToEnd(read)
	}
	if errors.Is(err, errGone) {
		w.selfEnd()
	}
	w.end()
	if err == nil {
		w.readRest(read)
	}
	w.gone.close()
	w.conn.Close()
	reading.Wait()
	_ = w.link.To(ConnDisconnected, nil)
	return w.verdict(err)
}

// command makes the process.
func (w *proc) command(socket string) (process *worker.Process, err error) {
	err = safe.Do(w.name, func() error {
		cmd := w.p.cfg.Command()
		if cmd == nil {
			return errors.New("Command returned nil, want the command of a worker")
		}
		w.stderr.next = cmd.Stderr
		cmd.Stderr = w.stderr
		process = worker.NewProcess(w.name, cmd, worker.WithGrace(w.p.cfg.KillGrace), worker.WithEnv(
			wire.EnvSocket+"="+socket, wire.EnvName+"="+w.name, wire.EnvMaxFrame+"="+strconv.Itoa(w.p.cfg.MaxFrame)))
		return nil
	})
	return process, err
}

// belongs refuses who is not of the worker's process group.
func (w *proc) belongs(pid, uid int) error {
	if pid == 0 {
		return nil // the system does not tell
	}
	if uid != os.Getuid() && uid != 0 && os.Getuid() != 0 {
		return fmt.Errorf("process %d of user %d has connected in the place of %s", pid, uid, w.name)
	}
	if group := groupOf(pid); group != w.process.PID() {
		return fmt.Errorf("process %d has connected in the place of %s and is not in its process group (%d, and its own is %d): a worker must not leave it, by setsid or as a daemon", pid, w.name, w.process.PID(), group)
	}
	return nil
}

// arrive waits for ready. Without an error and a connection the worker was told
// to end.
func (w *proc) arrive(d *door) (arrival, error) {
	timer := time.NewTimer(w.p.cfg.StartTimeout)
	defer timer.Stop()
	select {
	case a := <-d.opened:
		if a.err != nil {
			return a, &ProtocolError{Worker: w.name, Err: a.err}
		}
		return a, nil
	case <-w.process.Done():
		return arrival{}, w.crash("", errors.New("it ended before it was ready"))
	case <-timer.C:
		return arrival{}, w.crash("", fmt.Errorf("it has not said that it is ready within %v: it has to connect to the socket that %s names and to send %s",
			w.p.cfg.StartTimeout, wire.EnvSocket, `{"type":"ready"}`))
	case <-w.stop.ch:
		return arrival{}, nil
	}
}

// connected makes the worker ready, unless it was told to end meanwhile.
func (w *proc) connected(a arrival) (next *attempt) {
	p := w.p
	p.mu.Lock()
	defer p.mu.Unlock()
	w.conn, w.pid = a.conn, a.pid
	w.writer = wire.NewWriter(a.conn, p.cfg.MaxFrame)
	_ = w.link.To(ConnConnected, nil)
	if w.machine.To(WorkerReady, nil) != nil {
		return nil
	}
	w.readyAt = time.Now()
	w.lastActivity = w.readyAt
	p.counts.ready.Add(1)
	next = p.offerLocked(w)
	if n := p.countLocked(WorkerReady) + p.countLocked(WorkerBusy); n >= p.cfg.MinWorkers {
		p.MarkRunning()
	}
	p.ensureLocked()
	return next
}

// read takes the worker's messages until the connection ends or it breaks the
// protocol, and returns which.
func (w *proc) read(r *wire.Reader) error {
	var e wire.Envelope
	for {
		line, err := r.Next()
		var long *wire.TooLongError
		switch {
		case err == nil:
			if err = wire.Decode(line, &e); err == nil {
				err = w.take(&e)
			}
		case errors.As(err, &long):
			_ = wire.Decode(long.Head, &e) // as much as there is
			err = w.tooLong(&e, long)
		case errors.Is(err, io.ErrUnexpectedEOF):
		default:
			return errGone
		}
		if err != nil {
			return &ProtocolError{Worker: w.name, Err: err}
		}
	}
}

// errGone says that the connection has ended.
var errGone = errors.New("it closed its connection")

// maxIgnored bounds the messages of no use that a worker may send for each
// query.
const maxIgnored = 10_000

// take acts on one message.
func (w *proc) take(e *wire.Envelope) error {
	switch e.Type {
	case wire.Message, wire.Session, wire.Complete, wire.Error:
		return w.takeAnswer(e)
	case wire.HealthOK:
		w.p.mu.Lock()
		w.asked = time.Time{}
		w.p.mu.Unlock()
		w.process.SetHealth(worker.HealthHealthy)
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
			return w.ignore(&p.counts.late)
		}
	case wire.Complete, wire.Error:
		// In this order: who has the answer finds a worker free for the next.
		next := p.release(w, a, true)
		ended := false
		if e.Type == wire.Complete {
			ended = q.finish(QueryComplete, bytes.Clone(e.Result), nil)
		} else {
			ended = q.finish(QueryError, nil, &WorkerError{Query: q.id, Worker: w.name, Message: e.Error})
		}
		if !ended {
			p.counts.late.Add(1)
		}
		if next != nil {
			w.send(next)
		}
	}
	return nil
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
		if next != nil {
			w.send(next)
		}
		return nil
	}
	p.abandon(a.q, QueryError, err)
	return nil
}

// send writes an attempt's query. A write that fails ends the worker.
func (w *proc) send(a *attempt) {
	for a != nil {
		w.wmu.Lock()
		if a.dropped {
			w.wmu.Unlock()
			a = w.p.release(w, a, false)
			continue
		}
		a.sent = true
		_ = w.conn.SetWriteDeadline(time.Now().Add(w.p.cfg.WriteTimeout))
		err := w.writer.Query(a.id, a.q.payload)
		w.wmu.Unlock()
		if err != nil {
			w.fail(fmt.Errorf("send a query: %w", err))
		}
		return
	}
}

// sendCancel tells the worker that nobody waits for the attempt any more.
func (w *proc) sendCancel(a *attempt) {
	if !w.wmu.TryLock() {
		// Somebody writes, most likely the query itself to a worker that does
		// not read. Nobody waits for that any more.
		_ = w.conn.SetWriteDeadline(time.Now().Add(pokeAfter))
		w.wmu.Lock()
	}
	defer w.wmu.Unlock()
	if !a.sent {
		a.dropped = true // whoever is about to send it will see
		return
	}
	_ = w.conn.SetWriteDeadline(time.Now().Add(w.p.cfg.WriteTimeout))
	_ = w.writer.Cancel(a.id) // a worker that cannot be told does not confirm
}

const pokeAfter = 100 * time.Millisecond

// awaitConfirmLocked ends the worker when it does not confirm in time.
func (w *proc) awaitConfirmLocked(a *attempt) {
	if w.confirm != nil {
		return
	}
	w.confirm = time.AfterFunc(w.p.cfg.CancelGrace, func() {
		p := w.p
		p.mu.Lock()
		defer p.mu.Unlock()
		if w.cur == a {
			w.stopLocked(false, fmt.Errorf("it has not confirmed the end of %s within %v", a.id, p.cfg.CancelGrace))
		}
	})
}

// fail ends a worker that cannot go on.
func (w *proc) fail(err error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if w.broke == nil && !w.lost {
		w.broke = err
	}
	w.stopLocked(false, err)
}

// stopLocked tells the worker to end: by message first when gently is true, and
// by signal otherwise.
func (w *proc) stopLocked(gently bool, cause error) {
	if w.machine.To(WorkerShuttingDown, cause) != nil {
		return
	}
	w.gently, w.cause = gently, cause
	w.lost = true
	w.p.ready = slices.DeleteFunc(w.p.ready, func(other *proc) bool { return other == w })
	w.unbindLocked()
	w.stop.close()
}

func (w *proc) isGentle() bool {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.gently
}

// lose takes the worker out of the pool's hands, before anybody knows why it
// ended.
func (w *proc) lose() {
	p := w.p
	p.mu.Lock()
	w.lost = true
	p.ready = slices.DeleteFunc(p.ready, func(other *proc) bool { return other == w })
	w.unbindLocked()
	after := w.after
	w.after = nil
	p.mu.Unlock()
	for _, fn := range after {
		fn()
	}
}

// unbindLocked frees the worker's keys. Queries that wait for it wait for any
// other.
func (w *proc) unbindLocked() {
	p := w.p
	for _, key := range w.keys {
		if p.keys[key] == w {
			delete(p.keys, key)
		}
	}
	w.keys = nil
	if w.waiting.Len() == 0 {
		return
	}
	for e := w.waiting.Front(); e != nil; e = w.waiting.Front() {
		q, _ := e.Value.(*Query)
		p.dequeueLocked(q)
		p.enqueueLocked(p.queue, q)
	}
	p.rematchLocked()
}
