package workflow

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"
)

// clock tells the server's time. What comes due was stored with the server's time,
// and this process's own clock may be wrong, or may be set while it runs.
type clock struct {
	local func() time.Time // with a monotonic reading; replaced by tests

	mu     sync.Mutex // guards the fields below
	server time.Time  // what the server's clock showed
	at     time.Time  // by the local clock; zero before the first look
}

// lookEvery is how old a look at the server's clock may get.
const lookEvery = 5 * time.Second

// now returns the server's time. Without a look at it, that is this process's time.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() {
		return c.local()
	}
	return c.server.Add(c.local().Sub(c.at))
}

// fresh reports whether the last look is not too old.
func (c *clock) fresh(b *bucket) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.at.IsZero() && c.local().Sub(c.at) < b.pace.Of(lookEvery)
}

// look asks the server for its time when the last look is too old.
func (c *clock) look(ctx context.Context, b *bucket) error {
	if c.fresh(b) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	stream, err := b.js.Stream(ctx, b.stream)
	if err != nil {
		return fmt.Errorf("ask the server for its time: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The server's time is from before the answer came, so now never runs ahead of it.
	c.server, c.at = stream.CachedInfo().TimeStamp, c.local()
	return nil
}

// instant returns a time in nanoseconds of Unix time. Those end in the year 2262;
// instant returns the last for all later times, and the first for all earlier ones.
func instant(t time.Time) int64 {
	switch year := t.Year(); {
	case year > 2261:
		return math.MaxInt64
	case year < 1679:
		return math.MinInt64
	}
	return t.UnixNano()
}

// plus adds a duration to an instant.
func plus(ns int64, d time.Duration) int64 {
	if sum := ns + int64(d); d < 0 || sum >= ns {
		return sum
	}
	return math.MaxInt64
}
