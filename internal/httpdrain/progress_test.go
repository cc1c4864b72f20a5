package httpdrain

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A server for which requests wait has a time of its last sign of progress: it finished a request,
// sent something, or read of a body. Streams wait for no answer, and a few requests may wait on
// purpose.
func TestProgress(t *testing.T) {
	release, arrived := make(chan struct{}), make(chan struct{}, 16)
	hangs := func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/send":
			_, _ = io.WriteString(w, "begin")
			_ = http.NewResponseController(w).Flush()
		case "/read":
			_, _ = io.Copy(io.Discard, r.Body)
		case "/stream":
			Stream(r.Context())
		case "/answer":
			return
		}
		arrived <- struct{}{}
		<-release
	}
	for name, proto := range map[string]string{"HTTP/1.1": "http", "HTTP/2": "http", "HTTP/2 over TLS": "https"} {
		t.Run(name, func(t *testing.T) {
			rig := siege{proto: proto, prepare: func(srv *http.Server) { srv.Handler = http.HandlerFunc(hangs) }}
			srv, transport := rig.server(t)
			if name == "HTTP/1.1" {
				srv, transport = &http.Server{Handler: http.HandlerFunc(hangs)}, new(http.Transport)
			}
			s := start(t, srv, Config{})
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			ctx, stop := context.WithCancel(t.Context())
			var clients sync.WaitGroup
			ask := func(path string) {
				size := 1
				if path == "/read" {
					size = 64 << 10 // it does not come with the header
				}
				clients.Go(func() {
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, proto+"://"+s.Addr().String()+path, strings.NewReader(strings.Repeat("x", size)))
					if err != nil {
						t.Error(err)
						return
					}
					if resp, err := client.Do(req); err == nil {
						_, _ = io.Copy(io.Discard, resp.Body)
						resp.Body.Close()
					}
				})
				if path != "/answer" {
					<-arrived
				}
			}
			for range 2 {
				ask("/hang")
			}
			ask("/stream")
			if st := s.Stats(); st.InFlight != 3 || !st.Progress.IsZero() {
				t.Errorf("of two requests and a stream: %+v", st)
			}
			ask("/hang")
			if st := s.Stats(); st.InFlight != 4 || time.Since(st.Progress) > time.Minute {
				t.Errorf("of three requests and a stream: %+v", st)
			}
			for _, path := range []string{"/send", "/answer", "/read"} {
				s.signs.Begin(s.tracker.since() - int64(time.Hour))
				ask(path)
				for time.Since(s.Stats().Progress) > time.Minute {
					time.Sleep(time.Millisecond)
				}
				if gap := s.Stats().ProgressGap; gap < time.Hour || gap > time.Hour+time.Minute {
					t.Errorf("%s: the longest gap is %v", path, gap)
				}
			}
			for range 4 + 2 {
				release <- struct{}{}
			}
			stop()
			clients.Wait()
			for s.Stats().InFlight > 0 {
				time.Sleep(time.Millisecond)
			}
			if st := s.Stats(); !st.Progress.IsZero() {
				t.Errorf("without a request: %+v", st)
			}
		})
	}
}
