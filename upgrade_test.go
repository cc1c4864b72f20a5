//go:build linux

package lifecycle

import (
	"bufio"
	"bytes"
	"cmp"
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
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// nextEnv names a file that says what a process of the scenario "upgrade" does when it is to
// replace another one.
const nextEnv = "LIFECYCLE_TEST_NEXT"

// The scenario of these tests: each answer has the process id.
func init() {
	scenarios["upgrade"] = func() int {
		next := ""
		if replaces {
			content, _ := os.ReadFile(os.Getenv(nextEnv))
			next = string(content)
		}
		switch next {
		case "exit":
			return 7
		case "hang":
			hangForEver("the new process hangs")
		}
		killAt("start", nil)
		app := scenarioApp()
		mux := http.NewServeMux()
		mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) {
			_, _ = io.Copy(io.Discard, req.Body)
			fmt.Fprint(w, os.Getpid())
		})
		mux.HandleFunc("/hijack", func(w http.ResponseWriter, req *http.Request) { // echoes lines until its client leaves
			nc, rw, err := w.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer nc.Close()
			for {
				line, err := rw.ReadString('\n')
				if err != nil {
					return
				}
				fmt.Fprintf(nc, "%d %s", os.Getpid(), line)
			}
		})
		mux.HandleFunc("/slow", func(w http.ResponseWriter, _ *http.Request) {
			say("slow begins")
			time.Sleep(300 * time.Millisecond)
			fmt.Fprint(w, os.Getpid())
		})
		mux.HandleFunc("/child", func(w http.ResponseWriter, _ *http.Request) { // what a child sees
			out, err := exec.Command("sh", "-c", "env; ls -l /proc/self/fd").CombinedOutput()
			fmt.Fprintf(w, "%s\n%v", out, err)
		})
		addr := cmp.Or(os.Getenv("LIFECYCLE_TEST_ADDR"), "127.0.0.1:0")
		if next == "moved" {
			addr = "127.0.0.2:0"
		}
		app.Serve("http", &http.Server{Addr: addr, Handler: mux, Protocols: bothProtocols()})
		if path := os.Getenv("LIFECYCLE_TEST_UNIX"); path != "" {
			ln, err := app.Listen("unix", path)
			if err != nil {
				say("listen: %v", err)
				return 1
			}
			app.Serve("unix", &http.Server{Handler: mux}, WithListener(ln))
			packets, err := app.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				say("listen: %v", err)
				return 1
			}
			say("udp %s.", packets.LocalAddr())
			app.Go("udp", func(ctx context.Context) error {
				defer context.AfterFunc(ctx, func() { _ = packets.Close() })()
				for buf := make([]byte, 64); ; {
					n, from, err := packets.ReadFrom(buf)
					if err != nil {
						return nil
					}
					_, _ = packets.WriteTo(fmt.Appendf(nil, "%d %s", os.Getpid(), buf[:n]), from)
				}
			})
		}
		if mode() == "own listener" {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return 1
			}
			app.Serve("other", &http.Server{Handler: mux}, WithListener(ln))
		}
		if mode() == "lock" {
			exclusives(app, next)
			app.Probe("step", ProbeFunc(func(context.Context) error { killAt("ready", nil); return nil }))
		}
		if next == "unit" {
			app.Go("own", func(context.Context) error { return errors.New("address already in use") })
		}
		if next == "unready" {
			app.Probe("db", ProbeFunc(func(context.Context) error { return errors.New("connection refused") }))
		}
		return runApp(context.Background(), app)
	}
}

// stepEnv names the step at which killAt kills a process, and victimEnv which.
const (
	stepEnv   = "LIFECYCLE_TEST_STEP"
	victimEnv = "LIFECYCLE_TEST_VICTIM"
)

// replaces says that this process is to replace another one.
var _, replaces = os.LookupEnv("LIFECYCLE_UPGRADE")

// killAt kills the old or the new process, at a step of the first upgrade. The old process calls
// it with its App.
func killAt(step string, old *App) {
	if os.Getenv(stepEnv) != step || replaces == (old != nil) {
		return
	}
	if _, err := os.Stat(os.Getenv(nextEnv) + ".over"); err == nil {
		return
	}
	pid := os.Getpid()
	switch isNew := os.Getenv(victimEnv) == "new"; {
	case isNew && old != nil:
		pid = old.upgrade.child.Load().PID
	case !isNew && old == nil:
		pid = os.Getppid()
	}
	say("killed at step %s.", step)
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

// bothProtocols are HTTP/1.1 and HTTP/2 without TLS.
func bothProtocols() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return p
}

