//go:build unix

package run

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"go.uber.org/goleak"
)

// TestMain makes this binary both the command under test and the programs that
// it runs: LIFECYCLE_RUN_TESTED selects one.
// patience bounds waits for things that must happen at some time.
const patience = time.Minute

func TestMain(m *testing.M) {
	switch mode := os.Getenv("LIFECYCLE_RUN_TESTED"); mode {
	case "":
		// A parent that ignores signals, as nohup does, passes that on; one that catches them
		// does not.
		for _, sig := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
			if signal.Ignored(sig) {
				signal.Notify(make(chan os.Signal, 1), sig)
			}
		}
		goleak.VerifyTestMain(m)
	case "exec": // the arguments, as process 1
		path, err := exec.LookPath(os.Args[1])
		if err == nil {
			err = ownProc()
		}
		if err == nil {
			err = syscall.Exec(path, os.Args[1:], os.Environ())
		}
		fmt.Println(err)
		os.Exit(99)
	case "run":
		_ = os.Setenv("LIFECYCLE_RUN_TESTED", "program")
		if os.Getpid() == 1 {
			if err := ownProc(); err != nil {
				fmt.Println("mount /proc:", err)
				os.Exit(99)
			}
		}
		os.Exit(Run(context.Background(), "lifecycle-run", os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	default:
		play(os.Args[1], os.Args[2:])
	}
}

// play is the program that is run, by name.
func play(name string, args []string) {
	switch name {
	case "serve": // an address: answers until SIGTERM, then says so
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		ln, err := net.Listen("tcp", args[0])
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		go func() {
			_ = http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPost {
					fmt.Println("told to drain")
				}
				fmt.Fprintln(w, "hello")
			}))
		}()
		fmt.Println("serving")
		<-stop
		fmt.Println("asked to end")
	case "listen":
		serveInherited()
	case "listen-rude": // as listen, but ends with a failure
		serveInherited()
		os.Exit(3)
	case "deaf": // an address: answers, and knows nothing of SIGTERM
		deafServer(args[0])
	case "shell": // a script
		_ = syscall.Exec("/bin/sh", []string{"sh", "-c", args[0]}, os.Environ())
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("serving")
		select {}
	case "signals": // says what it gets
		got := make(chan os.Signal, 8)
		signal.Notify(got, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGQUIT)
		fmt.Println("listening")
		for sig := range got {
			fmt.Println("got", sig)
			if sig == syscall.SIGQUIT {
				return
			}
		}
	case "flaky": // a folder: fails until it was started three times
		f, err := os.OpenFile(filepath.Join(args[0], "starts"), os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			os.Exit(99)
		}
		_, _ = f.WriteString("x")
		info, _ := f.Stat()
		fmt.Println("start", info.Size())
		if info.Size() < 3 {
			os.Exit(4)
		}
	case "orphan": // leaves an orphaned grandchild
		cmd := exec.Command("/bin/sh", "-c", "sleep 0.2 & exit 0")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		_ = cmd.Run()
		fmt.Println("orphaned")
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	os.Exit(0)
}

// serveInherited serves on the socket that it inherits, and answers with its process id. At SIGTERM
// it ends its requests. While the file of its argument exists it does not start.
func serveInherited() {
	ln, err := net.FileListener(os.NewFile(3, "socket"))
	if _, broken := os.Stat(os.Args[2]); broken == nil {
		fmt.Println("it is broken")
		os.Exit(1)
	}
	if err != nil || os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		fmt.Println("no socket:", err, os.Getenv("LISTEN_PID"))
		os.Exit(1)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, os.Getpid())
	})}
	go func() { _ = srv.Serve(ln) }()
	fmt.Println("serving")
	<-stop
	ln.Close()
	time.Sleep(100 * time.Millisecond) // Shutdown may miss a connection that was just accepted
	_ = srv.Close()
}

// command is a running lifecycle-run.
type command struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}

	mu    sync.Mutex // guards the fields below
	lines []string
	more  chan struct{}
}

func itoa(n int) string { return strconv.Itoa(n) }

