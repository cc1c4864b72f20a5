//go:build linux

package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// manager stands in for systemd: it reads the messages sent to NOTIFY_SOCKET.
type manager struct {
	t    *testing.T
	name string
	news chan struct{} // holds a token when a message has come

	mu  sync.Mutex
	got []string
}

func newManager(t *testing.T, abstract bool) *manager {
	t.Helper()
	m, conn := newDeafManager(t, abstract)
	m.listen(conn)
	return m
}

// newDeafManager returns a manager that does not read before listen is called.
func newDeafManager(t *testing.T, abstract bool) (*manager, *net.UnixConn) {
	t.Helper()
	m := &manager{t: t, name: filepath.Join(t.TempDir(), "notify"), news: make(chan struct{}, 1)}
	if abstract {
		m.name = fmt.Sprintf("@lifecycle-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: m.name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", m.name)
	t.Setenv("WATCHDOG_USEC", "")
	t.Setenv("WATCHDOG_PID", "")
	return m, conn
}

func (m *manager) listen(conn *net.UnixConn) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 4096)
		for {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			m.mu.Lock()
			m.got = append(m.got, string(buf[:n]))
			m.mu.Unlock()
			select {
			case m.news <- struct{}{}:
			default:
			}
		}
	}()
	m.t.Cleanup(func() { _ = conn.Close(); <-ended })
}

// fill sends to the socket until its buffer is full.
func (m *manager) fill() {
	m.t.Helper()
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.name, Net: "unixgram"})
	if err != nil {
		m.t.Fatal(err)
	}
	defer conn.Close()
	for err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		_, err = conn.Write([]byte("FILLED=1"))
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		m.t.Fatal(err)
	}
}

func (m *manager) messages() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.got)
}

// await waits until nth messages start with begin, and returns the last of them.
func (m *manager) await(begin string, nth int) string {
	m.t.Helper()
	late := time.After(time.Minute)
	for {
		n := 0
		for _, s := range m.messages() {
			if strings.HasPrefix(s, begin) {
				if n++; n == nth {
					return s
				}
			}
		}
		select {
		case <-m.news:
		case <-late:
			m.t.Fatalf("message %q did not come %d times; these came:\n%q", begin, nth, m.messages())
		}
	}
}

func monotonicUsec(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/uptime") // the same clock, except that it counts the time the machine sleeps
	if err != nil {
		t.Skip(err)
	}
	f, err := strconv.ParseFloat(strings.Fields(string(b))[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	return int64(f * 1e6)
}

func TestNotifyTellsTheServiceManager(t *testing.T) {
	for _, abstract := range []bool{false, true} {
		t.Run(fmt.Sprintf("abstract=%v", abstract), func(t *testing.T) {
			m := newManager(t, abstract)
			r := newRig(t, lifecycle.Config{DrainInterval: 50 * time.Millisecond, DrainWait: lifecycle.WaitAlways})
			inherited := make(chan string, 1)
			r.Go("child", func(ctx context.Context) error {
				out, err := exec.Command("sh", "-c", "echo ${NOTIFY_SOCKET-none} ${WATCHDOG_USEC-none} ${WATCHDOG_PID-none}").CombinedOutput()
				inherited <- string(out)
				if err != nil {
					return err
				}
				return untilCancelled(ctx)
			})
			r.OnReload("settings", func(context.Context) error { return nil })
			over := make(chan error, 1)
			go func() { over <- r.Run(context.Background()) }()

			m.await("READY=1\nSTATUS=running", 1)
			if got := <-inherited; got != "none none none\n" {
				t.Errorf("a child sees NOTIFY_SOCKET, WATCHDOG_USEC, WATCHDOG_PID: %q", got)
			}
			if err := r.Reload(t.Context()); err != nil {
				t.Error(err)
			}
			reloading := m.await("RELOADING=1\nMONOTONIC_USEC=", 1)
			_, usec, _ := strings.Cut(strings.Split(reloading, "\n")[1], "=")
			at, err := strconv.ParseInt(usec, 10, 64)
			if now := monotonicUsec(t); err != nil || at < now-60e6 || at > now+60e6 {
				t.Errorf("MONOTONIC_USEC is %q, want it near %d", usec, now)
			}
			m.await("READY=1", 2)
			r.Stop(errBoom)
			if err := <-over; !errors.Is(err, errBoom) {
				t.Error(err)
			}
			m.await("STOPPING=1\nEXTEND_TIMEOUT_USEC=22050000", 1) // 50 ms, 20 s and the margin of 2 s
			m.await("STATUS=failed: App.Stop was called: boom", 1)
			var order []string
			for _, s := range m.messages() {
				order = append(order, strings.Split(s, "\n")[0])
			}
			want := []string{"STATUS=starting", "READY=1", "RELOADING=1", "READY=1", "STOPPING=1",
				"STATUS=draining: App.Stop was called: boom", "STATUS=stopping: App.Stop was called: boom", "STATUS=failed: App.Stop was called: boom"}
			if !slices.Equal(order, want) {
				t.Errorf("messages:\n\t%s\nwant:\n\t%s", strings.Join(order, "\n\t"), strings.Join(want, "\n\t"))
			}
		})
	}
}

// The stand-in also understands systemd's own tool, systemd-notify.
func TestNotifyStandInUnderstandsSystemdNotify(t *testing.T) {
	tool, err := exec.LookPath("systemd-notify")
	if err != nil {
		t.Skip(err)
	}
	m := newManager(t, false)
	if out, err := exec.Command(tool, "--no-block", "--ready", "--status=running").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m.await("READY=1\nSTATUS=running", 1)
}

func TestNotifyExtendsAndGivesSignsOfLifeWhileAlive(t *testing.T) {
	for name, c := range map[string]struct {
		pid  string
		want bool
	}{
		"ours": {strconv.Itoa(os.Getpid()), true}, "unset": {"", true}, "another's": {"1", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newManager(t, false)
			t.Setenv("WATCHDOG_USEC", "10000000")
			t.Setenv("WATCHDOG_PID", c.pid)
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, lifecycle.Config{DrainInterval: 12 * time.Second, DrainWait: lifecycle.WaitAlways})
				r.Go("work", untilCancelled)
				began := time.Now()
				_ = r.Registry().RegisterLiveness("self", lifecycle.ProbeFunc(func(context.Context) error {
					if time.Since(began) > 21*time.Second {
						return errBoom // liveness fails from here on
					}
					return nil
				}))
				r.after(62*time.Second, func() { r.Stop(nil) })
				if err := r.Run(context.Background()); err != nil {
					t.Error(err)
				}
			})
			m.await("STATUS=stopped", 1)
			var signs, extensions int
			for _, s := range m.messages() {
				switch {
				case s == "WATCHDOG=1":
					signs++
				case strings.HasPrefix(s, "EXTEND_TIMEOUT_USEC="):
					extensions++
				}
			}
			want := 0
			if c.want {
				want = 5 + 2 // at 0, 5, 10, 15 and 20 s; and at 65 and 70 s, draining
			}
			if signs != want {
				t.Errorf("%d signs of life, want %d: %q", signs, want, m.messages())
			}
			if extensions != 2 {
				t.Errorf("the time was extended %d times after T0, want twice: %q", extensions, m.messages())
			}
		})
	}
}

