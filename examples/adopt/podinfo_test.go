//go:build unix

package adopt

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// podinfo answers a request that began before SIGTERM and outlives the window, and every
// request of the window, also requests that need Redis. It exits with 0.
func TestPodinfoStops(t *testing.T) {
	if testing.Short() {
		t.Skip("it links and runs the program: make test-long runs it")
	}
	health, port := freeAddr(t), freePort(t)
	store := miniredis.RunT(t)
	p := start(t, "./real/podinfo", "http://"+health+"/readyz", nil,
		"--host=127.0.0.1", "--port="+port, "--health-addr="+health, "--cache-server=tcp://"+store.Addr())
	url := "http://127.0.0.1:" + port
	if status, goodbye, err := p.ask(t, http.MethodPost, url+"/cache/key", "a value"); err != nil || status != http.StatusAccepted || goodbye {
		t.Fatalf("before the stop: status %d, goodbye %v, %v", status, goodbye, err)
	}
	slow := make(chan error, 1)
	go func() {
		client := &http.Client{Transport: new(http.Transport)}
		defer client.CloseIdleConnections()
		res, err := client.Get(url + "/delay/8") // the window is 5 s
		if err == nil {
			err = res.Body.Close()
		}
		if err == nil && res.StatusCode != http.StatusOK {
			err = errors.New(res.Status)
		}
		slow <- err
	}()
	for end := time.Now().Add(patience); !inFlight(t, "http://"+health); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server counts no request")
		}
	}
	p.stop(t)
	goodbyes := 0
	for end := time.Now().Add(during); time.Now().Before(end); {
		status, goodbye, err := p.ask(t, http.MethodGet, url+"/cache/key", "")
		if err != nil || status != http.StatusOK {
			t.Errorf("in the window: status %d, %v", status, err)
		}
		if goodbye {
			goodbyes++
		}
		time.Sleep(apart)
	}
	if goodbyes == 0 {
		t.Error("no answer said goodbye")
	}
	if err := <-slow; err != nil {
		t.Errorf("the request that began before the stop: %v", err)
	}
	p.exit(t)
}

// apart is the pause between requests of the window: longer than the quiet after which a
// server without a window closes its listener.
const apart = 1500 * time.Millisecond

// inFlight reports whether the server counts a request in flight.
func inFlight(t *testing.T, health string) bool {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, health+"/statusz?format=json", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: new(http.Transport)}
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(body), `"inFlight": 1`)
}
