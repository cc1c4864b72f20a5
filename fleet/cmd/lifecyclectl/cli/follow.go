package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/worker"
)

// maxSilence is the time of three missed heartbeats: the server is gone.
const maxSilence = 45 * time.Second

// errSilent is the error of a stream whose server has gone silent.
var errSilent = fmt.Errorf("it has sent nothing for %v", maxSilence)

// again is the wait before another stream. It is spread widely: clients that were
// cut off together do not come back together.
var again = worker.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.5}

// message is what a watch receives.
type message interface {
	GetKind() operatorv1.WatchResponse_Kind
}

// Watcher has the functions to call when a server goes away and comes back.
type Watcher struct {
	Lost func(error) // the stream broke, and Follow tries another; err is nil when the server ended it
	Back func()      // another stream works
}

// Notices reports on stderr that the server is away and that it is back.
func (c *Call) Notices() Watcher {
	return Watcher{
		Lost: func(err error) {
			why := "the watch ended"
			if err != nil {
				why = client.Message(err)
			}
			c.Warn("lost %s (%s); trying again", c.URL, output.Printable(why))
		},
		Back: func() { c.Warn("%s is back", c.URL) },
	}
}

// Follow keeps a watch going when the server restarts. It calls begin before each stream of
// the watch, and each for every message of the stream. It returns nil when ctx ends, and an
// error when each fails or the server refuses. A server that does not answer the first time
// is also an error: its address may be wrong.
func Follow[M any, P interface {
	*M
	message
}](
	ctx context.Context, w Watcher,
	open func(context.Context) (*connect.ServerStreamForClient[M], error), begin func(), each func(P) error,
) error {
	var established, lost bool
	failures := 0 // since the last message
	for {
		var failed error // of each
		begin()
		err := stream(ctx, open, func(m P) error {
			if lost {
				lost = false
				w.Back()
			}
			established, failures = true, 0
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
		case !established || !MayPass(err):
			return err
		}
		if !lost {
			lost = true
			w.Lost(err)
		}
		failures++
		if again.Sleep(ctx, failures) != nil {
			return nil //nolint:nilerr // the caller ends a watch by ending ctx
		}
	}
}

// stream receives one stream to its end, or until its server has gone silent.
func stream[M any, P interface {
	*M
	message
}](ctx context.Context, open func(context.Context) (*connect.ServerStreamForClient[M], error), each func(P) error) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	timeout := time.AfterFunc(maxSilence, func() { cancel(errSilent) })
	defer func() {
		timeout.Stop()
		if errors.Is(context.Cause(ctx), errSilent) {
			err = errSilent
		}
		cancel(nil)
	}()
	s, err := open(ctx)
	if err != nil {
		return err
	}
	for s.Receive() {
		timeout.Reset(maxSilence)
		if err := each(s.Msg()); err != nil {
			return errors.Join(err, s.Close())
		}
	}
	return errors.Join(s.Err(), s.Close())
}

// MayPass reports whether another attempt may succeed.
func MayPass(err error) bool {
	if err == nil || !connect.IsWireError(err) {
		return true
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeAborted, connect.CodeResourceExhausted, connect.CodeDeadlineExceeded,
		connect.CodeCanceled, connect.CodeInternal, connect.CodeUnknown:
		return true
	}
	return false
}

// Changes makes one sequence of changes from the streams of a watch, each of which begins
// with all current items.
type Changes[V any] struct {
	Same   func(a, b V) bool // whether b shows nothing that a does not
	Wanted func(V) bool      // nil: all

	Put      func(V) error                  // an item is new, or has changed
	Gone     func(key string, last V) error // one was deleted
	Unwanted func(V) error                  // one was wanted and is not any more; may be nil without Wanted

	known   map[string]V
	current map[string]bool // keys in this stream; nil once it is synced
}

// Begin starts a new stream; pass it to Follow.
func (c *Changes[V]) Begin() { c.current = map[string]bool{} }

// Take takes a change of an item.
func (c *Changes[V]) Take(kind operatorv1.WatchResponse_Kind, key string, v V) error {
	switch kind {
	case operatorv1.WatchResponse_KIND_PUT:
		before, wasKnown := c.known[key]
		if c.Wanted != nil && !c.Wanted(v) {
			delete(c.known, key)
			if wasKnown {
				return c.Unwanted(v)
			}
			return nil
		}
		if c.known == nil {
			c.known = map[string]V{}
		}
		c.known[key] = v
		if c.current != nil {
			c.current[key] = true
		}
		if !wasKnown || !c.Same(before, v) {
			return c.Put(v)
		}
	case operatorv1.WatchResponse_KIND_DELETED:
		return c.drop(key)
	case operatorv1.WatchResponse_KIND_SYNCED:
		return c.sync()
	}
	return nil
}

func (c *Changes[V]) drop(key string) error {
	last, wasKnown := c.known[key]
	if !wasKnown {
		return nil
	}
	delete(c.known, key)
	return c.Gone(key, last)
}

// sync drops the items that are gone since the previous stream.
func (c *Changes[V]) sync() error {
	var gone []string
	for key := range c.known {
		if c.current != nil && !c.current[key] {
			gone = append(gone, key)
		}
	}
	c.current = nil
	slices.Sort(gone)
	for _, key := range gone {
		if err := c.drop(key); err != nil {
			return err
		}
	}
	return nil
}

// Pause waits, and returns false when ctx ends first.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
