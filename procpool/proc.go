package procpool

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
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

	wmu        sync.Mutex // held while writing, guards what follows
	writer     *wire.Writer
	writeUntil time.Time // the deadline that is set

	reader  *wire.Reader  // of whoever reads; see read.go
	heard   wire.Envelope // the message it has read
	readEnd chan error    // capacity 1: why nobody reads any more
	readers sync.WaitGroup

	// Guarded by p.mu.
	cur          *attempt
	confirm      *time.Timer // ends it unless it confirms the end of cur
	reading      bool        // somebody reads, or nobody will again
	direct       *attempt    // whose caller reads
	readUntil    time.Time   // the deadline for reading that is set, zero for another
	closed       bool        // its connection
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
	broke        error     // what it did wrong, when that is why it ends
	asked        time.Time // when it was asked for its health; zero when it has answered
	checkedAt    time.Time
	after        []func() // to be called once the lock is free, by lose
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
		p: p, n: p.spawned, name: name, created: now, lastActivity: now, limits: p.cfg.Recycle.draw(), stop: newOnce(), acked: newOnce(), gone: newOnce(), readEnd: make(chan error, 1),
		machine: fsm.MustNew(KindWorker, name, workerTable, WorkerStarting, &p.events),
		link:    fsm.MustNew(KindConnection, name, connTable, ConnDisconnected, &p.events),
		stderr:  &tail{size: p.cfg.StderrTail},
	}
	_ = w.link.To(ConnConnecting, nil)
	w.process = worker.NewProcess(name, nil) // in its place until there is a command
	p.workers = append(p.workers, w)
	p.resizedLocked()
	p.alive.Add(1)
	call.Go(name, w.live, func(err error) {
		w.buried(err)
		p.alive.Done()
	})
}

// live accompanies the worker from spawn to the end of its process. It returns
// why it ended when nobody asked it to.
func (w *proc) live() error {
	p := w.p
	d, err := p.door(w.n)
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
	w.connected(a)
	select {
	case err = <-w.readEnd:
	case <-process.Done():
	case <-w.stop.ch:
	}
	w.lose()
	if err == nil && w.isGentle() {
		w.askToEnd()
	}
	if errors.Is(err, errGone) {
		w.selfEnd()
	}
	w.end()
	if err == nil {
		w.readRest()
	}
	p.mu.Lock()
	w.closed = true
	p.mu.Unlock()
	w.gone.close()
	w.conn.Close()
	w.readers.Wait()
	_ = w.link.To(ConnDisconnected, nil)
	return w.verdict(err)
}

// command makes the process.
func (w *proc) command(socket string) (process *worker.Process, err error) {
	err = call.Do(w.name, func() error {
		w.p.making.Lock()
		defer w.p.making.Unlock()
		cmd := w.p.cfg.Command()
		if cmd == nil {
			return errors.New("the command is nil: Config.Command has to return that of a worker")
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
func (w *proc) connected(a arrival) {
	p := w.p
	p.mu.Lock()
	defer p.mu.Unlock()
	w.conn, w.pid, w.reader = a.conn, a.pid, a.reader
	w.writer = wire.NewWriter(a.conn, p.cfg.MaxFrame)
	_ = w.link.To(ConnConnected, nil)
	if w.machine.To(WorkerReady, nil) != nil {
		return
	}
	w.readyAt = time.Now()
	w.lastActivity = w.readyAt
	p.counts.ready.Add(1)
	p.sendLater(w, p.offerLocked(w))
	w.ensureReadingLocked()
	if n := p.countLocked(WorkerReady) + p.countLocked(WorkerBusy); n >= p.cfg.MinWorkers {
		p.MarkRunning()
	}
	p.ensureLocked()
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
		w.armWrite(a.begun)
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
		w.writeUntil = time.Time{}
	}
	defer w.wmu.Unlock()
	if !a.sent {
		a.dropped = true // whoever is about to send it will see
		return
	}
	w.armWrite(time.Now())
	_ = w.writer.Cancel(a.id) // a worker that cannot be told does not confirm
}

// armWrite sees to it that the next write has half of WriteTimeout at least. To
// set a deadline costs a tenth of a write. wmu is held.
func (w *proc) armWrite(now time.Time) {
	if w.writeUntil.Sub(now) < w.p.cfg.WriteTimeout/2 {
		w.writeUntil = now.Add(w.p.cfg.WriteTimeout)
		_ = w.conn.SetWriteDeadline(w.writeUntil)
	}
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
	if w.lost {
		return // it ends already, and why is known there
	}
	w.broke = err
	w.stopLocked(false, err)
}

// stopLocked tells the worker to end: by message first when gently is true, and
// by signal otherwise. It does nothing to one that is ending already.
func (w *proc) stopLocked(gently bool, cause error) {
	if w.lost || w.machine.To(WorkerShuttingDown, cause) != nil {
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
	if w.direct != nil {
		w.kickLocked(w.direct) // its query may have ended before the process
	}
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
