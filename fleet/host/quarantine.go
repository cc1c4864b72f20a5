package host

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/worker"
)

// quarantine blocks the loading of code that made the engine panic or not return, or that
// ended its process. It ends with a new version, and when an operator starts the worker or
// asks for a recovery.
type quarantine struct {
	code     codeVersion
	revision uint64 // the record's, at the last load
	asked    uint64 // the slot's, at the last load
	failures int
	ran      bool // the code was loaded, and messages ended its process
	until    time.Time
	err      error
}

// quarantines says how long a quarantine lasts: each further one of the same code lasts twice
// as long.
var quarantines = worker.Backoff{Min: retryLoad, Max: 10 * time.Minute, Jitter: worker.NoJitter}

// covers reports whether q is for the code of rec and no operator has asked for another try
// since.
func (q *quarantine) covers(rec *Record, asked uint64) bool {
	untouched := q != nil && (rec.State == StateFailed || rec.revision == q.revision)
	return untouched && q.code == rec.codeVersion() && q.asked == asked
}

// reason returns the error of the last load while a record's code is in quarantine, and nil
// otherwise.
func (q *quarantine) reason(rec *Record, asked uint64) error {
	if q.covers(rec, asked) && time.Now().Before(q.until) {
		return q.err
	}
	return nil
}

// hasLoaded records the outcome of a load. It puts the code into quarantine when the engine
// panicked or did not return, or when the code ended its process.
func (s *slot) hasLoaded(rec *Record, asked uint64, err error) {
	w := s.worker(rec.ID)
	q := w.quarantine
	if err != nil {
		s.host.counts(rec).LoadsFailed.Add(1)
	}
	killed, wasKilled := errors.AsType[*engine.KilledError](err)
	if !wasKilled && !hasType[*call.PanicError](err) && !hasType[*call.AbandonedError](err) {
		if q != nil && !q.ran { // what messages do to the code shows only later
			w.quarantine = nil
		}
		return
	}
	repeated := q.covers(rec, asked) || q != nil && q.ran && q.code == rec.codeVersion() && q.asked == asked
	if !repeated {
		q = &quarantine{code: rec.codeVersion()}
		w.quarantine = q
	}
	q.failures++
	q.ran = wasKilled && killed.During == "message"
	q.revision, q.asked, q.err = rec.revision, asked, err
	q.until = time.Now().Add(quarantines.After(q.failures))
}

// hasType reports whether err wraps an error of type E.
func hasType[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
}

// kills counts the messages that ended the process of a program's code.
type kills struct {
	mu       sync.Mutex // guards everything below
	messages map[string]struct{}
}

// add counts a message once, and returns how many there are.
func (k *kills) add(message string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.messages == nil {
		k.messages = make(map[string]struct{})
	}
	k.messages[message] = struct{}{}
	return len(k.messages)
}

// countKill counts a message that has ended the process of its worker's code. The worker is
// put into quarantine when there were too many.
func (r *runner) countKill(a *attempt, err error) {
	killed, is := errors.AsType[*engine.KilledError](err)
	if !is {
		return
	}
	m := a.member
	if n := m.kills.add(a.name()); n >= r.host.cfg.MaxKills {
		err := fmt.Errorf("%d messages ended the process of the code, the last one: %w", n, m.redactor.err(killed))
		r.slot.codeFailed(m.record, err)
		r.halt()
	}
}
