package httpdrain

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// bound is what a [Server] and a [GRPC] have of a listener and of its goodbye.
type bound struct {
	name    string
	tracker *tracker

	mu        sync.Mutex // guards everything below, the rest of the server's fields, and notices
	cfg       Config
	ln        *listener
	closing   bool // Shutdown or Close was called
	began     bool // BeginDrain or EndWindow was called
	t0        time.Time
	windowEnd time.Time
}

// Name returns the name given to the constructor.
func (b *bound) Name() string { return b.name }

// Configure replaces the timing. Call it before BeginDrain, or between EndWindow and
// CloseWhenQuiet: the steps read the timing without a lock.
func (b *bound) Configure(cfg Config) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cfg = cfg.clean()
}

// Addr returns the address that the server listens on, nil before Bind.
func (b *bound) Addr() net.Addr {
	b.mu.Lock()
	ln := b.ln
	b.mu.Unlock()
	if ln == nil {
		return nil
	}
	return ln.Addr() // a foreign method: not under the lock
}

func (b *bound) windowEndLocked() time.Time {
	if b.windowEnd.IsZero() {
		return time.Now()
	}
	return b.windowEnd
}

// closeWhenQuiet closes the listener, if there is one, as [Server.CloseWhenQuiet] says.
func (b *bound) closeWhenQuiet(ctx context.Context) error {
	b.mu.Lock()
	ln, t0, end := b.ln, b.t0, b.windowEndLocked()
	b.mu.Unlock()
	if ln == nil {
		return nil
	}
	return b.listenerError(ln.closeWhenQuiet(ctx, t0, end, b.cfg))
}

// HandOver closes the listener, on which another process goes on, without a wait for it to be
// quiet. The server goes on serving open connections. Serve does not return. The error says
// why the listener could not be closed.
func (b *bound) HandOver(ctx context.Context) error {
	b.mu.Lock()
	ln := b.ln
	b.mu.Unlock()
	if ln == nil {
		return nil
	}
	return b.listenerError(ln.retire(ctx))
}

func (b *bound) listenerError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("close the listener of server %q: %w", b.name, err)
}
