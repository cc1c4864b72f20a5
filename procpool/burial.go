package procpool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// selfEnd is how long a process may take to end by itself after it has closed
// its connection, so that its exit code is its own.
const selfEnd = 500 * time.Millisecond

// askToEnd sends the shutdown message and waits for the worker to end.
func (w *proc) askToEnd() {
	w.p.mu.Lock()
	w.ensureReadingLocked()
	w.p.mu.Unlock()
	w.wmu.Lock()
	w.armWrite(time.Now())
	err := w.writer.Shutdown(true)
	w.wmu.Unlock()
	if err != nil {
		return
	}
	grace := time.NewTimer(w.p.cfg.ShutdownGrace)
	defer grace.Stop()
	for acked := w.acked.ch; ; {
		select {
		case <-acked: // now it ends by itself
			acked = nil
		case <-w.readEnd: //nolint:errcheck // that it ended is what counts
			w.selfEnd()
			return
		case <-w.process.Done():
			return
		case <-grace.C:
			return
		case <-w.p.force.ch:
			return
		}
	}
}

func (w *proc) selfEnd() {
	timer := time.NewTimer(selfEnd)
	defer timer.Stop()
	select {
	case <-w.process.Done():
	case <-timer.C:
	case <-w.p.force.ch:
	}
}

// readRest lets what the worker has sent before its end be read. A grandchild
// that has left the group may hold the connection open, and a caller may be
// slow: neither is waited for.
func (w *proc) readRest() {
	w.p.mu.Lock()
	w.ensureReadingLocked()
	w.p.mu.Unlock()
	_ = w.conn.SetReadDeadline(time.Now().Add(selfEnd))
	timer := time.NewTimer(selfEnd)
	defer timer.Stop()
	select {
	case <-w.readEnd: //nolint:errcheck // that it ended is what counts
	case <-timer.C:
	case <-w.stop.ch: // nobody wants to hear it
	}
}

// end ends the process: SIGTERM, KillGrace, SIGKILL. When the pool has no time
// left it is SIGKILL at once.
func (w *proc) end() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-w.p.force.ch:
			cancel()
		case <-w.process.Done():
		}
	}()
	_ = w.process.Stop(ctx) // how it went is in the process's own state
	<-w.process.Gone()
	<-done
}

// crash describes the end of the process.
func (w *proc) crash(query string, err error) *CrashError {
	c := &CrashError{Query: query, Worker: w.name, PID: w.process.PID(), ExitCode: -1, Stderr: w.stderr.String(), Err: err}
	if exit := w.process.State().Exit; exit != nil {
		c.ExitCode, c.Signal, c.OOM = exit.Code, exit.Signal, exit.OOM
	}
	return c
}

// verdict says why the worker ended when nobody asked it to.
func (w *proc) verdict(err error) error {
	w.p.mu.Lock()
	broke, asked := w.broke, w.machine.State() == WorkerShuttingDown
	w.p.mu.Unlock()
	var protocol *ProtocolError
	switch {
	case errors.As(err, &protocol):
		return protocol
	case broke != nil:
		return w.crash("", broke)
	case asked:
		return nil
	case err == nil || errors.Is(err, errGone):
		return w.crash("", nil)
	}
	return err
}

// buried is the end: the process and all of its group are gone. why is nil when
// it was asked to end.
func (w *proc) buried(why error) {
	p := w.p
	var retry *Query
	p.mu.Lock()
	w.lost = true
	a := w.cur
	w.cur = nil
	if w.confirm != nil {
		w.confirm.Stop()
		w.confirm = nil
	}
	p.ready = slices.DeleteFunc(p.ready, func(other *proc) bool { return other == w })
	p.workers = slices.DeleteFunc(p.workers, func(other *proc) bool { return other == w })
	if w.link.State() == ConnConnecting {
		_ = w.link.To(ConnDisconnected, why)
	}
	cause := why
	if cause == nil && !w.gently && !errors.Is(w.cause, ErrEvicted) {
		cause = w.cause
	}
	w.unbindLocked()
	_ = w.machine.To(WorkerDead, cause)
	if why != nil {
		p.counts.crashed.Add(1)
		if w.queries == 0 {
			p.failedLocked(why)
		}
	}
	if a != nil {
		a.q.on = nil
		if q := a.q; why != nil && q.idempotent && !q.streamed && q.attempts < maxAttempts && !p.ending && !queryTable.IsTerminal(q.State()) {
			retry = q
			p.counts.retried.Add(1)
			p.enqueueLocked(p.queue, q)
			p.rematchLocked()
		}
	}
	p.resizedLocked()
	p.ensureLocked()
	rejected := p.hopelessLocked()
	lastFail, wait := p.lastFail, time.Until(p.notUntil)
	p.mu.Unlock()
	if a != nil && retry == nil {
		a.q.finish(QueryError, nil, w.lostBy(a.q, why))
	}
	for _, q := range rejected {
		// One that was tried before cannot be rejected any more.
		err := &RejectedError{Pool: p.cfg.Name, RetryAfter: wait, Err: fmt.Errorf("%w: %w", ErrUnavailable, lastFail)}
		if !q.finish(QueryRejected, nil, err) {
			q.finish(QueryError, nil, err)
		}
	}
	if why != nil {
		p.log.Warn("procpool: a worker has ended", "worker", w.name, "error", why)
	}
}

