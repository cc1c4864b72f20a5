//go:build unix

package lifecycle

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for something that must happen. It measures
// nothing: a test that needs all of it has failed.
const patience = time.Minute

// configEnv carries the Config of a scenario, as JSON.
const configEnv = "LIFECYCLE_TEST_CONFIG"

// process is a scenario that runs as a process of its own.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	out *lines // stdout and stderr

	once   sync.Once
	status syscall.WaitStatus
}

// launch starts a scenario. The environment is the test's own, without the
// variables that affect an App; change may add to it.
func launch(t *testing.T, scenario string, cfg Config, change ...func(*exec.Cmd)) *process {
	t.Helper()
	p, err := tryLaunch(t, scenario, cfg, change...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func tryLaunch(t *testing.T, scenario string, cfg Config, change ...func(*exec.Cmd)) (*process, error) {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "svc"
	}
	if cfg.HealthAddr == "" {
		cfg.HealthAddr = HealthOff
	}
	if cfg.TerminationLog == "" {
		cfg.TerminationLog = "off"
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, out: newLines()}
	p.cmd = exec.Command(os.Args[0])
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "KUBERNETES_") && !strings.HasPrefix(v, "NOTIFY_SOCKET=") {
			p.cmd.Env = append(p.cmd.Env, v)
		}
	}
	// Otherwise the race detector makes every process wait a second at its end.
	p.cmd.Env = append(p.cmd.Env, "GORACE=atexit_sleep_ms=0", scenarioEnv+"="+scenario, configEnv+"="+string(text))
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // without the test's terminal
	p.cmd.WaitDelay = patience
	for _, c := range change {
		c(p.cmd)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start scenario %s: %w", scenario, err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		p.wait()
		if t.Failed() {
			t.Logf("scenario %s, status %v:\n%s", scenario, p.describe(), p.out)
		}
	})
	return p, nil
}

// env adds a variable to the environment of a scenario.
func env(key, value string) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, key+"="+value) }
}

// await waits until the process has written text.
func (p *process) await(text string) {
	p.t.Helper()
	if !p.out.await(text) {
		p.t.Fatalf("the process did not say %q", text)
	}
}

// says checks that the process writes these texts. Its log and its output arrive
// in no fixed order, so says waits for a text that is missing.
func (p *process) says(texts ...string) {
	p.t.Helper()
	for _, text := range texts {
		if !p.out.await(text) {
			p.t.Errorf("the process did not say %q", text)
		}
	}
}

// saysNot checks that the process has not written these texts.
func (p *process) saysNot(text string) {
	p.t.Helper()
	if strings.Contains(p.out.String(), text) {
		p.t.Errorf("the process said %q", text)
	}
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(p.cmd.Process.Pid, sig); err != nil {
		p.t.Fatalf("send %v: %v", sig, err)
	}
}

// wait waits until the process has ended.
func (p *process) wait() syscall.WaitStatus {
	p.once.Do(func() {
		late := time.AfterFunc(patience, func() {
			p.t.Error("the process does not end")
			_ = p.cmd.Process.Signal(syscall.SIGQUIT) // for the stacks
			_ = p.cmd.Process.Kill()
		})
		_ = p.cmd.Wait()
		late.Stop()
		p.status = p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		p.out.end()
	})
	return p.status
}

func (p *process) wantExit(code int) {
	p.t.Helper()
	if s := p.wait(); !s.Exited() || s.ExitStatus() != code {
		p.t.Errorf("the process ended with %s, want exit status %d", p.describe(), code)
	}
}

func (p *process) wantKilledBy(sig syscall.Signal) {
	p.t.Helper()
	if s := p.wait(); !s.Signaled() || s.Signal() != sig {
		p.t.Errorf("the process ended with %s, want it killed by %v", p.describe(), sig)
	}
}

func (p *process) describe() string {
	s := p.wait()
	if s.Signaled() {
		return "signal " + s.Signal().String()
	}
	return fmt.Sprintf("exit status %d", s.ExitStatus())
}

// lines collects the lines that a process writes.
type lines struct {
	mu    sync.Mutex // guards the fields below
	news  *sync.Cond
	text  bytes.Buffer
	ended bool
}

func newLines() *lines {
	l := &lines{}
	l.news = sync.NewCond(&l.mu)
	return l
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.news.Broadcast()
	return l.text.Write(p)
}

// end records that the process writes nothing more.
func (l *lines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.news.Broadcast()
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) await(text string) bool {
	late := time.AfterFunc(patience, l.end)
	defer late.Stop()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !bytes.Contains(l.text.Bytes(), []byte(text)) {
		if l.ended {
			return false
		}
		l.news.Wait()
	}
	return true
}

// eventually waits until cond holds. It polls, for conditions without a signal.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for late := time.Now().Add(patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("%s: it does not happen", what)
		}
	}
}
