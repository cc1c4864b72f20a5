package cli

import (
	"context"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
)

// The times of a watch.
const (
	lookEvery = 2 * time.Second  // the pause between two looks
	lookIn    = 45 * time.Second // a look that takes longer has failed: the server has gone silent
)

// Watch looks again and again, and shows each answer. It returns nil when the command is
// interrupted or the reader of its output has gone. It waits for a server that is away, and
// says so on stderr. A first look that fails ends it, because the address may be wrong, and so
// does a server that refuses, or an error of show.
func Watch[A any](c *Call, look func(context.Context) (A, error), show func(A) error) error {
	isAway := false
	for isFirst := true; ; isFirst = false {
		ctx, cancel := context.WithTimeout(c.Context(), lookIn)
		answer, err := look(ctx)
		cancel()
		switch {
		case c.Context().Err() != nil:
			return nil //nolint:nilerr // the caller ends a watch by ending ctx
		case err != nil && (isFirst || !mayPass(err)):
			return err
		case err != nil && !isAway:
			isAway = true
			c.Warn("lost %s (%s); trying again", c.URL, output.Printable(client.Message(err)))
		case err == nil && isAway:
			isAway = false
			c.Warn("%s is back", c.URL)
		}
		if err == nil {
			if err := show(answer); err != nil {
				return err
			}
		}
		if !HasReader(c.OutOrStdout()) || !Pause(c.Context(), lookEvery) {
			return nil
		}
	}
}

// mayPass reports whether another look may succeed.
func mayPass(err error) bool {
	if !connect.IsWireError(err) {
		return true
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeAborted, connect.CodeResourceExhausted, connect.CodeDeadlineExceeded,
		connect.CodeCanceled, connect.CodeInternal, connect.CodeUnknown:
		return true
	}
	return false
}

// Changes says what has changed from one look at a list to the next.
type Changes[M any] struct {
	Key  func(M) string                 // of an item, for as long as it is in the list
	Same func(a, b M) bool              // whether b shows nothing that a does not
	Put  func(M) error                  // an item is new, or has changed
	Gone func(key string, last M) error // one is not in the list any more

	known map[string]M
}

// Take takes the items of a look.
func (c *Changes[M]) Take(items []M) error {
	before := c.known
	c.known = make(map[string]M, len(items))
	for _, m := range items {
		key := c.Key(m)
		c.known[key] = m
		if was, isKnown := before[key]; isKnown && c.Same(was, m) {
			continue
		}
		if err := c.Put(m); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, isThere := c.known[key]; isThere {
			continue
		}
		if err := c.Gone(key, before[key]); err != nil {
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
