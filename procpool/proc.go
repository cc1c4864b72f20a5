package procpool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/stderr"
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
	stderr  *stderr.Tail
	limits  limits
	stop    fsm.Signal   // the worker has to end; gently says how
	gone    fsm.Signal   // the pool no longer waits for its messages
	calls   atomic.Int32 // calls that wait for an answer

	// Set once, before the worker is ready.
	outputs []*worker.LineLogger
	conn    *net.UnixConn
	pid     int // of the process that connected, which a wrapper may have started
	offer   wire.Offer

	wmu    sync.Mutex // held while writing; guards the fields below
	writer *wire.Writer
	behind bool // the worker was sent much and may not have read it: even a small write may block

	reader   *wire.Reader  // used by the goroutine that reads; see read.go
	message  wire.Envelope // the message it has read
	data     []byte        // the bytes beside it
	bytesDue bool          // the line is read, the bytes after it are not
	into     *attempt      // the attempt whose caller reads, and has memory for the bytes of the answer
	readEnd  chan error    // capacity 1: why reading has ended
	readers  sync.WaitGroup

	// Guarded by p.mu.
	attempts     []*attempt // the queries that it has, oldest first
	places       int        // how many it takes
	reading      bool       // a goroutine reads, or reading has ended for good
	direct       *attempt   // the attempt whose caller reads
	closed       bool       // the connection is closed
	recent       []string   // the ids of its last requests
	ignored      int        // messages since its last query that the pool had no use for
	given        int
	keyed        bool
	key          string   // the key of its first query
	keys         []string // the keys bound to it
	readyAt      time.Time
	lastActivity time.Time
	queries      int
	alone        bool // it is the extra worker; see Poison
	trial        bool // it is ready and gets no query before it has answered a health check
	proven       bool // it has answered a query or a health check
	program      *program
	replaces     *proc // ends once this one is ready
	due          error // it ends with this cause: once its successor is ready, or when it is retiring
	retiring     bool  // it ends once it is not busy
	leaving      bool  // it is ending; its state may not say so yet
	gently       bool  // end it by message first
	cause        error
	broke        error     // what it did wrong, when it ends because of that
	asked        time.Time // when the unanswered health check was sent, else zero
	checkedAt    time.Time
	dump         *dump // its stacks, for which the pool waits; nil for none
}

func (w *proc) usable() bool {
	s := w.machine.State()
	return !w.leaving && !w.retiring && (s == WorkerReady || s == WorkerBusy)
}

// serves reports whether the worker has or may get queries of all callers. The
// caller holds the pool's lock.
func (w *proc) serves() bool { return !w.alone && !w.trial && w.usable() }

// spawn describes a worker to start.
type spawn struct {
	alone    bool
	replaces *proc    // nil for none
	program  *program // nil for the pool's
}

// spawnLocked adds a worker, which starts in the background.
func (p *Pool) spawnLocked(s spawn) *proc {
	if s.program == nil {
		s.program = p.program
	}
	p.spawned++
	p.count(&p.stats.Spawned)
	name := p.cfg.Name + "/" + strconv.Itoa(p.spawned)
	now := time.Now()
	w := &proc{
		p:            p,
		n:            p.spawned,
		name:         name,
		machine:      workerModel.New(name, WorkerStarting, &p.events),
		link:         connModel.New(name, ConnDisconnected, &p.events),
		stderr:       &stderr.Tail{Size: p.cfg.StderrTail},
		limits:       p.cfg.Recycle.draw(),
		readEnd:      make(chan error, 1),
		lastActivity: now,
		alone:        s.alone,
		replaces:     s.replaces,
		program:      s.program,
	}
	_ = w.link.To(ConnConnecting, nil)
	w.process = worker.NewProcess(name, nil) // a placeholder until the command is made
	p.workers = append(p.workers, w)
	p.resizedLocked()
	p.alive.Add(1)
	call.Go(name, w.live, func(err error) {
		defer p.alive.Done()
		w.reap(err)
	})
	return w
}

