package httpdrain

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// connTable holds the open connections of the health server. When a connection
// would exceed the limit, the table closes the oldest one that no handler is
// answering, or the oldest one when handlers are answering all of them.
type connTable struct {
	limit   int
	leaving atomic.Bool // each response tells its client to close the connection

	mu   sync.Mutex // guards everything below
	open map[net.Conn]*healthConn
	seq  uint64
}

type healthConn struct {
	conn    net.Conn
	seq     uint64 // in the order of acceptance
	serving bool   // from a handler's start until its response is written; under the table's lock
}

type healthConnKey struct{}

// context is an http.Server's ConnContext. It is called for each connection
// before anything is read from it.
func (t *connTable) context(ctx context.Context, conn net.Conn) context.Context {
	t.mu.Lock()
	t.seq++
	hc := &healthConn{conn: conn, seq: t.seq}
	var victim *healthConn
	if len(t.open) >= t.limit {
		victim = t.oldestLocked()
		delete(t.open, victim.conn)
	}
	t.open[conn] = hc
	t.mu.Unlock()
	if victim != nil {
		_ = victim.conn.Close() // its server goroutine sees an error and ends
	}
	return context.WithValue(ctx, healthConnKey{}, hc)
}

func (t *connTable) oldestLocked() *healthConn {
	var oldest *healthConn
	for _, hc := range t.open {
		if oldest == nil || oldest.serving && !hc.serving ||
			oldest.serving == hc.serving && hc.seq < oldest.seq {
			oldest = hc
		}
	}
	return oldest
}

// state is an http.Server's ConnState.
func (t *connTable) state(conn net.Conn, state http.ConnState) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch hc := t.open[conn]; {
	case hc == nil: // closed by context
	case state == http.StateIdle:
		hc.serving = false
	case state == http.StateClosed, state == http.StateHijacked:
		delete(t.open, conn)
	}
}

// serving marks a connection when a handler begins to answer a request on it. The mark
// goes in state: net/http writes the rest of a response after the handler has returned.
func (t *connTable) serving(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if hc, ok := req.Context().Value(healthConnKey{}).(*healthConn); ok {
			t.mu.Lock()
			hc.serving = true
			t.mu.Unlock()
		}
		if t.leaving.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, req)
	})
}

// count returns how many connections are open.
func (t *connTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

// closeWaiting closes the connections that no handler is answering.
func (t *connTable) closeWaiting() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, hc := range t.open {
		if !hc.serving {
			_ = hc.conn.Close()
		}
	}
}
