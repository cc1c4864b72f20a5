//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience bounds the waits of a test. It measures nothing:
// a machine may be busy.
const patience = time.Minute

// asChild makes the test binary act as the service, so that the tests run the
// real main in its own process, with the race detector.
const asChild = "TEST_IS_THE_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(asChild) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// child is the service, running.
type child struct {
	cmd    *exec.Cmd
	exited chan struct{}

	mu      sync.Mutex // guards the fields below
	output  strings.Builder
	changed chan struct{} // closed and replaced with every line
}

// start runs the service on free ports, and kills it when the test ends before
// the service.
func start(t *testing.T, env []string, args ...string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0], append(freePorts, args...)...)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "SERVICE_") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	cmd.Env = append(append(cmd.Env, asChild+"=1", "GORACE=exitcode=66"), env...)
	return startCommand(t, cmd)
}

// freePorts are arguments for free ports; the log has the addresses.
var freePorts = []string{"-log=json", "-addr=127.0.0.1:0", "-lifecycle.health-addr=127.0.0.1:0"}

// startCommand runs a command that is the service, or passes on its output,
// its signals and its exit status.
func startCommand(t *testing.T, cmd *exec.Cmd) *child {
	t.Helper()
	c := &child{cmd: cmd, exited: make(chan struct{}), changed: make(chan struct{})}
	stderr, err := c.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.exited)
		c.read(stderr)
		_ = c.cmd.Wait() // the tests check ProcessState
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill() // does nothing when the process has ended
		<-c.exited
		if t.Failed() {
			t.Logf("the service wrote:\n%s", c.log())
		}
	})
	return c
}

func (c *child) read(stderr io.Reader) {
	lines := bufio.NewReader(stderr)
	for {
		line, err := lines.ReadString('\n')
		c.mu.Lock()
		c.output.WriteString(line)
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *child) log() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.output.String()
}

// await returns the first line of the log with this message, now or later.
func (c *child) await(t *testing.T, msg string) map[string]any {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		c.mu.Lock()
		output, changed := c.output.String(), c.changed
		c.mu.Unlock()
		for line := range strings.Lines(output) {
			var fields map[string]any
			if json.Unmarshal([]byte(line), &fields) == nil && fields["msg"] == msg {
				return fields
			}
		}
		select {
		case <-changed:
		case <-c.exited:
			if c.log() == output {
				t.Fatalf("the service ended (%v) without saying %q", c.cmd.ProcessState, msg)
			}
		case <-deadline.C:
			t.Fatalf("the service does not say %q", msg)
		}
	}
}

// addresses returns the URLs of the service and of its planes, once it runs.
func (c *child) addresses(t *testing.T) (service, health string) {
	t.Helper()
	c.await(t, "running")
	addr := func(msg string) string {
		s, ok := c.await(t, msg)["addr"].(string)
		if !ok {
			t.Fatalf("%q has no addr", msg)
		}
		return "http://" + s
	}
	return addr("listening"), addr("health planes are served")
}

func (c *child) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// exit waits for the end of the process and returns its status.
func (c *child) exit(t *testing.T) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case <-c.exited:
	case <-ctx.Done():
		t.Fatal("the service does not end")
	}
	return c.cmd.ProcessState.ExitCode()
}
