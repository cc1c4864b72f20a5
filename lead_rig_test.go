package lifecycle_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

const ttl = 15 * time.Second

// leaseRow is the row that the processes share: the holder of the lease, and its
// end.
type leaseRow struct {
	mu     sync.Mutex
	holder string
	until  time.Time
}

// candidate is one process's access to the row.
type candidate struct {
	row *leaseRow
	id  string

	mu      sync.Mutex // guards the fields below
	acquire acquireFunc
	hang    chan struct{} // if not nil, Release waits for it, even when its context has ended
	asked   int
	freed   int
}

// acquireFunc stands between the App and the row, and decides whether to ask the
// row.
type acquireFunc = func(ctx context.Context, ask func() (time.Duration, error)) (time.Duration, error)

func (c *candidate) Acquire(ctx context.Context) (time.Duration, error) {
	c.mu.Lock()
	c.asked++
	wrong := c.acquire
	c.mu.Unlock()
	ask := func() (time.Duration, error) {
		c.row.mu.Lock()
		defer c.row.mu.Unlock()
		now := time.Now()
		if c.row.holder != c.id && now.Before(c.row.until) {
			return 0, nil
		}
		c.row.holder, c.row.until = c.id, now.Add(ttl)
		return ttl, nil
	}
	if wrong != nil {
		return wrong(ctx, ask)
	}
	return ask()
}

func (c *candidate) Release(context.Context) error {
	if c.hang != nil {
		<-c.hang
	}
	c.row.mu.Lock()
	defer c.row.mu.Unlock()
	if c.row.holder == c.id {
		c.row.holder, c.row.until = "", time.Time{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freed++
	return nil
}

func (c *candidate) goWrong(how acquireFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acquire = how
}

func (c *candidate) counts() (asked, freed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked, c.freed
}

// stage checks that at most one process leads at a time.
type stage struct {
	t     *testing.T
	row   *leaseRow
	began time.Time

	mu    sync.Mutex
	on    string
	trail []string
}

// play runs until its context ends, and then takes some time to return.
func (s *stage) play(id string, leave time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		s.mu.Lock()
		if s.on != "" {
			s.t.Errorf("%s leads while %s still leads", id, s.on)
		}
		s.on = id
		s.note("%s leads", id)
		s.mu.Unlock()
		<-ctx.Done()
		time.Sleep(leave)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.row.mu.Lock()
		defer s.row.mu.Unlock()
		if s.row.holder != id || time.Now().After(s.row.until) {
			s.t.Errorf("%s returns at %v, after its lease ran out", id, time.Since(s.began))
		}
		s.on = ""
		s.note("%s is cancelled: %v", id, context.Cause(ctx))
		return ctx.Err()
	}
}

func (s *stage) note(format string, args ...any) {
	s.trail = append(s.trail, fmt.Sprintf("%v ", time.Since(s.began).Round(time.Second))+fmt.Sprintf(format, args...))
}

func (s *stage) want(trail ...string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.trail, trail) {
		s.t.Errorf("happened:\n\t%s\nwant:\n\t%s", strings.Join(s.trail, "\n\t"), strings.Join(trail, "\n\t"))
	}
}

func newStage(t *testing.T) *stage { return &stage{t: t, row: &leaseRow{}, began: time.Now()} }

func leaderConfig() lifecycle.Config {
	return lifecycle.Config{DrainWait: lifecycle.WaitAlways, LeaderRetry: 2 * time.Second}
}
