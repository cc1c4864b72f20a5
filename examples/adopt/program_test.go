//go:build unix

package adopt

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds the waits of a test. It measures nothing: a machine may be busy.
const patience = 2 * time.Minute

// program is a running program.
type program struct {
	cmd    *exec.Cmd
	ready  string // the URL that answers 200 while it is ready
	client *http.Client
	output output
}

// output is what a program has written.
type output struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// says waits until the program has written a text.
func (p *program) says(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(p.output.String(), text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it does not write %q", text)
		}
	}
}

// start builds the program of a folder, runs it and waits until it is ready.
func start(t *testing.T, folder, ready string, args ...string) *program {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "program")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, folder).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p := &program{
		cmd:    exec.Command(binary, args...),
		ready:  ready,
		client: &http.Client{Timeout: patience, Transport: new(http.Transport)},
	}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		p.client.CloseIdleConnections()
		if t.Failed() {
			t.Logf("it wrote:\n%s", p.output.String())
		}
	})
	for end := time.Now().Add(patience); p.status(t) != http.StatusOK; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is not ready")
		}
	}
	return p
}

// status returns what the program answers while it is ready, 0 when there is no answer.
func (p *program) status(t *testing.T) int {
	t.Helper()
	status, _, err := p.ask(t, p.ready)
	if err != nil {
		return 0
	}
	return status
}

// ask makes a request on a new connection. goodbye says that the server closes it.
func (p *program) ask(t *testing.T, url string) (status int, goodbye bool, err error) {
	t.Helper()
	p.client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := p.client.Do(req)
	if err != nil {
		return 0, false, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, res.Close, err
}

// terminate sends SIGTERM.
func (p *program) terminate(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
}

// stop sends SIGTERM, and returns when the program says that it is not ready.
func (p *program) stop(t *testing.T) {
	t.Helper()
	p.terminate(t)
	for { // the signal is on its way
		switch status := p.status(t); status {
		case http.StatusServiceUnavailable:
			return
		case http.StatusOK:
			time.Sleep(10 * time.Millisecond)
		default:
			t.Fatalf("/readyz answers %d", status)
		}
	}
}

// exit waits for the end, which must be clean.
func (p *program) exit(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("it ends with %v, want the status 0", err)
	}
}

// freeAddr returns an address that was free a moment ago. Its port is none that the
// system gives to clients.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 1000 {
		if ln, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(10_000+rand.N(20_000))); err == nil {
			ln.Close()
			return ln.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}
