// Package servertime tells the time of a NATS server. What comes due was stored with
// the server's time, and this process's own clock may be wrong, or may be set while it
// runs.
//
// A [Clock] learns the server's time from an answer, and goes on from there by this
// process's monotonic clock. Begin with [Clock.Look] and [Clock.Now]. Timers of packages host
// and workflow go by it.
package servertime

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Clock is a server's clock as this process knows it. The zero value goes by this
// process's clock until the first look. All methods may be called concurrently.
type Clock struct {
	// Local is this process's clock, with a monotonic reading. Defaults to time.Now. It
	// must not change once the clock is in use.
	Local func() time.Time

	mu     sync.Mutex // guards the fields below
	server time.Time  // what the server's clock showed
	at     time.Time  // by the local clock; zero before the first look
}

func (c *Clock) local() time.Time {
	if c.Local == nil {
		return time.Now()
	}
	return c.Local()
}

// Now returns the server's time. Without a look at it, that is this process's time.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() {
		return c.local()
	}
	return c.server.Add(c.local().Sub(c.at))
}

// Look asks the server for its time when the last look is older than age. ask returns
// a time that the server's clock showed between its call and its return. After an error
// the clock goes on as before.
func (c *Clock) Look(ctx context.Context, age time.Duration, ask func(context.Context) (time.Time, error)) error {
	c.mu.Lock()
	isFresh := !c.at.IsZero() && c.local().Sub(c.at) < age
	c.mu.Unlock()
	if isFresh {
		return nil
	}
	server, err := ask(ctx)
	if err != nil {
		return fmt.Errorf("ask the server for its time: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// The server's time is from before the answer came, so Now never runs ahead of it.
	c.server, c.at = server, c.local()
	return nil
}