// live runs the worker from spawn to the end of its process. It returns why the
// worker ended, nil when the pool asked it to.
func (w *proc) live() error {
	p := w.p
	d, err := p.newAcceptor(w.n)
	if err != nil {
		return fmt.Errorf("%s: start: %w", w.name, err)
	}
	defer d.close()
	process, err := w.makeProcess(d)
	if err != nil {
		return fmt.Errorf("%s: start: %w", w.name, err)
	}
	process.PublishTo(&p.tree)
	p.mu.Lock()
	w.process = process
	p.mu.Unlock()
	// The context is not the pool's: the pool first asks by message.
	if err := process.Start(context.Background()); err != nil {
		return err
	}
	d.open(w.checkPeer, func(err error) {
		p.count(&p.stats.Strangers)
		p.log.Warn("procpool: a connection was refused", "worker", w.name, "error", err)
	})
	a, err := w.awaitReady(d)
	if err != nil || a.conn == nil {
		w.end()
		return w.verdict(err)
	}
	w.connected(a)
	select {
	case err = <-w.readEnd:
	case <-process.Done():
	case <-w.stop.Signaled():
	}
	w.detach()
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
	w.gone.Signal()
	w.conn.Close()
	w.readers.Wait()
	_ = w.link.To(ConnDisconnected, nil)
	return w.verdict(err)
}

// awaitReady waits for the ready message. It returns neither an error nor a connection
// when the pool ends the worker.
func (w *proc) awaitReady(d *acceptor) (readyConn, error) {
	select {
	case a := <-d.opened:
		if a.err != nil {
			return a, &ProtocolError{Worker: w.name, Err: a.err}
		}
		return a, nil
	case <-w.process.Done():
		return readyConn{}, w.crash("", errors.New("it ended before it was ready"))
	case <-time.After(w.p.cfg.StartTimeout):
		where := "connect to the socket that " + wire.EnvSocket + " names"
		if w.p.cfg.Inherit {
			where = "use the descriptor that " + wire.EnvFD + " names, which a wrapper has to pass on,"
		}
		return readyConn{}, w.crash("", fmt.Errorf("it has not said that it is ready within %v: it has to %s and to send %s",
			w.p.cfg.StartTimeout, where, `{"type":"ready"}`))
	case <-w.stop.Signaled():
		return readyConn{}, nil
	}
}

// connected makes the worker ready, unless the pool ends it.
func (w *proc) connected(a readyConn) {
	p := w.p
	p.mu.Lock()
	defer p.mu.Unlock()
	w.conn, w.reader, w.offer = a.conn, a.reader, a.offer
	w.pid = cmp.Or(a.pid, w.process.PID())
	w.writer = wire.NewWriter(a.conn, p.cfg.MaxFrame)
	_ = w.link.To(ConnConnected, nil)
	if w.machine.To(WorkerReady, nil) != nil {
		return
	}
	w.places = max(a.offer.Concurrency, 1)
	if w.alone {
		w.places = 1
	}
	w.recent = make([]string, max(32, 2*w.places))
	p.mostPlaces = max(p.mostPlaces, w.places)
	w.readyAt = time.Now()
	w.lastActivity = w.readyAt
	w.ensureReadingLocked()
	isNew := p.reloading != nil && w.program == p.reloading.to
	if w.trial = (p.failures > 0 || isNew) && p.cfg.HealthInterval != Off; w.trial {
		p.askHealthLocked(w, w.readyAt)
		return
	}
	p.sendLater(w, p.passLocked(w))
}

// passLocked lets a ready worker have queries. It returns the first, nil for none.
func (p *Pool) passLocked(w *proc) (next *attempt) {
	w.trial = false
	p.failures = 0
	p.reloading.provedLocked(p, w)
	if w.alone {
		next = p.nextAloneLocked(w)
	} else if next = p.nextLocked(w); next != nil {
		p.fillLocked(w)
	}
	if old := w.replaces; old != nil {
		w.replaces = nil
		old.succeededLocked()
	}
	if n := p.countLocked(WorkerReady) + p.countLocked(WorkerBusy); n >= p.cfg.MinWorkers {
		p.MarkRunning()
	}
	p.ensureLocked()
	return next
}