// start runs the command with the flags and the program of that name.
func start(t *testing.T, stdin io.Reader, flags []string, program ...string) *command {
	t.Helper()
	return startWith(t, stdin, func(*syscall.SysProcAttr) {}, flags, program...)
}

// startWith is start in a process with other attributes. When the kernel does not
// allow it the test is skipped.
func startWith(t *testing.T, stdin io.Reader, shape func(*syscall.SysProcAttr), flags []string, program ...string) *command {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append(flags, "--", self)
	c := &command{t: t, cmd: exec.Command(self, append(args, program...)...), done: make(chan struct{}), more: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), "LIFECYCLE_RUN_TESTED=run")
	c.cmd.Stdin = stdin
	c.cmd.SysProcAttr = &syscall.SysProcAttr{}
	shape(c.cmd.SysProcAttr)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd.Stdout, c.cmd.Stderr = w, w
	if err := c.cmd.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.ENOSPC) {
			t.Skipf("the kernel gives us no such process: %v", err)
		}
		t.Fatal(err)
	}
	w.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		for in := bufio.NewScanner(r); in.Scan(); {
			c.mu.Lock()
			c.lines = append(c.lines, in.Text())
			close(c.more)
			c.more = make(chan struct{})
			c.mu.Unlock()
		}
	}()
	go func() {
		defer close(c.done)
		_ = c.cmd.Wait()
		<-read
		r.Close()
	}()
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.done
		if t.Failed() {
			t.Logf("output:\n%s", c.output())
		}
	})
	return c
}

func (c *command) output() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.lines, "\n")
}

// await waits for a line that holds text and returns it.
func (c *command) await(text string) string {
	c.t.Helper()
	late := time.After(patience)
	for next := 0; ; {
		c.mu.Lock()
		for ; next < len(c.lines); next++ {
			if line := c.lines[next]; strings.Contains(line, text) {
				c.mu.Unlock()
				return line
			}
		}
		more := c.more
		c.mu.Unlock()
		select {
		case <-more:
		case <-late:
			c.t.Fatalf("never said: %s", text)
		}
	}
}

func (c *command) signal(sig syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(sig); err != nil {
		c.t.Fatal(err)
	}
}

func (c *command) wantExit(codes ...int) {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(patience):
		c.t.Fatal("does not end")
	}
	if got := c.cmd.ProcessState.ExitCode(); !slices.Contains(codes, got) {
		c.t.Errorf("exit status %d (%v), want %d", got, c.cmd.ProcessState, codes)
	}
}

// address finds the health address in the log.
func (c *command) address() string {
	c.t.Helper()
	_, addr, _ := strings.Cut(c.await("health planes are served"), "addr=")
	return addr
}

// freeAddr returns an address on which no process listens.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 100 {
		// Below the range from which the system gives ports to others.
		ln, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(10_000+rand.N(20_000)))
		if err == nil {
			defer ln.Close()
			return ln.Addr().String()
		}
	}
	t.Fatal("no port is free")
	return ""
}

func status(url string) int {
	code, _ := get(url)
	return code
}

