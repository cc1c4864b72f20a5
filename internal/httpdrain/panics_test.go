package httpdrain

import (
	"errors"
	"log"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// A server counts the requests whose handlers panic, and says what the last one said. net/http logs
// each panic with the line where it was, as without the App. A handler that aborts on purpose does
// not count.
func TestPanicsAreCounted(t *testing.T) {
	for name, proto := range map[string]string{"HTTP/1.1": "http", "HTTP/2": "https"} {
		t.Run(name, func(t *testing.T) {
			logged := &syncText{}
			handler := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/boom":
					explode()
				case "/abort":
					panic(http.ErrAbortHandler)
				}
			})
			rig := siege{proto: proto, prepare: func(srv *http.Server) { srv.Handler = handler }}
			srv, transport := rig.server(t)
			srv.ErrorLog = log.New(logged, "", 0)
			if name == "HTTP/1.1" {
				srv, transport = &http.Server{Handler: handler, ErrorLog: srv.ErrorLog}, new(http.Transport)
			}
			s := start(t, srv, Config{})
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			for _, path := range []string{"/fine", "/abort", "/boom", "/boom", "/boom", "/boom"} {
				req, err := http.NewRequestWithContext(soon(t), http.MethodPost, proto+"://"+s.Addr().String()+path, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := client.Do(req)
				if err == nil {
					resp.Body.Close()
				}
				if isWell := err == nil; isWell != (path == "/fine") {
					t.Errorf("%s is answered with %v", path, err)
				}
			}
			eventually(t, "the last request has ended", func() bool { return s.Stats().InFlight == 0 && s.Stats().Panics >= 4 })
			st := s.Stats()
			if ago := time.Since(st.Panicking); st.Panics != 4 || st.LastPanic != "no such order" || ago < 0 || ago > time.Hour {
				t.Errorf("the server says %+v", st)
			}
			eventually(t, "the log has them", func() bool { return strings.Count(logged.String(), "panic serving") == 4 })
			if text := logged.String(); !strings.Contains(text, "no such order") || !strings.Contains(text, "httpdrain.explode(") {
				t.Errorf("the log has no line of the panic:\n%s", text)
			}
		})
	}
}

func explode() { panic(errors.New("no such order")) }

// syncText is a log that goroutines may write and read.
type syncText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncText) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncText) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
