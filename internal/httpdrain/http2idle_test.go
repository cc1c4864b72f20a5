package httpdrain

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// IdleTimeout ends a connection in the same two steps, that long after the end of its
// last request.
func TestIdleTimeoutServesWhatIsOnItsWay(t *testing.T) {
	work := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(150 * time.Second)
		hello(w, r)
	}
	inTime(t, Config{}, func(srv *http.Server) {
		srv.IdleTimeout = time.Minute
		srv.Handler = http.HandlerFunc(work)
	}, func(t *testing.T, _ *Server, connect func() *h2client) {
		c := connect()
		began := time.Now()
		c.get(1)
		c.response(1)
		c.told()
		if d := time.Since(began); d != 210*time.Second {
			t.Errorf("idle after %v", d)
		}
		c.get(3) // on its way
		c.gone(3, 3)
	})
}

// A connection that never had a request is idle too.
func TestIdleTimeoutOfAnUnusedConnection(t *testing.T) {
	inTime(t, Config{}, func(srv *http.Server) { srv.ReadTimeout = time.Minute }, func(t *testing.T, _ *Server, connect func() *h2client) {
		c := connect()
		began := time.Now()
		c.told()
		c.gone(0)
		if d := time.Since(began); d != time.Minute+time.Second {
			t.Errorf("gone after %v", d)
		}
	})
}

// A client that leaves a frame unfinished keeps neither an idle connection open nor the
// stop waiting. A request that it has made is served first.
func TestUnfinishedFrame(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Minute)
		hello(w, r)
	}
	prepare := func(srv *http.Server) {
		srv.IdleTimeout = time.Hour
		srv.Handler = http.HandlerFunc(slow)
	}
	unfinished := frame(framePing, 0, 0, goodbyePing)[:12]
	inTime(t, Config{}, prepare, func(t *testing.T, s *Server, connect func() *h2client) {
		c := connect()
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Hour))
		c.get(1)
		c.response(1)
		began := time.Now()
		c.send(unfinished)
		c.told()
		c.gone(1)
		if d := time.Since(began); d != time.Hour+goAwayWait {
			t.Errorf("idle: gone after %v", d)
		}

		idle, busy := connect(), connect()
		busy.get(1)
		synctest.Wait()
		began = time.Now()
		for _, c := range []*h2client{idle, busy} {
			_ = c.SetReadDeadline(time.Now().Add(time.Hour))
			c.send(unfinished)
		}
		down := make(chan error, 1)
		go func() { _, err := s.Shutdown(context.Background()); down <- err }()
		idle.told()
		idle.gone(0)
		if d := time.Since(began); d > 5*goAwayWait {
			t.Errorf("stop: gone after %v", d)
		}
		busy.firstStep()
		busy.response(1)
		for ok := true; ok; { // net/http may say goodbye by itself
			_, ok = busy.next()
		}
		if d := time.Since(began); d != time.Minute+goAwayWait {
			t.Errorf("stop with a request: gone after %v", d)
		}
		if err := <-down; err != nil {
			t.Error(err)
		}
	})
}
