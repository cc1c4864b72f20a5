package host

import (
	"context"
	"fmt"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// loadCode makes a program of code with the engine of a record. All code that runs goes
// through loadCode, because it verifies the record's signature. It returns an error when the
// engine panics. It abandons an engine that does not return before ctx ends, and closes a program
// that the engine returns later. print gets the lines that the code prints, without secrets; nil drops
// them.
func (h *Host) loadCode(
	ctx context.Context, rec *Record, code []byte, later bool, print func(string),
) (engine.Program, error) {
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
	cfg := engine.Config{Worker: rec.ID, Limits: h.limits(rec), MaxCall: h.cfg.maxCall(), Env: means.env}
	if print != nil {
		cfg.Log = func(line string) { print(means.redactor.text(line)) }
	}
	var p engine.Program // the call sets it: read it only after the call has ended
	load := call.Start("engine", func() (err error) {
		if late, ok := e.(engine.LateLoader); ok && later {
			p = late.LoadLater(code, cfg)
			return nil
		}
		p, err = e.Load(ctx, code, cfg)
		return err
	})
	if err := load.Wait(ctx.Done(), call.Settle); err != nil {
		if hasType[*call.AbandonedError](err) {
			call.Go("engine", func() error { <-load.Done(); return nil }, func(error) { h.closeProgram(rec.ID, p) })
		}
		return nil, fmt.Errorf("load code: %w", means.redactor.err(err))
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
		h.log.Warn("hosted worker", "worker", worker, "error", err)
	}
}

// handle hands a message to the program. It returns a panic of the program as an
// error.
func (m *member) handle(
	ctx context.Context, message *engine.Message, state engine.State,
) (outputs []engine.Output, err error) {
	t := message.Trace()
	ctx = t.In(ctx)
	m.printer.trace.Store(&t)
	defer m.printer.trace.Store(nil)
	err = call.Do("handler", func() (err error) {
		outputs, err = m.program.Handle(ctx, message, state)
		return err
	})
	return outputs, m.redactor.err(err)
}
