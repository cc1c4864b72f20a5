package host

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// EngineMain makes this program able to run the code of its host's workers in child
// processes. Call it first in main, with the engines that the host has; an engine for
// an interpreter, such as Python's, and engines of [engine.Trusted] need not to be
// among them. In a child it runs code and never returns. In any other process it
// returns at once.
//
//	func main() {
//		host.EngineMain(starlark.New(), js.New(), wasm.New())
//		…
//	}
//
// A program that does not call it names another one in Config.Isolation.
func EngineMain(engines ...engine.Engine) { isolate.Main(engines...) }

// children are the child processes of a host.
type children struct {
	*isolate.Children // nil when the host trusts all engines
	missing           atomic.Pointer[[]string]
}

// isolateEngines replaces each engine that the host does not trust by one that runs
// code in children.
func (h *Host) isolateEngines() error {
	trusts := true
	h.cfg.Engines.Each(func(_ string, e engine.Engine) engine.Engine {
		trusts = trusts && engine.IsTrusted(e)
		return e
	})
	if trusts {
		return nil
	}
	made, err := isolate.New(h.cfg.Isolation)
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	h.children.Children = made
	h.cfg.Engines = h.cfg.Engines.Each(made.Engine)
	return nil
}

// probeFloor says once in the log what children lack of their floor.
func (h *Host) probeFloor(ctx context.Context) {
	if h.children.Children == nil {
		return
	}
	h.running.Add(1)
	call.Go("floor of children", func() error {
		missing, err := h.children.Missing(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			h.log.Error("hosted workers: their code cannot run", "error", err)
		case err == nil:
			h.children.missing.Store(&missing)
			for _, part := range missing {
				h.log.Warn("hosted workers: their code runs without a part of its containment, see docs/guides/hosted.md",
					"missing", part)
			}
		}
		return nil
	}, func(err error) {
		if err != nil {
			h.log.Error("hosted workers: the look for missing parts of the containment failed", "error", err)
		}
		h.running.Done()
	})
}

// Isolation says what the child processes of a host do.
type Isolation struct {
	isolate.Stats
	// Missing are the parts of the containment that this system does not have, each
	// with the reason. It is nil until the host has found out, after Start.
	Missing []string
}

// Isolation returns what the child processes of this host do now. It is zero when the
// host trusts all its engines.
func (h *Host) Isolation() Isolation {
	var i Isolation
	if h.children.Children != nil {
		i.Stats = h.children.Stats()
	}
	if missing := h.children.missing.Load(); missing != nil {
		i.Missing = *missing
	}
	return i
}

// slowAfter is how long a message takes that makes its worker a slow one.
const slowAfter = 100 * time.Millisecond

// defaultHandlers is enough for the handlers that wait for state while others compute.
func defaultHandlers() int { return 4 * max(2, runtime.GOMAXPROCS(0)) }
