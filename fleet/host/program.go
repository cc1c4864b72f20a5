package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// loadCode makes a program of code with the engine of a record. All code that runs goes
// through it: it verifies the record's signature. It returns an error when the engine panics. It abandons an engine that does not return before ctx ends,
// and closes a program that the engine returns later. print gets the lines that the
// code prints, without secrets; nil drops them.
func (h *Host) loadCode(ctx context.Context, rec *Record, code []byte, later bool, print func(string)) (engine.Program, error) {
	e, err := h.cfg.Engines.Lookup(rec.MIMEType)
	if err != nil {
		return nil, err
	}
	if err := h.signed(rec, code); err != nil {
		return nil, err
	}
	means, err := h.granted(rec)
	if err != nil {
		return nil, err
	}
	veil := means.veil
	cfg := engine.Config{Worker: rec.ID, Limits: h.limits(rec), Env: means.env}
	if print != nil {
		cfg.Log = func(line string) { print(veil.text(line)) }
	}
	var p engine.Program // not to be read before the call has ended
	load := call.Start("engine", func() (err error) {
		if late, ok := e.(engine.LateLoader); ok && later {
			p = late.LoadLater(code, cfg)
			return nil
		}
		p, err = e.Load(ctx, code, cfg)
		return err
	})
	if err := load.Wait(ctx.Done(), call.Settle); err != nil {
		if did[*call.AbandonedError](err) {
			call.Go("engine", func() error { <-load.Done(); return nil }, func(error) { h.closeProgram(rec.ID, p) })
		}
		return nil, fmt.Errorf("load code: %w", veil.err(err))
	}
	if call.IsNil(p) {
		return nil, fmt.Errorf("load code: the engine %T returned no program and no error", e)
	}
	return p, nil
}

// closeProgram closes a program, if there is one. It logs a Close that fails, panics
// or does not return within DrainTimeout.
func (h *Host) closeProgram(worker string, p engine.Program) {
	if call.IsNil(p) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), h.cfg.DrainTimeout)
	defer cancel()
	if err := call.Within(ctx, "close of its program", 0, p.Close); err != nil {
		h.log.Warn("hosted worker", "worker", worker, "err", err)
	}
}

// handle hands a message to the program. It returns a panic of the program as an
// error.
func (m *member) handle(ctx context.Context, message *engine.Message, state engine.State) (outputs []engine.Output, err error) {
	err = call.Do("handler", func() (err error) {
		outputs, err = m.program.Handle(ctx, message, state)
		return err
	})
	return outputs, m.veil.err(err)
}

// quarantine blocks the loading of code that made the engine panic or hang, or that
// ended its process.
type quarantine struct {
	uid        string
	generation int
	revision   uint64 // the record's, at the last load
	asks       uint64 // the slot's, at the last load
	failures   int
	ran        bool // the code was loaded, and messages ended its process
	until      time.Time
	err        error
}

// quarantineFor is how long the first quarantine lasts. Each further one of the same
// code lasts twice as long, up to quarantineMax. A new version ends it, and so does
// an operator who starts the worker or asks for a recovery.
const (
	quarantineFor = retryLoad
	quarantineMax = 10 * time.Minute
)

// covers reports whether q is for the code of rec and no operator has asked for
// another try since.
func (q *quarantine) covers(rec *Record, asks uint64) bool {
	return q != nil && q.uid == rec.UID && q.generation == rec.Generation && q.asks == asks &&
		(rec.State == StateFailed || rec.revision == q.revision)
}

// quarantined returns the error of the last load while a record's code is in
// quarantine, and nil otherwise.
func (s *slot) quarantined(rec *Record, asks uint64) error {
	if q := s.quarantines[rec.ID]; q.covers(rec, asks) && time.Now().Before(q.until) {
		return q.err
	}
	return nil
}

// hasLoaded records the outcome of a load. It puts the code into quarantine when the
// engine panicked or did not return.
func (s *slot) hasLoaded(rec *Record, asks uint64, err error) {
	if err != nil {
		s.host.counts(rec).LoadsFailed.Add(1)
	}
	if err == nil || !did[*call.PanicError](err) && !did[*call.AbandonedError](err) && !did[*engine.KilledError](err) {
		if q := s.quarantines[rec.ID]; q != nil && !q.ran { // what messages do to the code shows only later
			delete(s.quarantines, rec.ID)
		}
		return
	}
	q := s.quarantines[rec.ID]
	if again := q != nil && q.ran && q.uid == rec.UID && q.generation == rec.Generation && q.asks == asks; !again && !q.covers(rec, asks) {
		q = &quarantine{uid: rec.UID, generation: rec.Generation}
		s.quarantines[rec.ID] = q
	}
	killed, is := didKill(err)
	q.ran = is && killed.During == "message"
	wait := quarantineFor << min(q.failures, 10)
	q.revision, q.asks, q.err, q.until = rec.revision, asks, err, time.Now().Add(min(wait, quarantineMax))
	q.failures++
}

// didKill returns the part of err that says that code ended its process.
func didKill(err error) (*engine.KilledError, bool) { return errors.AsType[*engine.KilledError](err) }

// did reports whether err wraps an error of type E.
func did[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
}