// exclusives adds two locks of the system, which a second process cannot have.
func exclusives(app *App, next string) {
	for _, name := range []string{"one", "two"} {
		path := os.Getenv(nextEnv) + "." + name
		var file *os.File
		app.Exclusive(name, func(context.Context) error {
			if next == "cannot take "+name {
				return errors.New("it is broken")
			}
			if next == "die taking "+name {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				return err
			}
			if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
				return errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
			}
			file = f
			killAt("take "+name, nil)
			say("process %d took %s.", os.Getpid(), name)
			return nil
		}, func(context.Context) error {
			say("process %d gave %s.", os.Getpid(), name)
			killAt("give "+name, app)
			if os.Getenv(stepEnv) == "die" {
				app.die("a test", 3)
			}
			return file.Close()
		})
	}
}

// line is a service and the processes that replace it, one after the other.
type line struct {
	t       *testing.T
	program string // a copy of the test binary
	next    string // the file of nextEnv
	out     *lines
	first   *exec.Cmd
	http    string
	health  string

	answeredBy sync.Map // the processes that have answered a request of load
}

const adminToken = "0123456789abcdef"

// launchLine starts the first process of a service.
func launchLine(t *testing.T, cfg Config, change ...func(*exec.Cmd)) *line {
	t.Helper()
	dir := t.TempDir()
	l := &line{t: t, program: filepath.Join(dir, "program"), next: filepath.Join(dir, "next"), out: newLines()}
	if err := os.Link(os.Args[0], l.program); err != nil { // another file system
		if content, err := os.ReadFile(os.Args[0]); err != nil || os.WriteFile(l.program, content, 0o755) != nil {
			t.Fatal(err)
		}
	}
	l.then("")
	cfg.Name, cfg.TerminationLog, cfg.AdminToken, cfg.UpgradeSignal = "svc", "off", "", "SIGUSR2"
	if cfg.HealthAddr == "" {
		cfg.HealthAddr = "127.0.0.1:0"
	}
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(adminToken), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.AdminTokenFile = token
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l.first = exec.Command(l.program)
	l.first.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", scenarioEnv+"=upgrade", configEnv+"="+string(text), nextEnv+"="+l.next)
	l.first.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	for _, c := range change {
		c(l.first)
	}
	r, w, err := os.Pipe() // not by exec.Cmd, whose Wait would wait for all processes
	if err != nil {
		t.Fatal(err)
	}
	l.first.Stdout, l.first.Stderr = w, w
	err = l.first.Start()
	_ = w.Close()
	if err != nil {
		t.Fatal(err)
	}
	var read sync.WaitGroup
	read.Go(func() { _, _ = io.Copy(l.out, r); l.out.end() })
	t.Cleanup(func() {
		_ = syscall.Kill(-l.first.Process.Pid, syscall.SIGKILL) // all of them
		_ = l.first.Wait()
		read.Wait()
		if t.Failed() {
			t.Logf("the processes:\n%s", l.out)
		}
	})
	l.await("msg=running")
	l.http = l.find(`msg=listening server=http addr=(\S+)`)
	l.health = l.find(`msg="health planes are served" addr=(\S+)`)
	return l
}