// get returns the status and the body of an answer, or 0 without one.
func get(url string) (code int, body string) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Get(url)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// The exit status is the program's, as a shell would show it. When the program cannot
// be run it is the shells' status.
func TestExitStatus(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("\x00\x01"), 0o700); err != nil {
		t.Fatal(err)
	}
	off := "-lifecycle.health-addr=off"
	for _, test := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"good", []string{off, "--", "/bin/sh", "-c", "exit 0"}, 0, ""},
		{"its own", []string{off, "--", "/bin/sh", "-c", "exit 7"}, 7, ": exit status 7; its own output says why"},
		{"a signal", []string{off, "--", "/bin/sh", "-c", "kill -9 $$"}, 137, "signal: killed"},
		{"without dashes", []string{off, "/bin/sh", "-c", "exit 3"}, 3, ""},
		{"no such program", []string{"--", "no-such-program"}, 127, `"no-such-program": executable file not found`},
		{"no such file", []string{"--", "/no/such/file"}, 127, "no such file"},
		{"not executable", []string{"--", file}, 126, "permission denied"},
		{"no format", []string{off, "--", script}, 126, "exec format error"},
		{"no program", []string{off}, 2, "no program is given"},
		{"no dashes", []string{"--proxy", "http://127.0.0.1:8000", "true"}, 78, `there is no -- before the program, so it begins at "http://127.0.0.1:8000"`},
		{"an unknown flag", []string{"-redy=x", "--", "true"}, 78, "did you mean -ready?"},
		{"a bad check", []string{"-ready=8080", "--", "true"}, 78, `ready: "8080" is not a check: want http://`},
		{"a bad policy", []string{"-restart=sometimes", "--", "true"}, 78, `"sometimes" is not always, on-failure or never`},
		{"a bad signal", []string{"-stop-signal=BANG", "--", "true"}, 78, `"BANG" is not a signal: want HUP, INT,`},
		{"a signal that is ours", []string{"-forward=TERM", "--", "true"}, 78, "it cannot be passed on"},
		{"an impossible budget", []string{"-lifecycle.shutdown-grace=1s", "-lifecycle.unit-slice=5s", "--", "true"}, 78, "unit_slice"},
		{"help", []string{"-h"}, 0, "usage: lifecycle-run"},
		{"the flags that most need", []string{"--help"}, 0, "--ready CHECKS"},
		{"all flags", []string{"--help-all"}, 0, "-lifecycle.accept-max"},
	} {
		t.Run(test.name, func(t *testing.T) {
			out, err := os.CreateTemp(t.TempDir(), "out")
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			code := Run(t.Context(), "lifecycle-run", test.args, nil, out, out)
			said, err := os.ReadFile(out.Name())
			if err != nil {
				t.Fatal(err)
			}
			if code != test.code || !strings.Contains(string(said), test.says) {
				t.Errorf("exit status %d, want %d\n%s\nwant: %s", code, test.code, said, test.says)
			}
		})
	}
}

// At SIGTERM readiness goes down and the program goes on serving. It is asked
// to end after the window.
func TestDrainComesBeforeTheStop(t *testing.T) {
	addr := freeAddr(t)
	c := start(t, nil, []string{"-lifecycle.health-addr=127.0.0.1:0", "-lifecycle.drain-interval=10s",
		"-ready=http://" + addr + "/", "-live=tcp://" + addr, "-on-drain=http://" + addr + "/drain"}, "serve", addr)
	health := "http://" + c.address()
	c.await("serving")
	eventually(t, "ready", func() bool { return status(health+"/readyz") == 200 })
	if got := status(health + "/livez"); got != 200 {
		t.Errorf("/livez: %d", got)
	}
	sent := time.Now()
	c.signal(syscall.SIGTERM)
	c.await("told to drain")
	if got := status(health + "/readyz"); got != 503 {
		t.Errorf("/readyz in the drain: %d, want 503", got)
	}
	if got := status("http://" + addr + "/"); got != 200 {
		t.Errorf("the program in the drain: %d, want 200", got)
	}
	if strings.Contains(c.output(), "asked to end") {
		t.Error("it was asked to end in the window")
	}
	c.await("asked to end")
	if after := time.Since(sent); after < 10*time.Second {
		t.Errorf("it was asked to end after %v, before the window was over", after)
	}
	c.wantExit(0)
}

// A scrape of the health address sees the program as a unit, so the alerts of a service
// cover the wrapped program too.
func TestMetricsAreServed(t *testing.T) {
	c := start(t, nil, []string{"-lifecycle.health-addr=127.0.0.1:0", "-lifecycle.drain-interval=off", "-lifecycle.name=wrapped"}, "stubborn")
	url := "http://" + c.address() + "/metrics"
	c.await("msg=running")
	code, body := get(url)
	if code != 200 || !strings.Contains(body, `lifecycle_unit_status{status="Running",unit="instances"} 1`) {
		t.Errorf("/metrics: %d\n%s", code, body)
	}
}

