package lifecycle_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// storm counts what happens to clients that connect without a pause and without a look
// at endpoints, send a request on each connection, and never try again.
type storm struct {
	sent, served, refused, reset atomic.Int64
	first                        atomic.Pointer[error] // of those that count as reset
	wg                           sync.WaitGroup
}

// blow starts n clients that connect to addr until ctx ends.
func (s *storm) blow(ctx context.Context, addr string, n int) {
	for range n {
		s.wg.Go(func() {
			for ctx.Err() == nil {
				s.sent.Add(1)
				switch err := s.once(addr); {
				case err == nil:
					s.served.Add(1)
				case errors.Is(err, syscall.ECONNREFUSED):
					s.refused.Add(1)
					time.Sleep(time.Millisecond)
				default:
					s.reset.Add(1)
					s.first.CompareAndSwap(nil, &err)
				}
			}
		})
	}
}

func (s *storm) once(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Minute)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = exchange(conn, bufio.NewReader(conn), "/")
	return err
}

// With AcceptQuiet off, and with a Linger that ends before the connects do, the listener
// closes in the middle of a storm of them. A connection that was made is served. A later
// one is refused, so that its client can connect to another process.
func TestConnectionsAreRefusedAndNotReset(t *testing.T) {
	for name, quiet := range map[string]time.Duration{"no quiet": lifecycle.Off, "never quiet": 150 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			stopInAStorm(t, quiet)
		})
	}
}

// stopInAStorm stops a server while clients connect.
func stopInAStorm(t *testing.T, quiet time.Duration) {
	t.Helper()
	cfg := small()
	cfg.AcceptQuiet, cfg.Linger = quiet, 4*time.Second
	r := newRig(t, cfg)
	r.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("served"))
	})})
	var s storm
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.Go("clients", func(context.Context) error {
		<-r.Reached(lifecycle.PhaseRunning)
		s.blow(ctx, r.Addr("http").String(), 16)
		for s.served.Load() < 100 && s.reset.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		r.Stop(nil)
		return nil
	})
	if err := r.Run(t.Context()); err != nil {
		t.Error(err)
	}
	for late := time.Now().Add(time.Minute); s.refused.Load() == 0 && time.Now().Before(late); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	s.wg.Wait()
	t.Logf("%d sent, %d served, %d refused, %d reset", s.sent.Load(), s.served.Load(), s.refused.Load(), s.reset.Load())
	if n := s.reset.Load(); n > 0 {
		t.Errorf("%d connections were reset, the first with %v", n, *s.first.Load())
	}
	if s.served.Load() < 100 || s.refused.Load() == 0 {
		t.Error("that proves nothing")
	}
}
