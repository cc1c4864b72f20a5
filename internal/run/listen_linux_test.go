package run

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// restless sends requests to addr, each on a connection of its own, until stop is called. A request
// whose connection the program closes without an answer is sent again, as browsers do. stop
// returns how many were sent, sent again and lost.
func restless(addr string) (stop func() (sent, again, lost int64, first error)) {
	var sent, again, lost atomic.Int64
	var first atomic.Value
	var over atomic.Bool
	var clients sync.WaitGroup
	request := func() error {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		resp, err := client.Get("http://" + addr)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	}
	for range 8 {
		clients.Go(func() {
			for !over.Load() {
				sent.Add(1)
				err := request()
				for try := 0; err != nil && try < 3 && !errors.Is(err, syscall.ECONNREFUSED); try++ {
					again.Add(1)
					err = request()
				}
				if err != nil {
					lost.Add(1)
					first.CompareAndSwap(nil, err)
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	return func() (int64, int64, int64, error) {
		over.Store(true)
		clients.Wait()
		err, _ := first.Load().(error)
		return sent.Load(), again.Load(), lost.Load(), err
	}
}

// programID returns the process id of the program that answers.
func programID(addr string) string {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + addr)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}

// At SIGHUP the program is replaced without a gap, a new instance that fails costs nothing, and
// a program that dies is started again on the same socket.
func TestTheProgramIsReplacedOnItsSocket(t *testing.T) {
	addr, broken := freeAddr(t), filepath.Join(t.TempDir(), "broken")
	c := start(t, nil, []string{
		"-lifecycle.health-addr=127.0.0.1:0", "-lifecycle.drain-interval=off",
		"-listen=" + addr, "-ready=http://" + addr + "/", "-restart=always", "-backoff.min=10ms",
	}, "listen", broken)
	health := "http://" + c.address()
	eventually(t, "ready", func() bool { return status(health+"/readyz") == 200 })
	stop := restless(addr)
	for range 3 {
		before := programID(addr)
		c.signal(syscall.SIGHUP)
		old, err := strconv.Atoi(before)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the old process to end", func() bool { return errors.Is(syscall.Kill(old, 0), syscall.ESRCH) })
		if status(health+"/readyz") != 200 {
			t.Error("it is not ready any more")
		}
	}
	before := programID(addr)
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.signal(syscall.SIGHUP)
	c.await("the one before goes on")
	if id := programID(addr); id != before {
		t.Errorf("process %s answers, want %s", id, before)
	}
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(before)
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	eventually(t, "another process", func() bool { id := programID(addr); return id != "" && id != before })
	if sent, _, lost, err := stop(); lost > 0 || sent == 0 {
		t.Errorf("%d of %d requests are lost: %v", lost, sent, err)
	}
	c.signal(syscall.SIGTERM)
	c.wantExit(0)
}

// How an instance ends that was replaced is of no concern.
func TestAReplacedProgramMayEndBadly(t *testing.T) {
	addr := freeAddr(t)
	c := start(t, nil, []string{
		"-lifecycle.health-addr=127.0.0.1:0", "-lifecycle.drain-interval=off", "-listen=" + addr, "-ready=http://" + addr + "/,exec:/bin/true",
	}, "listen-rude", "no file")
	if line := c.await("this check asks no socket of listen"); !strings.Contains(line, "check=exec:/bin/true") {
		t.Errorf("it warns of another check: %s", line)
	}
	health := "http://" + c.address()
	eventually(t, "ready", func() bool { return status(health+"/readyz") == 200 })
	for range 2 {
		old, err := strconv.Atoi(programID(addr))
		if err != nil {
			t.Fatal(err)
		}
		c.signal(syscall.SIGHUP)
		eventually(t, "the old process to end", func() bool { return errors.Is(syscall.Kill(old, 0), syscall.ESRCH) })
		eventually(t, "the new one", func() bool { return programID(addr) != strconv.Itoa(old) })
	}
	if status(health+"/readyz") != 200 {
		t.Error("it is not ready any more")
	}
	c.signal(syscall.SIGTERM)
	c.wantExit(3)
}

// A program that is not ready in time is not waited for: without restarts the command ends.
func TestAProgramThatIsNeverReadyEndsTheCommand(t *testing.T) {
	addr := freeAddr(t)
	c := start(t, nil, []string{
		"-lifecycle.health-addr=127.0.0.1:0", "-lifecycle.drain-interval=off", "-lifecycle.upgrade-timeout=200ms",
		"-listen=" + addr, "-ready=http://" + addr + "/",
	}, "serve", freeAddr(t))
	c.await("the program was not ready within 200ms (upgrade_timeout)")
	c.wantExit(1, 128+int(syscall.SIGTERM)) // a program that has not begun to catch SIGTERM ends by it
}

// The file of a unix socket is there for as long as the program serves.
func TestUnixSocketIsReachedInTheDrain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	c := start(t, nil, []string{
		"-lifecycle.health-addr=127.0.0.1:0", "-lifecycle.drain-interval=1h", "-listen=unix:" + path,
	}, "listen", "no file")
	c.await("listen without ready")
	c.await("serving")
	health := "http://" + c.address()
	eventually(t, "ready", func() bool { return status(health+"/readyz") == 200 })
	c.signal(syscall.SIGTERM)
	c.await("draining")
	time.Sleep(200 * time.Millisecond) // in which the file would be removed
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	c.signal(syscall.SIGKILL)
	<-c.done
}

// Foreign servers that take a socket of systemd are replaced and killed under load. This is the
// long form of TestTheProgramIsReplacedOnItsSocket. CHAOS_RELOADS is how often each is replaced; it is
// killed two fifths as often.
func TestForeignProgramsAreReplaced(t *testing.T) {
	if testing.Short() {
		t.Skip("each program is replaced and killed again and again: make test-long runs it")
	}
	for _, f := range []struct{ name, command string }{
		{"Node", "node listen.js"},
		{"uvicorn", "uvicorn --fd 3 --log-level error app:asgi"},
		{"gunicorn", "gunicorn --workers 2 --threads 16 --worker-class gthread --log-level error app:wsgi"},
		{"Python's standard library", "/usr/bin/python3 listen.py"},
	} {
		program := strings.Fields(f.command)
		if _, err := exec.LookPath(program[0]); err != nil {
			t.Logf("%s is not tested: %v", f.name, err)
			continue
		}
		t.Run(f.name, func(t *testing.T) { replaceUnderLoad(t, program) })
	}
}

func replaceUnderLoad(t *testing.T, program []string) {
	reloads := 10
	if count, err := strconv.Atoi(os.Getenv("CHAOS_RELOADS")); err == nil {
		reloads = count
	}
	kills := reloads * 2 / 5
	addr, health := freeAddr(t), freeAddr(t)
	c := startContained(t, "run", append([]string{
		"-lifecycle.health-addr=" + health, "-lifecycle.drain-interval=off",
		"-listen=" + addr, "-ready=http://" + addr + "/", "-restart=always", "-backoff.min=10ms", "-backoff.max=100ms", "-backoff.max-restarts=1000", "--",
	}, program...))
	eventually(t, "ready", func() bool { return status("http://"+health+"/readyz") == 200 })
	stop := restless(addr)
	count := func() int { return restarts(health) }
	for i := range reloads {
		c.signal(syscall.SIGHUP)
		eventually(t, fmt.Sprint("replacement ", i+1), func() bool { return count() > i })
	}
	for i := range kills {
		killProgram(t, c.cmd.Process.Pid)
		eventually(t, fmt.Sprint("restart ", i+1), func() bool { return count() > reloads+i })
		eventually(t, "ready", func() bool { return status("http://"+health+"/readyz") == 200 })
	}
	sent, again, lost, err := stop()
	t.Logf("%d reloads, %d kills: %d requests, %d sent again, %d lost", reloads, kills, sent, again, lost)
	if lost > 0 || sent < 100 {
		t.Errorf("%d of %d requests are lost: %v", lost, sent, err)
	}
	c.signal(syscall.SIGTERM)
	<-c.done
}

// restarts returns how often the program was started again.
func restarts(health string) int {
	resp, err := http.Get("http://" + health + "/metrics")
	if err != nil {
		return 0
	}
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	defer resp.Body.Close()
	n := 0
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "lifecycle_unit_restarts_total{"); ok {
			_, value, _ = strings.Cut(value, "} ")
			own, _ := strconv.Atoi(value)
			n += own
		}
	}
	return n
}

// killProgram kills the newest program of lifecycle-run.
func killProgram(t *testing.T, parent int) {
	t.Helper()
	newest := 0
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent)) // the pattern is well-formed
	for _, list := range lists {
		children, _ := os.ReadFile(list) // of a thread that may have ended
		for _, text := range strings.Fields(string(children)) {
			pid, _ := strconv.Atoi(text)
			newest = max(newest, pid)
		}
	}
	if newest == 0 {
		t.Fatal("no program runs")
	}
	_ = syscall.Kill(newest, syscall.SIGKILL)
}