func TestNotifyFirstAppTakesTheSocket(t *testing.T) {
	m := newManager(t, false)
	for range 2 {
		r := newRig(t, lifecycle.Config{})
		r.Actor("ends", func() error { return nil }, func(error) {})
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
	}
	m.await("STATUS=stopped", 1)
	n := 0
	for _, s := range m.messages() {
		if strings.HasPrefix(s, "STATUS=stopped") {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d Apps have told the service manager that they stopped, want the first only", n)
	}
}

func TestNotifySocketThatIsNotThereChangesNothing(t *testing.T) {
	for _, name := range []string{"/nowhere/notify", "vsock:2:1234", "relative", "/" + strings.Repeat("x", 300)} {
		t.Setenv("NOTIFY_SOCKET", name)
		r := newRig(t, lifecycle.Config{})
		r.Actor("ends", func() error { return nil }, func(error) {})
		if err := r.Run(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, still := os.LookupEnv("NOTIFY_SOCKET"); still || !strings.Contains(r.log.String(), "NOTIFY_SOCKET") {
			t.Errorf("%s: the variable is still in the environment: %v; the log says\n%s", name, still, r.log.String())
		}
	}
}

func TestNotifyManagerThatDoesNotRead(t *testing.T) {
	t.Run("for a while: no message is lost", func(t *testing.T) {
		m, conn := newDeafManager(t, false)
		m.fill()
		t.Setenv("WATCHDOG_USEC", "20000") // a sign of life each 10 ms: they must not pile up
		r := newRig(t, lifecycle.Config{DrainWait: lifecycle.WaitNever})
		r.Go("work", untilCancelled)
		over := make(chan error, 1)
		go func() { over <- r.Run(context.Background()) }()
		for late := time.Now().Add(time.Minute); !strings.Contains(r.log.String(), "does not read"); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(late) {
				t.Fatalf("nothing in the log:\n%s", r.log.String())
			}
		}
		m.listen(conn)
		m.await("READY=1", 1)
		r.Stop(nil)
		if err := <-over; err != nil {
			t.Error(err)
		}
		m.await("STOPPING=1", 1)
		m.await("STATUS=stopped", 1)
		if n := strings.Count(r.log.String(), "does not read"); n > 1 {
			t.Errorf("the log says %d times that the manager does not read", n)
		}
	})
	t.Run("ever: the stop takes no longer", func(t *testing.T) {
		m, _ := newDeafManager(t, false)
		m.fill()
		t.Setenv("WATCHDOG_USEC", "20000")
		// The watchdog of the App, 27 s from T0, would end the process.
		r := newRig(t, lifecycle.Config{DrainWait: lifecycle.WaitNever})
		r.Go("work", untilCancelled)
		r.OnReload("settings", func(context.Context) error { return nil })
		r.after(500*time.Millisecond, func() {
			for range 200 {
				_ = r.Reload(context.Background())
			}
			r.Stop(nil)
		})
		if err := r.Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