// send writes an attempt's query. A failed write ends the worker.
func (w *proc) send(a *attempt) {
	for a != nil {
		if !w.wmu.TryLock() { // another goroutine writes, and the worker may not read
			a.q.arm()
			w.wmu.Lock()
		}
		if w.behind {
			a.q.arm()
		}
		w.behind = w.behind || w.places > 1 && a.q.size() > smallWrite // the only query is read once it is answered
		if a.dropped {
			w.wmu.Unlock()
			a = w.p.release(w, a, false)
			continue
		}
		if len(a.q.data) > 0 && !w.takesBytes() {
			w.wmu.Unlock()
			w.refuseBytes(a)
			a = w.p.release(w, a, false)
			continue
		}
		a.sent = true
		w.armWrite()
		about := a.q.about
		about.TimeoutMs = max(a.q.until.Sub(a.begun).Milliseconds(), 1)
		err := w.writer.Query(a.id, a.q.payload, a.q.data, about)
		w.wmu.Unlock()
		if err != nil {
			w.fail(fmt.Errorf("send a query: %w", err))
		}
		return
	}
}

// sendCancel asks the worker to stop the attempt. It waits while another goroutine writes:
// a write that is cut would end the worker.
func (w *proc) sendCancel(a *attempt) {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	if !a.sent || a.cancelSent {
		a.dropped = !a.sent // send sees it
		return
	}
	a.cancelSent = true
	w.armWrite()
	_ = w.writer.Cancel(a.id) // when this fails, the worker does not confirm and is ended
}

// armWrite gives the next write its time. The caller holds wmu.
func (w *proc) armWrite() { _ = w.conn.SetWriteDeadline(time.Now().Add(w.p.cfg.WriteTimeout)) }

// awaitConfirmLocked ends the worker when it does not confirm within CancelGrace.
func (w *proc) awaitConfirmLocked(a *attempt) {
	if a.confirm != nil {
		return
	}
	a.confirm = time.AfterFunc(w.p.cfg.CancelGrace, func() {
		p := w.p
		p.mu.Lock()
		defer p.mu.Unlock()
		if w.has(a) {
			w.stopLocked(false, fmt.Errorf("%w of %s within %v", errUnconfirmed, a.id, p.cfg.CancelGrace))
		}
	})
}

// fail ends a worker that cannot continue.
func (w *proc) fail(err error) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	if w.leaving {
		return // it already ends, for a known cause
	}
	w.broke = err
	w.stopLocked(false, err)
}

// stopLocked ends the worker: by message first when gently is true, by
// signal otherwise. It does nothing when the worker is already ending.
func (w *proc) stopLocked(gently bool, cause error) {
	if w.leaving || w.machine.To(WorkerShuttingDown, cause) != nil {
		return
	}
	w.gently, w.cause = gently, cause
	w.leaving = true
	w.unbindLocked()
	w.stop.Signal()
}

func (w *proc) isGentle() bool {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.gently
}

// detach marks a worker that is ending and unbinds its keys.
// The cause of its end may not be known yet.
func (w *proc) detach() {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	w.leaving = true
	w.unbindLocked()
	if w.direct != nil {
		w.interruptLocked(w.direct) // its query may have ended before the process
	}
}

// maxLost bounds the keys of lost sessions that a pool remembers.
const maxLost = 100_000

// unbindLocked frees the worker's keys. When the pool has planned the worker's end, the
// queries that waited for this worker now wait for any worker. Otherwise the sessions of the
// keys are lost, and the waiting queries end, unless they may begin a new session.
func (w *proc) unbindLocked() {
	p := w.p
	lost := !w.gently || w.alone
	unbound := map[string]bool{}
	for _, key := range w.keys {
		if p.keys[key] != w {
			continue // it has another worker already
		}
		delete(p.keys, key)
		if lost && len(p.lost) < maxLost {
			p.lost[key] = true
		}
		unbound[key] = true
	}
	waits := false
	for _, q := range slices.Clone(p.queue) { // once: a worker may have very many keys
		switch {
		case !q.keyed || !unbound[q.key]:
		case lost && !q.anew:
			p.dequeueLocked(q)
			p.endLocked(q, &SessionLostError{Query: q.id, Key: q.key})
		default:
			waits = true
		}
	}
	if r := p.reloading; r != nil && errors.Is(w.due, ErrReloaded) {
		r.result.Keys = append(r.result.Keys, w.keys...)
	}
	w.keys = nil
	if waits {
		p.rematchLocked()
	}
}
