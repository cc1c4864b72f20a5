package stop

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	lifecycle "github.com/pleme-io/lifecycle-go"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c" //nolint:staticcheck // deprecated, and what servers have
)

// h2cApp runs a server whose handler hijacks connections to speak HTTP/2, and calls
// work for each request.
func h2cApp(t *testing.T, grace time.Duration, work http.HandlerFunc) (a *lifecycle.App, url string, ended chan error) {
	t.Helper()
	a, err := lifecycle.New(lifecycle.Config{
		HealthAddr: lifecycle.HealthOff, TerminationLog: "off",
		DrainInterval: 200 * time.Millisecond, ShutdownGrace: grace,
	}, lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	a.Serve("http", &http.Server{Addr: "127.0.0.1:0", Handler: h2c.NewHandler(work, new(http2.Server))}) //nolint:staticcheck // deprecated, and what servers have
	ended = make(chan error, 1)
	go func() { ended <- a.Run(context.Background()) }()
	<-a.Reached(lifecycle.PhaseRunning)
	return a, "http://" + a.Addr("http").String() + "/", ended
}

// h2cClients are the two ways in which HTTP/2 without TLS begins: by its preface, and
// by an upgrade of the first request (RFC 7540, section 3.2), which only curl can do.
var h2cClients = map[string]func(t *testing.T, url string) (string, error){
	"preface": func(t *testing.T, url string) (string, error) {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		defer transport.CloseIdleConnections()
		res, err := (&http.Client{Transport: transport}).Get(url)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		return string(body), err
	},
	"upgrade": func(t *testing.T, url string) (string, error) {
		out, err := exec.CommandContext(t.Context(), "curl", "-sS", "--http2", "-w", " HTTP/%{http_version}", url).CombinedOutput()
		return string(out), err
	},
}

// eachH2C runs a test for each of h2cClients. work is called for each request.
func eachH2C(t *testing.T, test func(t *testing.T, get func(url string) (string, error))) {
	for name, get := range h2cClients {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath("curl"); err != nil && name == "upgrade" {
				t.Skip("there is no curl: install it to run this test")
			}
			test(t, func(url string) (string, error) { return get(t, url) })
		})
	}
}

// A request that is in flight at the end of the window on a connection that
// h2c.NewHandler has hijacked gets its response.
func TestH2CHandlerServesWhatIsInFlight(t *testing.T) {
	eachH2C(t, func(t *testing.T, get func(string) (string, error)) {
		entered := make(chan struct{})
		a, url, ended := h2cApp(t, 20*time.Second, func(w http.ResponseWriter, _ *http.Request) {
			close(entered)
			time.Sleep(time.Second) // the window is over by then
			_, _ = io.WriteString(w, "done")
		})
		go func() { <-entered; a.Stop(nil) }()
		text, err := get(url)
		if err != nil || !strings.HasPrefix(text, "done") {
			t.Errorf("%q, %v", text, err)
		}
		if err := <-ended; err != nil || a.Report().CutRequests != 0 {
			t.Errorf("%d requests cut, %v", a.Report().CutRequests, err)
		}
	})
}

// One that does not end in time is cut and counted.
func TestH2CHandlerCountsWhatIsCut(t *testing.T) {
	eachH2C(t, func(t *testing.T, get func(string) (string, error)) {
		entered := make(chan struct{})
		a, url, ended := h2cApp(t, 2*time.Second, func(_ http.ResponseWriter, r *http.Request) {
			close(entered)
			<-r.Context().Done() // the connection is closed
		})
		inFlight := make(chan int64, 1)
		go func() {
			<-entered
			inFlight <- a.Status().Servers[0].InFlight
			a.Stop(nil)
		}()
		if text, err := get(url); err == nil {
			t.Errorf("got %q", text)
		}
		if n := <-inFlight; n != 1 {
			t.Errorf("%d requests in flight, want 1", n)
		}
		err := <-ended
		if err == nil || !strings.Contains(err.Error(), "1 requests cut") || a.Report().CutRequests != 1 {
			t.Errorf("%d requests cut, %v", a.Report().CutRequests, err)
		}
	})
}
