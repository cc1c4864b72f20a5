package procpool

import (
	"errors"
	"slices"
	"time"
)

// selfEnd is how long a process may take to exit by itself after it has closed
// its connection. Waiting keeps its own exit code.
const selfEnd = 500 * time.Millisecond

// askToEnd sends the shutdown message and waits for the worker to end. A worker that
// has queries is asked to cancel them and not to wait for their end.
func (w *proc) askToEnd() {
	w.p.mu.Lock()
	w.ensureReadingLocked()
	attempts := slices.Clone(w.attempts)
	w.p.mu.Unlock()
	w.p.alive.Go(func() { // a write may block until the process ends
		for _, a := range attempts {
			w.sendCancel(a)
		}
		w.wmu.Lock()
		defer w.wmu.Unlock()
		w.armWrite()
		_ = w.writer.Shutdown(len(attempts) == 0) // when this fails, the grace ends the worker
	})
	select {
	case <-w.process.Done(): // it may close its connection before its own cleaning up
	case <-time.After(w.p.cfg.ShutdownGrace):
	case <-w.p.forced.Done():
	}
}

func (w *proc) selfEnd() {
	select {
	case <-w.process.Done():
	case <-time.After(selfEnd):
	case <-w.p.forced.Done():
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
	select {
	case <-w.readEnd: //nolint:errcheck // only its end matters
	case <-time.After(selfEnd):
	case <-w.stop.Signaled(): // the pool ends it; no caller waits for the rest
	}
}

// end ends the process with SIGTERM, KillGrace and SIGKILL. When the pool has no
// time left it sends SIGKILL at once.
func (w *proc) end() {
	_ = w.process.Stop(w.p.forced) // the process's own state has the outcome
	<-w.process.Gone()
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
