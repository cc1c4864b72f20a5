//go:build linux

package run

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// foreign are servers that do not know lifecycle, by what a page calls them: the command, with
// PORT for their port.
var foreign = []struct{ name, command string }{
	{"Node, `http`", "node server.js PORT"},
	{"Node, `cluster` with two workers", "node server.js PORT cluster"},
	{"Python, `http.server`", "/usr/bin/python3 -m http.server --protocol HTTP/1.1 --bind 127.0.0.1 PORT"},
	{"Python, gunicorn with two workers", "gunicorn --workers 2 --threads 16 --worker-class gthread --bind 127.0.0.1:PORT --log-level error app:wsgi"},
	{"Python, uvicorn", "uvicorn --port PORT --log-level error app:asgi"},
	{"Ruby, puma", "puma --bind tcp://127.0.0.1:PORT --threads 16:32 --quiet"},
	{"Java, `HttpServer`", "java Server.java PORT"},
	{"a shell script that starts a server", "/bin/sh script.sh PORT"},
}

// TestForeignPrograms stops servers of other languages under load: behind the proxy they lose
// nothing. RUN_MATRIX=1 prints the table of docs/guides/any-program.md, with what they lose
// alone, and behind lifecycle-run without the proxy.
func TestForeignPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("each program runs for seconds; TestTheProxySaysGoodbye is the short form")
	}
	all := os.Getenv("RUN_MATRIX") != ""
	var table strings.Builder
	for _, f := range foreign {
		program := strings.Fields(f.command)
		if _, err := exec.LookPath(program[0]); err != nil {
			t.Logf("%s is not measured: %v", f.name, err)
			continue
		}
		fmt.Fprintf(&table, "| %s", f.name)
		if all {
			alone, behind := stopUnderLoad(t, program, nil), stopUnderLoad(t, program, []string{"-ready=tcp://HOST"})
			fmt.Fprintf(&table, " | %s | %s", alone, behind)
		}
		tally := stopUnderLoad(t, program, []string{"-proxy=http://HOST", "-addr=FRONT"})
		fmt.Fprintf(&table, " | %s |\n", tally)
		if tally.lost.Load() > 0 || tally.sent.Load() < 100 {
			t.Errorf("%s behind the proxy lost %s: %v", f.name, tally, tally.first.Load())
		}
	}
	if all {
		t.Logf("\n%s", table.String())
	}
}

// tally counts what the clients of a server lost.
type tally struct {
	sent, lost atomic.Int64
	first      atomic.Value
}

func (c *tally) String() string { return fmt.Sprintf("%d of %d", c.lost.Load(), c.sent.Load()) }

func (c *tally) lose(err error) {
	c.lost.Add(1)
	c.first.CompareAndSwap(nil, err.Error())
}

// grace is what a pod has for its stop. It is longer than lifecycle-run takes.
const grace = 30 * time.Second

