package procpool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// selfEnd is how long a process may take to exit by itself after it has closed
// its connection. Waiting keeps its own exit code.
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
	for acked := w.acked.Signaled(); ; {
		select {
		case <-acked: // the worker now exits by itself
			acked = nil
		case <-w.readEnd: //nolint:errcheck // only its end matters
			w.selfEnd()
			return
		case <-w.process.Done():
			return
		case <-grace.C:
			return
		case <-w.p.force.Signaled():
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
	case <-w.p.force.Signaled():
	}
}

// readRest reads what the worker sent before its end. It waits for at most
// selfEnd: a grandchild outside of the group may hold the connection open, and a
// caller may read slowly.
func (w *proc) readRest() {
	w.p.mu.Lock()
	w.ensureReadingLocked()
	w.p.mu.Unlock()
	_ = w.conn.SetReadDeadline(time.Now().Add(selfEnd))
	timer := time.NewTimer(selfEnd)
	defer timer.Stop()
	select {
	case <-w.readEnd: //nolint:errcheck // only its end matters
	case <-timer.C:
	case <-w.stop.Signaled(): // the pool ends it; no caller waits for the rest
	}
}

// end ends the process with SIGTERM, KillGrace and SIGKILL. When the pool has no
// time left it sends SIGKILL at once.
func (w *proc) end() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-w.p.force.Signaled():
			cancel()
		case <-w.process.Done():
		}
	}()
	_ = w.process.Stop(ctx) // the process's own state has the outcome
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

// verdict returns why the worker ended, nil when the pool asked it to.
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

// reap removes a worker whose process group has ended. why is nil when the pool
// asked it to end.
func (w *proc) reap(why error) {
	p := w.p
	var retry *Query
	p.mu.Lock()
	w.leaving = true
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
	rejected := p.unservableLocked()
	lastFail, wait := p.lastFail, time.Until(p.notUntil)
	p.mu.Unlock()
	if a != nil && retry == nil {
		a.q.finish(QueryError, nil, w.queryError(a.q, why))
	}
	for _, q := range rejected {
		// A query that was tried before cannot be rejected any more.
		err := &RejectedError{Pool: p.cfg.Name, RetryAfter: wait, Err: fmt.Errorf("%w: %w", ErrUnavailable, lastFail)}
		if !q.finish(QueryRejected, nil, err) {
			q.finish(QueryError, nil, err)
		}
	}
	if why != nil {
		p.log.Warn("procpool: a worker has ended", "worker", w.name, "error", why)
	}
}

// queryError returns the error of a query whose worker has ended.
func (w *proc) queryError(q *Query, why error) error {
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

// failedLocked counts a failure to start or a crash without an answer.
func (p *Pool) failedLocked(why error) {
	p.failures++
	p.lastFail = why
	wait := p.cfg.Backoff.After(p.failures)
	p.notUntil = time.Now().Add(wait)
}

// unservableLocked removes the waiting queries from the queue when the breaker is
// open, and returns them.
func (p *Pool) unservableLocked() []*Query {
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

// rematchLocked gives queries that are back in the queue to ready workers.
func (p *Pool) rematchLocked() {
	for _, w := range slices.Clone(p.ready) {
		if a := p.nextLocked(w); a != nil {
			p.sendLater(w, a)
			w.ensureReadingLocked()
		}
	}
	p.ensureLocked()
}

// sendLater sends an attempt, nil for none, for a caller that holds the lock.
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

// tendEvery returns how often the pool checks its workers.
func (p *Pool) tendEvery() time.Duration {
	every := p.cfg.Recycle.Every
	if p.cfg.HealthInterval != Off {
		every = min(every, p.cfg.HealthInterval/2, p.cfg.HealthTimeout/2)
	}
	return max(every, time.Millisecond)
}

// tend checks each worker's health, age and memory.
func (p *Pool) tend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, w := range slices.Clone(p.workers) {
		if w.leaving || w.readyAt.IsZero() {
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

// checkLocked sends a health check to a ready worker, and ends one that has not
// answered the last in time.
func (p *Pool) checkLocked(w *proc, now time.Time) {
	if p.cfg.HealthInterval == Off {
		return
	}
	switch {
	case !w.asked.IsZero():
		// It may have had a query since, and many workers do not answer while they
		// work. Then the time begins when it is ready again.
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