// With log_format json each line of the log is an object, and the program's output is as it was.
func TestLogIsJSON(t *testing.T) {
	c := start(t, nil, []string{"-lifecycle.health-addr=off", "-lifecycle.drain-interval=off", "-log-format=json", "-lifecycle.shutdown-grace=8s"}, "signals")
	c.await("listening")
	c.await(`"msg":"running"`)
	c.signal(syscall.SIGTERM)
	c.wantExit(143)
	for line := range strings.SplitSeq(c.output(), "\n") {
		var entry struct{ Time, Level, Msg string }
		isObject := json.Unmarshal([]byte(line), &entry) == nil && entry.Time != "" && entry.Level != "" && entry.Msg != ""
		if line != "listening" && !isObject {
			t.Errorf("this line is no entry: %s", line)
		}
	}
	var out bytes.Buffer
	if code := Run(t.Context(), "lifecycle-run", []string{"-log-format=xml", "--", "true"}, nil, &out, &out); code != lifecycle.ExitConfig ||
		!strings.Contains(out.String(), `log_format: "xml" is not text or json`) {
		t.Errorf("exit status %d, %s", code, out.String())
	}
}

// A program is not ready before it listens and after it has stopped listening.
func TestReadinessIsTheProgramsOwn(t *testing.T) {
	addr := freeAddr(t)
	c := start(t, nil, []string{"-lifecycle.health-addr=127.0.0.1:0", "-lifecycle.drain-interval=off", "-ready=tcp://" + addr}, "stubborn")
	health := "http://" + c.address()
	c.await("serving")
	if got := status(health + "/readyz"); got != 503 {
		t.Errorf("/readyz while the program does not listen: %d, want 503", got)
	}
	if got := status(health + "/livez"); got != 200 {
		t.Errorf("/livez: %d", got)
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	eventually(t, "ready", func() bool { return status(health+"/readyz") == 200 })
}

// A start is over when the checks of liveness have passed once: until then the kubelet does not ask
// for liveness. With a proxy the program has to listen too.
func TestStartEndsWhenTheProgramAnswers(t *testing.T) {
	for name, flag := range map[string]string{"live": "-live=tcp://ADDR", "proxy": "-addr=127.0.0.1:0 -proxy=http://ADDR"} {
		t.Run(name, func(t *testing.T) {
			addr := freeAddr(t)
			flags := append(strings.Fields(strings.ReplaceAll(flag, "ADDR", addr)), "-lifecycle.health-addr=127.0.0.1:0", "-lifecycle.drain-interval=off")
			c := start(t, nil, flags, "stubborn")
			health := "http://" + c.address()
			c.await("serving")
			c.await("msg=running")
			if got := status(health + "/startupz"); got != 503 {
				t.Errorf("/startupz while the program does not listen: %d, want 503", got)
			}
			ln, err := net.Listen("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the end of the start", func() bool { return status(health+"/startupz") == 200 })
			_ = ln.Close()
			if got := status(health + "/startupz"); got != 200 {
				t.Errorf("/startupz after the start: %d", got)
			}
		})
	}
}

// replace puts a new file in the place of one.
func replace(t *testing.T, file, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(file+"~", []byte(text), 0o600), os.Rename(file+"~", file)); err != nil {
		t.Fatal(err)
	}
}

// A change of the file is taken over while the program runs: that of the section lifecycle. The log
// says what waits for another start.
func TestSettingsAreReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lifecycle-run.yaml")
	replace(t, file, "lifecycle: {health_addr: 'off', drain_interval: 9s}\n")
	c := start(t, nil, []string{"-config=" + file, "-forward=HUP"}, "signals")
	c.await("listening")
	c.await("msg=running")
	replace(t, file, "lifecycle: {health_addr: 'off', drain_interval: 8s}\nrestart: always\n")
	c.signal(syscall.SIGHUP)
	c.await("lifecycle.drain_interval: 9s -> 8s")
	c.await("settings beside lifecycle have changed")
	c.await("got hangup")
}