// lostBy is the error of a query whose worker has ended.
func (w *proc) lostBy(q *Query, why error) error {
	var protocol *ProtocolError
	var crash *CrashError
	switch {
	case errors.As(why, &protocol):
		return &ProtocolError{Query: q.id, Worker: w.name, Err: protocol.Err}
	case errors.As(why, &crash):
		c := *crash
		c.Query = q.id
		return &c
	case why == nil:
		why = w.cause
	}
	return w.crash(q.id, why)
}

// failedLocked notes a failure to start or a crash without an answer.
func (p *Pool) failedLocked(why error) {
	p.failures++
	p.lastFail = why
	wait := p.cfg.Backoff.After(p.failures)
	p.notUntil = time.Now().Add(wait)
}

// hopelessLocked takes the queries out of the queue that wait for a worker while
// the breaker is open.
func (p *Pool) hopelessLocked() []*Query {
	if !p.brokenLocked() {
		return nil
	}
	var out []*Query
	for e := p.queue.Front(); e != nil; e = p.queue.Front() {
		q, _ := e.Value.(*Query)
		p.dequeueLocked(q)
		out = append(out, q)
	}
	return out
}

// rematchLocked gives queries that have come back into the queue to workers
// that are ready.
func (p *Pool) rematchLocked() {
	for _, w := range slices.Clone(p.ready) {
		if a := p.nextLocked(w); a != nil {
			p.sendLater(w, a)
			w.ensureReadingLocked()
		}
	}
	p.ensureLocked()
}

// sendLater sends an attempt, nil for none, for somebody who holds the lock.
func (p *Pool) sendLater(w *proc, a *attempt) {
	if a == nil {
		return
	}
	p.alive.Add(1)
	go func() {
		defer p.alive.Done()
		w.send(a)
	}()
}

// tendEvery is how often the workers are looked at.
func (p *Pool) tendEvery() time.Duration {
	every := p.cfg.Recycle.Every
	if p.cfg.HealthInterval != Off {
		every = min(every, p.cfg.HealthInterval/2, p.cfg.HealthTimeout/2)
	}
	return max(every, time.Millisecond)
}

// tend looks after the workers: their health, their age, their memory.
func (p *Pool) tend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, w := range slices.Clone(p.workers) {
		if w.lost || w.readyAt.IsZero() {
			continue
		}
		w.ensureReadingLocked()
		p.checkLocked(w, now)
		if why := w.worn(now); why != nil && !w.recycling && p.mayRecycleLocked() {
			w.recycleLocked(why)
		}
	}
	p.ensureLocked()
}

// checkLocked asks a ready worker whether it lives, and ends one that has not
// answered.
func (p *Pool) checkLocked(w *proc, now time.Time) {
	if p.cfg.HealthInterval == Off {
		return
	}
	switch {
	case !w.asked.IsZero():
		// It may have had a query since, and many answer nothing meanwhile: then
		// the time begins when it is free.
		waits := now.Sub(w.asked)
		if w.lastActivity.After(w.asked) {
			waits = now.Sub(w.lastActivity)
		}
		if w.machine.State() == WorkerReady && waits > p.cfg.HealthTimeout {
			w.broke = fmt.Errorf("it has not answered a health check within %v", p.cfg.HealthTimeout)
			w.stopLocked(false, w.broke)
		}
	case w.machine.State() == WorkerReady && now.Sub(w.checked()) >= p.cfg.HealthInterval:
		w.asked = now
		w.checkedAt = now
		p.alive.Add(1)
		go func() {
			defer p.alive.Done()
			w.wmu.Lock()
			defer w.wmu.Unlock()
			w.armWrite(time.Now())
			if err := w.writer.HealthCheck(); err != nil && !errors.Is(err, wire.ErrPoisoned) {
				w.fail(fmt.Errorf("send a health check: %w", err))
			}
		}()
	}
}
