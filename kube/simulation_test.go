package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// A hundred processes that want one lease come and go for minutes, in virtual time, over a network that delays and loses
// messages and splits. Each run has a number, from which all delays, losses and splits follow: SIMULATION=NUMBER repeats
// one. A run that fails prints what happened last.
func TestAHundredProcesses(t *testing.T) {
	numbers := []uint64{1, rand.Uint64()}
	if n, err := strconv.ParseUint(os.Getenv("SIMULATION"), 10, 64); err == nil {
		numbers = []uint64{n}
	}
	for _, n := range numbers {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &simulation{t: t, number: n, began: time.Now(), store: newFake()}
				s.run(100, 3*time.Minute)
			})
		})
	}
}

// simulation is one run.
type simulation struct {
	t      *testing.T
	number uint64
	began  time.Time
	store  *fakeAPI

	mu     sync.Mutex // guards what follows
	trace  []string
	failed bool
	cut    map[int]bool // processes that the store does not hear
	holder int          // the latest one
	until  time.Time    // when its trust ends
	leads  int          // processes whose function runs
	terms  int
	stops  int
}

// note adds a line to the trace. The caller holds mu.
func (s *simulation) note(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf("%9.3fs  ", time.Since(s.began).Seconds())+fmt.Sprintf(format, args...))
}

// fail reports the first thing that is wrong, with what came before it. The caller holds mu.
func (s *simulation) fail(format string, args ...any) {
	s.note("WRONG: "+format, args...)
	if !s.failed {
		s.failed = true
		s.t.Errorf("SIMULATION=%d repeats this:\n%s", s.number, strings.Join(s.trace[max(0, len(s.trace)-40):], "\n"))
	}
}

func (s *simulation) run(processes int, length time.Duration) {
	end := s.began.Add(length)
	var all sync.WaitGroup
	for me := range processes {
		random := rand.New(rand.NewPCG(s.number, uint64(me)))
		c, _ := s.store.client(s.t)
		c.http.Transport = &link{s, me, random, c.http.Transport.(*http.Transport)}
		all.Go(func() {
			for time.Now().Before(end) {
				time.Sleep(within(random, 20*time.Second))
				s.live(me, c, random)
			}
		})
	}
	random := rand.New(rand.NewPCG(s.number, uint64(processes)))
	for time.Now().Before(end) {
		time.Sleep(within(random, 20*time.Second))
		s.mu.Lock()
		s.cut = map[int]bool{}
		for me := range processes {
			s.cut[me] = random.IntN(2) == 0
		}
		s.cut[s.holder] = true
		s.note("the network splits, with process %d on the other side", s.holder)
		s.mu.Unlock()
		time.Sleep(within(random, 30*time.Second))
		s.mu.Lock()
		s.cut = nil
		s.note("the network is whole")
		s.mu.Unlock()
	}
	all.Wait()
	time.Sleep(time.Minute) // what was abandoned returns
	s.t.Logf("run %d: %d terms, %d stops", s.number, s.terms, s.stops)
	if s.terms < 3 || s.stops < processes {
		s.t.Errorf("%d terms and %d stops prove little", s.terms, s.stops)
	}
}

func within(random *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(1 + random.Int64N(int64(most)))
}

// live is one life of a process: an App that leads when it has the lease. What it is made of may take longer than its stop.
func (s *simulation) live(me int, c *Client, random *rand.Rand) {
	const window, grace, margin = 3 * time.Second, 6 * time.Second, 2 * time.Second
	app, err := lifecycle.New(lifecycle.Config{
		Name: "app", DrainInterval: window, ShutdownGrace: grace, HealthAddr: lifecycle.HealthOff, TerminationLog: "off",
	}, lifecycle.WithSignals(nil), lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		s.t.Error(err)
		return
	}
	l := newLease(s.t, c)
	slowly, lives := within(random, 12*time.Second), within(random, time.Minute)
	app.OnDrain("drainer", lifecycle.DrainFunc(func(context.Context) error { time.Sleep(slowly); return nil }))
	app.OnShutdown("hook", func(context.Context) error { time.Sleep(slowly / 2); return nil })
	app.Lead("work", &trusted{l, s, me}, func(ctx context.Context) error {
		s.mu.Lock()
		s.terms++
		if s.leads++; s.leads > 1 {
			s.fail("process %d leads beside another one", me)
		}
		s.mu.Unlock()
		<-ctx.Done()
		time.Sleep(slowly / 12)
		s.mu.Lock()
		s.leads--
		s.note("process %d leads no more", me)
		s.mu.Unlock()
		return nil
	})
	var asked time.Time
	time.AfterFunc(lives, func() { asked = time.Now(); app.Stop(nil) })
	_ = app.Run(s.t.Context()) // a part that is abandoned is an error
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stops++
	s.note("process %d has stopped", me)
	if took := time.Since(asked); took > window+grace+margin {
		s.fail("process %d took %v to stop, want %v at most", me, took, window+grace+margin)
	}
}

// trusted is a lease that knows until when any process trusts in it.
type trusted struct {
	*Lease
	s  *simulation
	me int
}

func (l *trusted) Acquire(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	granted, err := l.Lease.Acquire(ctx)
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if until := began.Add(granted); granted > 0 && time.Now().Before(until) {
		if s.holder != l.me && time.Now().Before(s.until) {
			s.fail("process %d is granted the lease, in which process %d trusts for %v", l.me, s.holder, time.Until(s.until))
		}
		if s.holder != l.me {
			s.note("process %d is granted the lease", l.me)
		}
		s.holder, s.until = l.me, until
	}
	return granted, err
}

// Release is called when the function of the process has returned.
func (l *trusted) Release(ctx context.Context) error {
	l.s.mu.Lock()
	if l.s.holder == l.me {
		l.s.until = time.Time{}
		l.s.note("process %d releases the lease", l.me)
	}
	l.s.mu.Unlock()
	return l.Lease.Release(ctx)
}

// link is the network between a process and the store.
type link struct {
	s      *simulation
	me     int
	random *rand.Rand // only one request of a process is on its way
	*http.Transport
}

var errLost = errors.New("lost on the network")

func (l *link) RoundTrip(r *http.Request) (*http.Response, error) {
	carries := func() bool {
		time.Sleep(within(l.random, 200*time.Millisecond))
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		return !l.s.cut[l.me] && l.random.IntN(20) > 0
	}
	lost := func() (*http.Response, error) { <-r.Context().Done(); return nil, errLost }
	if !carries() {
		return lost()
	}
	resp, err := l.Transport.RoundTrip(r)
	if err == nil && !carries() {
		_ = resp.Body.Close()
		return lost()
	}
	return resp, err
}