// A file that has changed is read again. Only a SIGHUP is passed on to the program: most programs
// end with it. The name of the program is not that of one of the command's own parts.
func TestAChangedFileIsNoSignal(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lifecycle-run.yaml")
	replace(t, file, "lifecycle: {health_addr: 'off', drain_interval: 9s}\n")
	c := start(t, nil, []string{"-config=" + file, "-forward=HUP,USR1", "-lifecycle.name=signals"}, "signals")
	c.await("listening")
	c.await("msg=running")
	replace(t, file, "lifecycle: {health_addr: 'off', drain_interval: 8s}\n")
	c.await("lifecycle.drain_interval: 9s -> 8s")
	c.signal(syscall.SIGUSR1)
	c.await("got user defined signal 1")
	if strings.Contains(c.output(), "got hangup") {
		t.Error("the program got a SIGHUP because the file has changed")
	}
}

// A program that ignores SIGTERM is killed after the grace.
func TestStubbornProgramIsKilled(t *testing.T) {
	c := start(t, nil, []string{"-lifecycle.health-addr=off", "-lifecycle.drain-interval=off", "-lifecycle.shutdown-grace=8s"}, "stubborn")
	c.await("serving")
	c.signal(syscall.SIGTERM)
	c.wantExit(137)
	c.await("Killed")
}

// The status of a program that was asked to stop is the program's own. The supervisor
// still counts it as stopped, not as failed.
func TestStatusOfAStoppedProgram(t *testing.T) {
	for script, code := range map[string]int{
		`trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done`: 0,
		`trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done`: 9,
		`trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done`: 7,
		`echo ready; exec sleep 600`:                                   143,
	} {
		c := start(t, nil, []string{"-lifecycle.health-addr=off", "-lifecycle.drain-interval=off"}, "shell", script)
		c.await("ready")
		c.await("msg=running")
		c.signal(syscall.SIGTERM)
		c.wantExit(code)
		if strings.Contains(c.output(), "msg=\"the program has ended\"") {
			t.Errorf("%s: the stop counts as an end of the program's own", script)
		}
	}
}

func TestRestart(t *testing.T) {
	t.Run("on failure", func(t *testing.T) {
		c := start(t, nil, []string{"-lifecycle.health-addr=off", "-restart=on-failure", "-backoff.min=10ms", "-backoff.max=20ms"}, "flaky", t.TempDir())
		c.wantExit(0)
		c.await("start 3")
	})
	t.Run("never", func(t *testing.T) {
		c := start(t, nil, []string{"-lifecycle.health-addr=off"}, "flaky", t.TempDir())
		c.wantExit(4)
	})
	t.Run("always", func(t *testing.T) {
		c := start(t, nil, []string{"-lifecycle.health-addr=off", "-restart=always", "-backoff.min=10ms", "-backoff.max=20ms", "-backoff.max-restarts=1000000"}, "flaky", t.TempDir())
		c.await("start 5")
		c.signal(syscall.SIGTERM)
		<-c.done
		if got := c.cmd.ProcessState.ExitCode(); got != 0 && got != 143 { // 143: SIGTERM came during a run
			t.Errorf("exit status %d, want 0 or 143", got)
		}
	})
	t.Run("until the budget is spent", func(t *testing.T) {
		c := start(t, nil, []string{"-lifecycle.health-addr=off", "-restart=on-failure", "-backoff.min=10ms", "-backoff.max-restarts=1"}, "flaky", t.TempDir())
		c.wantExit(4) // the status of the last failure
		c.await("restart intensity exceeded")
	})
}

// Signals are passed on, SIGHUP as a reload. When the program ends by one, that
// is its own end.
func TestSignalsArePassedOn(t *testing.T) {
	c := start(t, nil, []string{"-lifecycle.health-addr=off", "-forward=HUP,USR1,QUIT"}, "signals")
	c.await("listening")
	c.await("msg=running")
	c.signal(syscall.SIGHUP)
	c.await("got hangup")
	c.signal(syscall.SIGUSR1)
	c.await("got user defined signal 1")
	c.signal(syscall.SIGQUIT)
	c.await("got quit")
	c.wantExit(0)
}