// then says what the next process does.
func (l *line) then(what string) {
	l.t.Helper()
	if err := os.WriteFile(l.next, []byte(what), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

func (l *line) await(text string) {
	l.t.Helper()
	if !l.out.await(text) {
		l.t.Fatalf("no process said %q", text)
	}
}

// find returns what the expression's group finds first in the output.
func (l *line) find(expr string) string {
	l.t.Helper()
	m := regexp.MustCompile(expr).FindStringSubmatch(l.out.String())
	if m == nil {
		l.t.Fatalf("%s is not in the output", expr)
	}
	return m[1]
}

// pid returns the process that answers.
func (l *line) pid() int {
	l.t.Helper()
	pid, err := strconv.Atoi(mustPage(l.t, l.http, "/"))
	if err != nil {
		l.t.Fatal(err)
	}
	return pid
}

// upgrade asks for an upgrade and returns the answer.
func (l *line) upgrade() (status int, text string) {
	l.t.Helper()
	status, text, err := l.tryUpgrade()
	if err != nil {
		l.t.Fatal(err)
	}
	return status, text
}

func (l *line) tryUpgrade() (status int, text string, err error) {
	req, err := http.NewRequest(http.MethodPost, "http://"+l.health+"/admin/upgrade", nil)
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: 2 * patience}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// mustUpgrade replaces the process and returns the new one.
func (l *line) mustUpgrade() (pid int) {
	l.t.Helper()
	status, text := l.upgrade()
	if n, _ := fmt.Sscanf(text, "upgraded: process %d serves", &pid); n != 1 || status != http.StatusOK {
		l.t.Fatalf("the upgrade answers %d %s", status, text)
	}
	return pid
}

// ends waits until the process has ended.
func (l *line) ends(pid int) {
	l.t.Helper()
	if pid == l.first.Process.Pid {
		if err := l.first.Wait(); err != nil {
			l.t.Errorf("process %d: %v", pid, err)
		}
		return
	}
	eventually(l.t, fmt.Sprintf("the end of process %d", pid), func() bool { return !runs(pid) })
}

// runs reports whether a process runs and is not a zombie.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	after := stat[bytes.LastIndexByte(stat, ')')+1:]
	return !bytes.HasPrefix(after, []byte(" Z")) && !bytes.HasPrefix(after, []byte(" X"))
}

// load sends requests until stop is called, without a retry: on new connections, on
// connections that are kept, and on HTTP/2. stop returns how many were answered, and fails the test for each
// that was lost.
func (l *line) load() (stop func() (answered int64)) {
	quit := make(chan struct{})
	var clients sync.WaitGroup
	var answered atomic.Int64
	client := func(tr *http.Transport, pause time.Duration) {
		defer tr.CloseIdleConnections()
		c := &http.Client{Transport: tr, Timeout: patience}
		for {
			select {
			case <-quit:
				return
			case <-time.After(pause):
			}
			// net/http does not send a POST again whose body it cannot rewind.
			resp, err := c.Post("http://"+l.http+"/", "text/plain", io.MultiReader(strings.NewReader("x")))
			if err == nil {
				var pid []byte
				pid, err = io.ReadAll(resp.Body)
				err = errors.Join(err, resp.Body.Close())
				l.answeredBy.Store(string(pid), true)
			}
			if err != nil {
				l.t.Errorf("kept %v, HTTP/2 %v, pause %v: a request was lost after %d: %v", !tr.DisableKeepAlives, tr.Protocols != nil, pause, answered.Load(), err)
				return
			}
			answered.Add(1)
		}
	}
	for _, pause := range []time.Duration{0, 3 * time.Millisecond, 40 * time.Millisecond} {
		clients.Go(func() { client(&http.Transport{}, pause) })
		clients.Go(func() { client(&http.Transport{DisableKeepAlives: true}, pause) })
		clients.Go(func() {
			http2 := new(http.Protocols)
			http2.SetUnencryptedHTTP2(true)
			client(&http.Transport{Protocols: http2}, pause)
		})
	}
	end := sync.OnceValue(func() int64 {
		close(quit)
		clients.Wait()
		return answered.Load()
	})
	l.t.Cleanup(func() { end() }) // also after a fatal error
	return end
}

// quickly has a short window. Linger is long enough for a client on a busy machine.
var quickly = Config{DrainInterval: 500 * time.Millisecond, Linger: 5 * time.Second, SignalDebounce: Off}

// Several upgrades in a row lose no request, also with one in between that fails, and each
// process that was replaced ends with 0. CHAOS_UPGRADES is how many.
func TestUpgradesLoseNoRequest(t *testing.T) {
	l := launchLine(t, quickly)
	stop := l.load()
	old := l.pid()
	n := 5
	if count, err := strconv.Atoi(os.Getenv("CHAOS_UPGRADES")); err == nil {
		n = count
	}
	for i := range n {
		if i%4 == 3 {
			l.then("exit")
			if status, text := l.upgrade(); status != http.StatusConflict {
				t.Fatalf("the upgrade to a process that ends answers %d %s", status, text)
			}
			l.then("")
		}
		pid := l.mustUpgrade()
		l.ends(old)
		if pid == old || l.pid() != pid {
			t.Fatalf("process %d answers after the upgrade of %d to %d", l.pid(), old, pid)
		}
		old = pid
		if t.Failed() {
			break
		}
	}
	t.Logf("%d upgrades, %d requests", n, stop())
	if !strings.Contains(l.out.String(), "result: <nil>") {
		t.Error("the stop of a process that was replaced is not clean")
	}
	if seen := mustPage(t, l.http, "/child"); strings.Contains(seen, "LISTEN_") || strings.Contains(seen, "LIFECYCLE_UPGRADE") || strings.Contains(seen, "socket:") {
		t.Errorf("a child sees what was handed over:\n%s", seen)
	}
	if err := syscall.Kill(old, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	l.ends(old)
	if conn, err := net.Dial("tcp", l.http); err == nil {
		_ = conn.Close()
		t.Error("the port is open after the last process has ended")
	}
}

// The signal of Config.UpgradeSignal replaces the process. A connection that is idle at that
// moment is served by the old process once more, also without a drain window.
func TestUpgradeSignal(t *testing.T) {
	cfg := quickly
	cfg.DrainWait, cfg.Linger, cfg.ShutdownGrace = WaitNever, 20*time.Second, 60*time.Second
	l := launchLine(t, cfg)
	old := l.pid()
	conn, err := net.Dial("tcp", l.http)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := bufio.NewReader(conn)
	ask := func() (closes bool) {
		t.Helper()
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != strconv.Itoa(old) {
			t.Errorf("process %s answers, %v, want %d", body, err, old)
		}
		return resp.Close
	}
	if ask() {
		t.Error("the connection closes before the upgrade")
	}
	if err := syscall.Kill(old, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	l.await("msg=upgraded")
	if !ask() {
		t.Error("the connection does not close after the upgrade")
	}
	l.ends(old)
	if pid := l.pid(); pid == old {
		t.Errorf("process %d still answers", pid)
	}
}

// A new process that fails in any way is ended, the error says how, and the old one serves on
// without a lost request.
func TestUpgradeThatFails(t *testing.T) {
	replace := func(l *line, content string, mode os.FileMode) {
		l.t.Helper()
		beside := l.program + ".new"
		if err := os.WriteFile(beside, []byte(content), mode); err != nil {
			l.t.Fatal(err)
		}
		if err := os.Rename(beside, l.program); err != nil {
			l.t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		next   string
		change func(*line)
		want   string
	}{
		"it exits":                {"exit", nil, "exit status 7"},
		"it hangs":                {"hang", nil, "it took longer than 1s (UpgradeTimeout)"},
		"a unit of it fails":      {"unit", nil, "it ended before it said"},
		"it is never ready":       {"unready", nil, "it took longer than 1s (UpgradeTimeout)"},
		"it is gone":              {"", func(l *line) { _ = os.Remove(l.program) }, "no such file"},
		"it is not executable":    {"", func(l *line) { replace(l, "#!/bin/sh\n", 0o600) }, "permission denied"},
		"of another architecture": {"", func(l *line) { replace(l, "\x7fELF of nothing", 0o700) }, "exec format error"},
		"another version":         {"", func(l *line) { replace(l, "#!/bin/sh\necho ready 2 >&$LIFECYCLE_UPGRADE\nsleep 60\n", 0o700) }, `it said "ready 2", want "ready": it may speak another version`},
		"garbage":                 {"", func(l *line) { replace(l, "#!/bin/sh\nyes >&$LIFECYCLE_UPGRADE\n", 0o700) }, `it said "y", want "ready"`},
		"no line ends":            {"", func(l *line) { replace(l, "#!/bin/sh\ncat /dev/zero >&$LIFECYCLE_UPGRADE\n", 0o700) }, `more than 64 bytes`},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := quickly
			if strings.Contains(tt.want, "UpgradeTimeout") {
				cfg.UpgradeTimeout = time.Second
			}
			l := launchLine(t, cfg)
			l.then(tt.next)
			old, stop := l.pid(), l.load()
			if tt.change != nil {
				tt.change(l)
			}
			status, text := l.upgrade()
			if status != http.StatusConflict || !strings.Contains(text, tt.want) {
				t.Errorf("the upgrade answers %d %q, want %q", status, text, tt.want)
			}
			l.await("upgrade failed, this process serves on")
			if pid := l.pid(); pid != old {
				t.Errorf("process %d answers, want %d", pid, old)
			}
			if m := regexp.MustCompile(`a new process starts" process=(\d+)`).FindStringSubmatch(l.out.String()); m != nil {
				if pid, _ := strconv.Atoi(m[1]); runs(pid) {
					t.Errorf("process %d still runs", pid)
				}
			}
			if got := mustPage(t, l.health, "/readyz"); !strings.Contains(got, `"ok"`) {
				t.Errorf("/readyz answers %s", got)
			}
			_ = stop()
			l.answeredBy.Range(func(pid, _ any) bool {
				if pid != strconv.Itoa(old) {
					t.Errorf("process %s answered, which never was ready", pid)
				}
				return true
			})
		})
	}
}

// What only one process can have goes to the new process in the reverse order, and comes back
// when the upgrade fails after that.
func TestExclusive(t *testing.T) {
	l := launchLine(t, quickly, env(modeEnv, "lock"))
	old := l.pid()
	said := func(pid int) (all []string) {
		for _, m := range regexp.MustCompile(fmt.Sprintf(`process %d (took|gave) (\w+)\.`, pid)).FindAllStringSubmatch(l.out.String(), -1) {
			all = append(all, m[1]+" "+m[2])
		}
		return all
	}
	want := "[took one took two]"
	check := func() {
		t.Helper()
		eventually(t, want, func() bool { return len(fmt.Sprint(said(old))) >= len(want) }) // the output is read later
		if got := fmt.Sprint(said(old)); got != want {
			t.Errorf("process %d: %s, want %s", old, got, want)
		}
	}
	check()
	for _, next := range []string{"cannot take two", "die taking two", "die taking one"} {
		l.then(next)
		if status, text := l.upgrade(); status != http.StatusConflict {
			t.Errorf("%s: the upgrade answers %d %s", next, status, text)
		}
		want = strings.TrimSuffix(want, "]") + " gave two gave one took one took two]"
		check()
		if pid := l.pid(); pid != old {
			t.Errorf("%s: process %d answers, want %d", next, pid, old)
		}
	}
	l.then("")
	pid := l.mustUpgrade()
	l.ends(old)
	want = strings.TrimSuffix(want, "]") + " gave two gave one]"
	check()
	old, want = pid, "[took one took two]"
	check()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	l.ends(pid)
	want = "[took one took two gave two gave one]"
	check()
}

// The processes of an upgrade are killed at each step. The old one serves on when the new one
// is killed, and the new one when the old one is: no request is lost in either case, but those
// of the process that is killed.
func TestUpgradeKilledAtEachStep(t *testing.T) {
	for _, victim := range []string{"new", "old"} {
		for _, step := range []string{"start", "ready", "give two", "give one", "take one", "take two"} {
			t.Run(victim+" "+step, func(t *testing.T) {
				l := launchLine(t, quickly, env(modeEnv, "lock"), env(stepEnv, step), env(victimEnv, victim))
				old := l.pid()
				_, _, _ = l.tryUpgrade() // a process that is killed does not answer
				l.await("killed at step " + step + ".")
				pid, err := strconv.Atoi(l.find(`a new process starts" process=(\d+)`))
				if err != nil {
					t.Fatal(err)
				}
				want := map[string]int{"new": old, "old": pid}[victim]
				dead := map[string]int{"new": pid, "old": old}[victim]
				if victim == "old" {
					_ = l.first.Wait()
				}
				eventually(t, "the end of the victim", func() bool { return !runs(dead) })
				if victim == "old" {
					l.await("the old process has ended during the upgrade")
				}
				for range 5 {
					if got := l.pid(); got != want {
						t.Errorf("process %d answers, want %d", got, want)
					}
				}
				if err := os.WriteFile(l.next+".over", nil, 0o600); err != nil {
					t.Fatal(err)
				}
				if victim == "new" { // and the next upgrade works
					if status, text := l.upgrade(); status != http.StatusOK {
						t.Errorf("the next upgrade answers %d %s", status, text)
					}
				}
			})
		}
	}
}

// visit sends GETs on connections of their own until stop is called, and sends a request again
// that the end of a process has cut. stop returns the errors of those that were refused or lost.
func (l *line) visit() (stop func() []error) {
	quit := make(chan struct{})
	var clients sync.WaitGroup
	var mu sync.Mutex
	var lost []error
	get := func() error {
		tr := &http.Transport{DisableKeepAlives: true}
		defer tr.CloseIdleConnections()
		resp, err := (&http.Client{Transport: tr, Timeout: patience}).Get("http://" + l.http + "/")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-quit:
					return
				case <-time.After(2 * time.Millisecond):
				}
				err := get()
				for try := 0; err != nil && !errors.Is(err, syscall.ECONNREFUSED) && try < 2; try++ {
					err = get()
				}
				if err != nil {
					mu.Lock()
					lost = append(lost, err)
					mu.Unlock()
				}
			}
		})
	}
	end := sync.OnceValue(func() []error {
		close(quit)
		clients.Wait()
		return lost
	})
	l.t.Cleanup(func() { end() })
	return end
}

