package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// curl gets url as a person does at a terminal: without a buffer, and with curl's own
// Accept, which is */*. It returns the body and curl's exit status, which is not 0 when
// the transfer was cut.
func curl(t *testing.T, args ...string) (body string, err error) {
	t.Helper()
	path, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl here")
	}
	out, err := exec.CommandContext(t.Context(), path, append([]string{"-sSN", "--max-time", "60"}, args...)...).CombinedOutput()
	return string(out), err
}

// asks gets url with the given Accept.
func asks(accept string) func(*testing.T, string) (string, error) {
	return func(t *testing.T, url string) (string, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			return "", err
		}
		if accept != "" {
			req.Header.Set("Accept", accept)
		}
		transport := &http.Transport{}
		defer transport.CloseIdleConnections()
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
}

// Clients of event streams rarely say so: curl, fetch and most libraries accept
// anything. The answer's type says it. Each stream here watches its context and
// nothing else, and would hold the stop until its requests are cut.
func TestStreamIsKnownByItsAnswer(t *testing.T) {
	plain := func(w http.ResponseWriter, r *http.Request, endings chan<- error) {
		_, _ = io.WriteString(w, "data: hello\n\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		endings <- context.Cause(r.Context())
	}
	for name, c := range map[string]struct {
		get   func(*testing.T, string) (string, error)
		ctype string
	}{
		"curl": {ctype: "text/event-stream", get: func(t *testing.T, url string) (string, error) { return curl(t, url) }},
		"curl on HTTP/2": {ctype: "text/event-stream", get: func(t *testing.T, url string) (string, error) {
			return curl(t, "--http2-prior-knowledge", url)
		}},
		"no Accept":         {ctype: "text/event-stream", get: asks("")},
		"a list":            {ctype: "text/event-stream; charset=utf-8", get: asks("application/json, text/event-stream")},
		"pictures":          {ctype: "multipart/x-mixed-replace; boundary=frame", get: asks("image/*")},
		"in capitals":       {ctype: "Text/Event-Stream ;charset=UTF-8", get: asks("*/*")},
		"exactly its type":  {ctype: "text/event-stream", get: asks("text/event-stream")},
		"it says it itself": {ctype: "application/x-ndjson", get: asks("*/*")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, small())
			endings := make(chan error, 1)
			srv := &http.Server{Addr: "127.0.0.1:0", Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", c.ctype)
				if name == "it says it itself" {
					lifecycle.Stream(req.Context())
				}
				r.Stop(nil)
				plain(w, req, endings)
			})}
			srv.Protocols.SetHTTP1(true)
			srv.Protocols.SetUnencryptedHTTP2(true)
			r.Serve("http", srv)
			got := make(chan string, 1)
			r.Go("client", func(context.Context) error {
				<-r.Reached(lifecycle.PhaseRunning)
				body, err := c.get(t, "http://"+r.Addr("http").String())
				if err != nil {
					body += err.Error()
				}
				got <- body
				return nil
			})
			if err := r.Run(t.Context()); err != nil {
				t.Error(err)
			}
			if body := <-got; body != "data: hello\n\n" {
				t.Errorf("the client got %q", body)
			}
			if cause := <-endings; !errors.Is(cause, lifecycle.ErrWindowOver) {
				t.Errorf("the stream ended because of %v", cause)
			}
		})
	}
}

// An answer that a handler flushes is not a stream for that: a proxy flushes
// downloads. Nor is a request whose handler looks whether the App drains.
func TestOrdinaryRequestsAreNoStreams(t *testing.T) {
	for name, handler := range map[string]func(http.ResponseWriter, *http.Request){
		"peeks": func(_ http.ResponseWriter, req *http.Request) {
			select {
			case <-lifecycle.Draining(req.Context()):
			default:
			}
		},
		"flushes": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/octet-stream")
			_ = http.NewResponseController(w).Flush()
		},
		"lines of JSON": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/x-ndjson")
			_ = http.NewResponseController(w).Flush()
		},
		"events of one piece of work": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_ = http.NewResponseController(w).Flush()
		},
		"proxy": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := small()
			cfg.Linger = 300 * time.Millisecond // the client keeps its connection
			r := newRig(t, cfg)
			work := func(w http.ResponseWriter, req *http.Request) {
				r.Stop(nil)
				if r.awaitWindowEnd(req.Context()); req.Context().Err() == nil {
					_, _ = io.WriteString(w, "finished")
				} else {
					http.Error(w, context.Cause(req.Context()).Error(), http.StatusInternalServerError)
				}
			}
			var srv *http.Server
			if handler != nil {
				srv = &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					handler(w, req)
					work(w, req)
				})}
			} else {
				up := startPlain(t, func(w http.ResponseWriter, req *http.Request) {
					_ = http.NewResponseController(w).Flush()
					work(w, req)
				})
				proxy := httputil.NewSingleHostReverseProxy(up)
				proxy.FlushInterval = -1
				srv = &http.Server{Addr: "127.0.0.1:0", Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
					// Else net/http closes the body with the first flush, before the proxy has seen its end.
					if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
						t.Error(err)
					}
					proxy.ServeHTTP(w, req)
				})}
			}
			r.Serve("http", srv)
			got := make(chan string, 1)
			r.Go("client", func(context.Context) error {
				<-r.Reached(lifecycle.PhaseRunning)
				resp, err := http.Post("http://"+r.Addr("http").String(), "text/plain", strings.NewReader("work"))
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				body, err := io.ReadAll(resp.Body)
				got <- fmt.Sprint(resp.StatusCode, " ", string(body), err)
				return nil
			})
			if err := r.Run(t.Context()); err != nil {
				t.Error(err)
			}
			if text := <-got; text != "200 finished<nil>" {
				t.Errorf("the client got %q", text)
			}
		})
	}
}

// startPlain serves h without an App.
func startPlain(t *testing.T, h http.HandlerFunc) *url.URL {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
