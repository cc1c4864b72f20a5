package host

import (
	"errors"
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/worker"
)

// trouble is code that failed on this host. It is tried again after a wait, which an operator ends by
// starting the worker or by a recovery. It is over with another version, and when the worker stops.
// The slot's mutex guards it.
type trouble struct {
	code     codeVersion
	err      error
	failures int           // how often it made the engine panic or not return, or ended its process
	wait     time.Duration // before it is tried again, from the first look on; 0 when it is over, or was begun
	until    time.Time     // end of the wait that was begun
	revision uint64        // of the record when it failed
}

// quarantines says how long code waits that made the engine panic or not return, or that ended its
// process: each further time twice as long. Other code waits retryLoad.
var quarantines = worker.Backoff{Min: retryLoad, Max: 10 * time.Minute, Jitter: worker.NoJitter}

// codeFailed takes the code of a record out of service: it could not be loaded, or its messages have
// ended its process too often. Its wait begins when the slot next looks at it, which is perhaps long after
// that: the runner ends first.
func (s *slot) codeFailed(rec *Record, err error) {
	s.host.counts(rec).LoadsFailed.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.workerLocked(rec.ID)
	if w.trouble == nil || w.trouble.code != rec.codeVersion() {
		w.trouble = &trouble{code: rec.codeVersion()}
	}
	t, wait := w.trouble, retryLoad
	if hasType[*engine.KilledError](err) || hasType[*call.PanicError](err) || hasType[*call.AbandonedError](err) {
		t.failures++
		wait = quarantines.After(t.failures)
	}
	t.err, t.wait, t.until, t.revision = err, wait, time.Time{}, rec.revision
}

// troubleOf reports whether the code of a record has failed here, and why while it may not be tried
// again.
func (s *slot) troubleOf(rec *Record) (failed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.workerLocked(rec.ID).trouble
	if t == nil || t.code != rec.codeVersion() {
		return false, nil
	}
	if t.wait > 0 {
		t.until, t.wait = time.Now().Add(t.wait), 0
	}
	isOwn := rec.Changed.By == s.host.cfg.HostID // the slot notes that code was loaded
	if rec.State == StateRunning && rec.revision > t.revision && !isOwn {
		t.until = time.Time{} // an operator has started it
	}
	if time.Now().Before(t.until) {
		err = t.err
	}
	return true, err
}

// hasType reports whether err wraps an error of type E.
func hasType[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
}

// countKill counts a message that has ended the process of its worker's code, at its first attempt. The
// code is taken out of service when there were too many.
func (r *runner) countKill(a *attempt, err error) {
	killed, is := errors.AsType[*engine.KilledError](err)
	if !is || a.tries.Failed > 0 {
		return
	}
	m := a.member
	if n := m.kills.Add(1); n >= int64(r.host.cfg.MaxKills) {
		err := fmt.Errorf("%d messages ended the process of the code, the last one: %w", n, m.redactor.err(killed))
		r.slot.codeFailed(m.record, err)
		r.halt()
	}
}