// During each upgrade the old process, the new one or none is killed at a random moment. The other
// one serves: a client is never refused, and what a kill has cut is answered when it is sent again.
// CHAOS_KILLED_UPGRADES is how many, and CHAOS_SEED gives other moments.
func TestUpgradesUnderKills(t *testing.T) {
	n, seed := 6, uint64(1)
	if count, err := strconv.Atoi(os.Getenv("CHAOS_KILLED_UPGRADES")); err == nil {
		n = count
	}
	if given, err := strconv.ParseUint(os.Getenv("CHAOS_SEED"), 10, 64); err == nil {
		seed = given
	}
	rnd := rand.New(rand.NewPCG(seed, seed))
	starts := regexp.MustCompile(`a new process starts" process=(\d+)`)
	ends := map[string]int{}
	var l *line
	var old int
	for range n {
		if l == nil {
			l = launchLine(t, quickly, env(modeEnv, "lock"))
			old = l.pid()
		}
		before := len(starts.FindAllString(l.out.String(), -1))
		stop := l.visit()
		answer := make(chan int, 1)
		go func() { status, _, _ := l.tryUpgrade(); answer <- status }()
		var found [][]string
		eventually(t, "a new process", func() bool {
			found = starts.FindAllStringSubmatch(l.out.String(), -1)
			return len(found) > before
		})
		next, _ := strconv.Atoi(found[before][1])
		victim, serves := 0, next
		switch rnd.IntN(3) {
		case 0:
			victim = old
		case 1:
			victim = next
		}
		moment := rnd.Float64() // most are in the upgrade, and some behind it
		time.Sleep(time.Duration(moment * moment * float64(300*time.Millisecond)))
		if victim != 0 {
			_ = syscall.Kill(victim, syscall.SIGKILL)
		}
		status := <-answer
		how := fmt.Sprintf("killed %v, answered %d", map[int]string{0: "none", old: "the old", next: "the new"}[victim], status)
		ends[how]++
		if victim == next && status == http.StatusOK { // it was the service by then, and no other is left
			stop()
			l = nil
			continue
		}
		if victim == next {
			serves = old
		}
		eventually(t, how+": the other one to answer", func() bool { return l.pid() == serves })
		if lost := stop(); len(lost) > 0 {
			t.Fatalf("%s: %d requests are lost: %v", how, len(lost), errors.Join(lost...))
		}
		if serves == next {
			if old == l.first.Process.Pid {
				_ = l.first.Wait() // it may have been killed
			}
			eventually(t, "the end of the old process", func() bool { return !runs(old) })
		}
		old = serves
	}
	t.Logf("%d upgrades: %v", n, ends)
}

