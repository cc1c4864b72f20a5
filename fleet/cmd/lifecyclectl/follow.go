package main

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Times of a watch.
const (
	silence   = 45 * time.Second // three missed heartbeats: the server is gone
	firstWait = 200 * time.Millisecond
	mostWait  = 5 * time.Second
)

// again is the wait before another stream. It is spread widely: clients that were
// cut off together do not come back together.
var again = worker.Backoff{Min: firstWait, Max: mostWait, Jitter: 0.5}

// change is what a watch receives.
type change interface {
	GetKind() operatorv1.WatchResponse_Kind
}

// watcher keeps a watch going when the server restarts. A new stream begins with all
// current items again; a [memory] finds the new ones.
type watcher struct {
	lost func(error) // the stream broke, and follow tries another; nil error: it ended
	back func()      // another stream works
}

// follow calls begin before each stream of a watch, and each for every message of the
// stream. It returns nil when ctx ends, and an error when each fails or the server
// refuses. A server that does not answer the first time is also an error: its address may
// be wrong.
func follow[M any, P interface {
	*M
	change
}](ctx context.Context, w watcher, open func(context.Context) (*connect.ServerStreamForClient[M], error), begin func(), each func(P) error) error {
	var established, lost bool
	for failures := 1; ; failures++ {
		var failed error // of each
		begin()
		err := stream(ctx, open, func(m P) error {
			if lost {
				lost = false
				w.back()
			}
			established, failures = true, 1
			if m.GetKind() == operatorv1.WatchResponse_KIND_HEARTBEAT {
				return nil
			}
			failed = each(m)
			return failed
		})
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the caller ends a watch by ending ctx
		case failed != nil:
			return failed
		case !established || !passing(err):
			return err
		}
		if !lost {
			lost = true
			w.lost(err)
		}
		if again.Sleep(ctx, failures) != nil {
			return nil //nolint:nilerr // the caller ends a watch by ending ctx
		}
	}
}

// stream receives one stream to its end.
func stream[M any, P interface {
	*M
	change
}](ctx context.Context, open func(context.Context) (*connect.ServerStreamForClient[M], error), each func(P) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	s, err := open(ctx)
	if err != nil {
		return err
	}
	for s.Receive() {
		quiet.Reset(silence)
		if err := each(s.Msg()); err != nil {
			return errors.Join(err, s.Close())
		}
	}
	return errors.Join(s.Err(), s.Close())
}

// passing reports whether another attempt may succeed.
func passing(err error) bool {
	if err == nil || !connect.IsWireError(err) {
		return true
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeAborted, connect.CodeResourceExhausted, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeInternal, connect.CodeUnknown:
		return true
	}
	return false
}

// memory makes one sequence of changes from several streams, each of which begins
// with all current items.
type memory[V any] struct {
	same  func(a, b V) bool
	known map[string]V
	again map[string]bool // keys in this stream; nil once it is synced
}

func newMemory[V any](same func(a, b V) bool) *memory[V] {
	return &memory[V]{same: same, known: map[string]V{}}
}

// begin starts a new stream; pass it to follow.
func (m *memory[V]) begin() { m.again = map[string]bool{} }

// put reports whether the value is new.
func (m *memory[V]) put(key string, v V) bool {
	before, ok := m.known[key]
	m.known[key] = v
	if m.again != nil {
		m.again[key] = true
	}
	return !ok || !m.same(before, v)
}

// drop reports whether the deletion is new.
func (m *memory[V]) drop(key string) bool {
	_, ok := m.known[key]
	delete(m.known, key)
	return ok
}

// sync returns the keys that are gone since the previous stream.
func (m *memory[V]) sync() (gone []string) {
	for key := range m.known {
		if m.again != nil && !m.again[key] {
			gone = append(gone, key)
			delete(m.known, key)
		}
	}
	m.again = nil
	return gone
}
