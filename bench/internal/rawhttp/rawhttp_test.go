package rawhttp

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var get = []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")

func dial(t testing.TB, h http.HandlerFunc) *Conn {
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	nc, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	return New(nc)
}

// Responses of any framing are read to their end, so the next one is found.
func TestResponsesAreReadToTheirEnd(t *testing.T) {
	n := 0
	c := dial(t, func(w http.ResponseWriter, _ *http.Request) {
		n++
		if n == 2 { // too long for net/http to count
			_, _ = w.Write([]byte(strings.Repeat("0123456789abcdef\r\n", 1000)))
			return
		}
		if n == 3 {
			w.Header().Set("Connection", "close")
		}
		_, _ = w.Write([]byte("hello"))
	})
	for i := 1; i <= 3; i++ {
		if err := c.Do(get); err != nil {
			t.Fatalf("response %d: %v", i, err)
		}
		if c.Closes() != (i == 3) {
			t.Errorf("response %d: closes is %v", i, c.Closes())
		}
	}
	if c.Do(get) == nil {
		t.Error("a response came over a connection that is closed")
	}
}

func TestBadResponsesAreErrors(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"status": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) },
		"empty":  func(http.ResponseWriter, *http.Request) {},
		"cut": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("half"))
		},
		"aborted": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			if dial(t, h).Do(get) == nil {
				t.Error("no error")
			}
		})
	}
}