// While an upgrade runs a second one is refused, and a request to stop ends it: the new process
// is killed.
func TestSecondUpgradeIsRefusedAndStopEndsIt(t *testing.T) {
	l := launchLine(t, quickly)
	l.then("hang")
	old := l.pid()
	first := make(chan string, 1)
	go func() { _, text, err := l.tryUpgrade(); first <- fmt.Sprint(text, err) }()
	l.await("the new process hangs")
	if status, text := l.upgrade(); status != http.StatusConflict || !strings.Contains(text, "upgrade refused: another upgrade runs") {
		t.Errorf("the second upgrade answers %d %s", status, text)
	}
	if err := syscall.Kill(old, syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	l.await("another upgrade runs, or the app stops")
	pid, err := strconv.Atoi(l.find(`a new process starts" process=(\d+)`))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(old, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if text := <-first; !strings.Contains(text, "the app was asked to stop") {
		t.Errorf("the first upgrade answers %s", text)
	}
	l.ends(old)
	if runs(pid) {
		t.Errorf("the new process %d still runs", pid)
	}
}

// A forced exit of the old process ends the new one too.
func TestForcedExitEndsTheNewProcess(t *testing.T) {
	l := launchLine(t, quickly, env(modeEnv, "lock"), env(stepEnv, "die"))
	_, _, _ = l.tryUpgrade() // the process ends
	pid, err := strconv.Atoi(l.find(`a new process starts" process=(\d+)`))
	if err != nil {
		t.Fatal(err)
	}
	_ = l.first.Wait()
	eventually(t, "the end of the new process", func() bool { return !runs(pid) })
}

// Upgrade refuses what cannot work, and says what would.
func TestUpgradeRefused(t *testing.T) {
	l := launchLine(t, quickly, env(modeEnv, "own listener"))
	status, text := l.upgrade()
	isNamed := strings.Contains(text, "the listener of server other on 127.0.0.1:") && strings.Contains(text, "open it with App.Listen")
	if status != http.StatusConflict || !isNamed {
		t.Errorf("with a listener of its own the upgrade answers %d %s", status, text)
	}
	if strings.Contains(l.out.String(), "a new process starts") {
		t.Error("a new process was started")
	}
	app, err := New(Config{HealthAddr: HealthOff})
	if err != nil {
		t.Fatal(err)
	}
	if err := app.Upgrade(t.Context()); !errors.Is(err, ErrUpgradeRefused) || !strings.Contains(err.Error(), "the app is created") {
		t.Errorf("before Run: %v", err)
	}
}

// A hijacked connection lives on in the old process until the end of its window, while a
// second old process drains.
func TestUpgradeKeepsHijackedConnections(t *testing.T) {
	cfg := quickly
	cfg.DrainInterval, cfg.GoAwayAfter = 20*time.Second, 19*time.Second
	l := launchLine(t, cfg)
	open := func() (*bufio.Reader, net.Conn) {
		conn, err := net.Dial("tcp", l.http)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		fmt.Fprint(conn, "GET /hijack HTTP/1.1\r\nHost: x\r\n\r\n")
		return bufio.NewReader(conn), conn
	}
	echo := func(r *bufio.Reader, conn net.Conn, pid int) {
		t.Helper()
		_ = conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprintln(conn, "hello")
		if got, err := r.ReadString('\n'); got != fmt.Sprintf("%d hello\n", pid) {
			t.Errorf("a connection of process %d answers %q, %v", pid, got, err)
		}
	}
	first := l.pid()
	r1, c1 := open()
	echo(r1, c1, first)
	second := l.mustUpgrade()
	for range 20 {
		if pid := l.pid(); pid != second {
			t.Fatalf("process %d answers after the upgrade, want %d", pid, second)
		}
	}
	r2, c2 := open()
	echo(r2, c2, second)
	third := l.mustUpgrade()
	if pid := l.pid(); pid != third {
		t.Errorf("process %d answers after the upgrade, want %d", pid, third)
	}
	echo(r1, c1, first) // both old ones drain
	echo(r2, c2, second)
	_, _ = c1.Close(), c2.Close()
	l.ends(first) // and end as soon as their connections have
	l.ends(second)
}

// Sockets of App.Listen and App.ListenPacket are handed over. The file of a unix socket stays
// until the last process ends.
func TestUpgradeUnixAndPackets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := launchLine(t, quickly, env("LIFECYCLE_TEST_UNIX", path))
	unix := func() int {
		t.Helper()
		tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}}
		resp, err := (&http.Client{Transport: tr, Timeout: patience}).Get("http://unix/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		pid, _ := strconv.Atoi(string(body))
		return pid
	}
	addr := l.find(`udp (\S+)\.`)
	udp := func() (pid int) {
		t.Helper()
		conn, err := net.Dial("udp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprint(conn, "hello")
		buf := make([]byte, 64)
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		word, _, _ := strings.Cut(string(buf[:n]), " ")
		pid, _ = strconv.Atoi(word)
		return pid
	}
	old := unix()
	if pid := udp(); pid != old {
		t.Errorf("process %d answers on UDP, want %d", pid, old)
	}
	for range 3 { // the second process passes on what it was given
		pid := l.mustUpgrade()
		l.ends(old)
		if got := unix(); got != pid {
			t.Errorf("process %d answers on the unix socket, want %d", got, pid)
		}
		if got := udp(); got != pid {
			t.Errorf("process %d answers on UDP, want %d", got, pid)
		}
		old = pid
	}
	if err := syscall.Kill(old, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	l.ends(old)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("the file of the unix socket: %v", err)
	}
}

// A client that keeps a connection to the health planes is told to close it, and gets its answer
// from the old process.
func TestUpgradeTellsProbersToLeave(t *testing.T) {
	cfg := quickly
	cfg.Linger, cfg.ShutdownGrace = 4*time.Minute, 5*time.Minute
	l := launchLine(t, cfg)
	old := l.pid()
	busy, err := net.Dial("tcp", l.http) // the old process stays for it
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	prober, err := net.Dial("tcp", l.health)
	if err != nil {
		t.Fatal(err)
	}
	defer prober.Close()
	_ = prober.SetDeadline(time.Now().Add(patience))
	in := bufio.NewReader(prober)
	ready := func() (isLast bool) {
		t.Helper()
		fmt.Fprint(prober, "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("/readyz: %s %s %v", resp.Status, body, err)
		}
		return resp.Close
	}
	fmt.Fprint(busy, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp, err := http.ReadResponse(bufio.NewReader(busy), nil); err != nil {
		t.Fatal(err)
	} else {
		resp.Body.Close()
	}
	if ready() {
		t.Error("the prober is told to leave before the upgrade")
	}
	l.mustUpgrade()
	if !ready() {
		t.Error("the prober is not told to leave")
	}
	_ = busy.Close()
	l.ends(old)
}

// The service manager hears which process is the main one, and no stop. Its sockets and the
// variables of the notification go to each new process.
func TestUpgradeUnderSystemd(t *testing.T) {
	notify, messages := notified(t)
	l := launchLine(t, quickly, notify, env("WATCHDOG_USEC", "600000000"))
	awaitMessage(t, messages, "READY=1")
	old := l.pid()
	for range 2 {
		pid := l.mustUpgrade()
		l.ends(old)
		before := awaitMessage(t, messages, fmt.Sprintf("MAINPID=%d\nREADY=1", pid))
		for _, m := range before {
			if strings.HasPrefix(m, "STOPPING=1") || strings.Contains(m, "draining") || strings.Contains(m, "stop") {
				t.Errorf("it hears of the stop of an old process: %q", before)
			}
		}
		if !slices.ContainsFunc(before, func(m string) bool { return strings.HasPrefix(m, "RELOADING=1") }) {
			t.Errorf("no reload in %q", before)
		}
		if slices.ContainsFunc(before, func(m string) bool { return strings.HasPrefix(m, "READY=1") }) {
			t.Errorf("a process was ready before it was the main one: %q", before)
		}
		old = pid
	}
	l.then("exit")
	if status, _ := l.upgrade(); status != http.StatusConflict {
		t.Errorf("the upgrade answers %d", status)
	}
	awaitMessage(t, messages, "RELOADING=1")
	awaitMessage(t, messages, "READY=1\nSTATUS=running: upgrade: it ended before it said")
	if err := syscall.Kill(old, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	awaitMessage(t, messages, "STOPPING=1")
	l.ends(old)
}

// An address that has changed is opened anew, and the socket of the old one is closed.
func TestUpgradeToAnotherAddress(t *testing.T) {
	l := launchLine(t, quickly)
	old := l.pid()
	l.then("moved")
	pid := l.mustUpgrade()
	l.ends(old)
	l.await(`msg="nothing listens any more on what the old process had opened" addresses="tcp=127.0.0.1:0"`)
	if conn, err := net.Dial("tcp", l.http); err == nil {
		_ = conn.Close()
		t.Error("the old address is open")
	}
	l.http = l.find(`msg=listening server=http addr=(127.0.0.2:\d+)`)
	if got := l.pid(); got != pid {
		t.Errorf("process %d answers at the new address, want %d", got, pid)
	}
}

// The sockets of the service manager go to each new process, by their names.
func TestUpgradeKeepsTheSocketsOfSystemd(t *testing.T) {
	sockets, addrs := activate(t, "http", "health")
	cfg := quickly
	cfg.HealthAddr = "fd://health"
	l := launchLine(t, cfg, sockets, env("LIFECYCLE_TEST_ADDR", "fd://http"))
	if l.http != addrs[0] || l.health != addrs[1] {
		t.Fatalf("it listens on %s and %s, want %q", l.http, l.health, addrs)
	}
	old, stop := l.pid(), l.load()
	for range 3 {
		pid := l.mustUpgrade()
		l.ends(old)
		old = pid
	}
	_ = stop()
	if seen := mustPage(t, l.http, "/child"); strings.Contains(seen, "LISTEN_") || strings.Contains(seen, "socket:") {
		t.Errorf("a child sees what systemd gave:\n%s", seen)
	}
	if err := syscall.Kill(old, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	l.ends(old)
	conn, err := net.Dial("tcp", l.http) // systemd's copy still listens
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

// Process 1 of a container says why it does not upgrade, and what to do.
func TestUpgradeRefusedInAContainer(t *testing.T) {
	p := launchInit(t, "upgrade", Config{DrainInterval: Off, UpgradeSignal: "SIGUSR1"})
	p.await("msg=running")
	p.signal(syscall.SIGUSR1)
	p.says("this is process 1 of its container, which ends with it: let the orchestrator start a container of the new image")
	p.signal(syscall.SIGTERM)
	p.wantExit(0)
}

// LastStopFile belongs to the process that serves: one that fails to take over, and one that
// was replaced, do not write it.
func TestUpgradeLastStopFile(t *testing.T) {
	cfg := quickly
	cfg.LastStopFile = filepath.Join(t.TempDir(), "last")
	l := launchLine(t, cfg, env(modeEnv, "lock"))
	read := func() string { // the phase, and when the life began
		content, err := os.ReadFile(cfg.LastStopFile)
		if err != nil {
			t.Fatal(err)
		}
		var record struct{ Life Report }
		if err := json.Unmarshal(content, &record); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(record.Life.Phase, " since ", record.Life.Phases[0].Entered)
	}
	running := read()
	l.then("cannot take two")
	if status, _ := l.upgrade(); status != http.StatusConflict {
		t.Errorf("the upgrade answers %d", status)
	}
	if now := read(); now != running {
		t.Errorf("a process that failed to take over wrote %s", now)
	}
	l.then("")
	old := l.pid()
	pid := l.mustUpgrade()
	l.ends(old)
	if now := read(); !strings.HasPrefix(now, "running since") || now == running {
		t.Errorf("after the old process has ended: %s", now)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	l.ends(pid)
	if now := read(); !strings.HasPrefix(now, "stopped since") {
		t.Errorf("at the end: %s", now)
	}
	if strings.Contains(l.out.String(), "the last stop did not go well") {
		t.Error("a new process takes the old one for one that has crashed")
	}
}