// stopUnderLoad starts the program, alone without flags, or behind lifecycle-run, sends it
// SIGTERM under load, and returns what the clients lost. Clients on new connections learn of the
// stop a second later, as behind a proxy of a cluster. Clients on kept connections go on until
// they are told to leave.
func stopUnderLoad(t *testing.T, program, flags []string) *tally {
	t.Helper()
	host := freeAddr(t)
	_, port, _ := net.SplitHostPort(host)
	front := host
	for i, flag := range flags {
		if strings.Contains(flag, "FRONT") {
			front = freeAddr(t)
		}
		flags[i] = strings.NewReplacer("HOST", host, "FRONT", front).Replace(flag)
	}
	program = slices.Clone(program)
	for i := range program {
		program[i] = strings.ReplaceAll(program[i], "PORT", port)
	}
	mode, health := "exec", freeAddr(t)
	if flags != nil {
		mode = "run"
		flags = append(flags, "-lifecycle.health-addr="+health, "-lifecycle.drain-interval=5s", "--")
	}
	c := startContained(t, mode, append(flags, program...))
	eventually(t, program[0]+" to answer", func() bool { return status("http://"+front+"/") == 200 })
	if flags != nil { // as the kubelet asks: a pod that was never ready has no window
		eventually(t, "ready", func() bool { return status("http://"+health+"/readyz") == 200 })
	}

	tally := new(tally)
	var clients sync.WaitGroup
	var noticed atomic.Bool
	for range 16 {
		clients.Go(func() { keptClient(front, tally, &noticed) })
	}
	for range 4 {
		clients.Go(func() { freshClient(front, tally, &noticed) })
	}
	time.Sleep(2 * time.Second)
	c.signal(syscall.SIGTERM)
	time.Sleep(time.Second)
	noticed.Store(true)
	select {
	case <-c.done:
	case <-time.After(grace):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
	clients.Wait()
	return tally
}

// startContained starts lifecycle-run, or with the mode exec a program, as process 1 of a
// container: it gets no signal that it has no handler for, and when it ends the container ends.
func startContained(t *testing.T, mode string, args []string) *command {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), "LIFECYCLE_RUN_TESTED="+mode)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	contained(cmd.SysProcAttr)
	if cmd.Dir, err = filepath.Abs("testdata"); err != nil {
		t.Fatal(err)
	}
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Skipf("the kernel gives us no container: %v", err)
	}
	c := &command{t: t, cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-c.done
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("%s:\n%s", cmd, text[:min(len(text), 4000)])
		}
		log.Close()
	})
	return c
}

// ask sends one request on the connection and reads its answer. The client does not look
// whether the server has closed, as the simplest clients.
func ask(method string, conn net.Conn, in *bufio.Reader) (isLast bool, err error) {
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprint(conn, method+" / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"); err != nil {
		return true, err
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return true, err
	}
	if resp.StatusCode != http.StatusOK {
		return true, fmt.Errorf("status %d", resp.StatusCode)
	}
	return resp.Close, nil
}

// keptClient keeps its connection. When the server tells it to go, it comes back unless it has
// noticed the stop. After a loss it goes elsewhere.
func keptClient(addr string, c *tally, noticed *atomic.Bool) {
	for isFirst := true; isFirst || !noticed.Load(); isFirst = false {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			c.sent.Add(1)
			c.lose(err)
			return
		}
		in := bufio.NewReader(conn)
		for isLast := false; !isLast; {
			c.sent.Add(1)
			isLast, err = ask("GET", conn, in)
			time.Sleep(rand.N(100 * time.Millisecond))
		}
		conn.Close()
		if err != nil {
			c.lose(err)
			return
		}
	}
}

// freshClient has a connection for each request.
func freshClient(addr string, c *tally, noticed *atomic.Bool) {
	for !noticed.Load() {
		c.sent.Add(1)
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_, err = ask("GET", conn, bufio.NewReader(conn))
			conn.Close()
		}
		if err != nil {
			c.lose(err)
		}
		time.Sleep(rand.N(40 * time.Millisecond))
	}
}

// What a request costs behind the proxy, beside one without: kept connections, one client.
func BenchmarkProxy(b *testing.B) {
	own := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") }))
	defer own.Close()
	to, err := url.Parse(own.URL)
	if err != nil {
		b.Fatal(err)
	}
	front := httptest.NewServer(newProxy("", to, slog.New(slog.DiscardHandler), newCounted(prometheus.NewRegistry())).Handler)
	defer front.Close()
	for name, srv := range map[string]*httptest.Server{"without": own, "with": front} {
		for _, method := range []string{"GET", "POST"} {
			b.Run(name+"/"+method, func(b *testing.B) {
				conn, err := net.Dial("tcp", srv.Listener.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				defer conn.Close()
				in := bufio.NewReader(conn)
				for b.Loop() {
					if _, err := ask(method, conn, in); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
