//go:build linux

package lifecycle

import (
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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const systemd = "/lib/systemd/systemd"

// manager is a real systemd, as the manager of one user, with a service web.
type manager struct {
	t         *testing.T
	dir, unit string
}

// startSystemd starts systemd in a mount namespace in which the machine seems to be booted by it:
// without that it does not start.
func startSystemd(t *testing.T) *manager {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a mount namespace needs root")
	}
	if _, err := os.Stat(systemd); err != nil {
		t.Skip("there is no systemd on this machine:", err)
	}
	m := &manager{t: t, dir: t.TempDir()}
	units := filepath.Join(m.dir, "systemd", "user")
	m.unit = filepath.Join(units, "web.service")
	if err := os.MkdirAll(units, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("/run/systemd", 0o755); err != nil {
		t.Fatal(err)
	}
	program := "mount -t tmpfs none /run/systemd && mkdir /run/systemd/system && exec " + systemd + " --user --unit=basic.target"
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", program)
	cmd.Env = m.environ()
	out := new(strings.Builder)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it stops its units and ends
		if err := cmd.Wait(); err != nil {
			t.Logf("systemd: %v", err)
		}
		if t.Failed() {
			t.Logf("systemd:\n%s", out)
		}
	})
	eventually(t, "systemd", func() bool {
		_, err := os.Stat(filepath.Join(m.dir, "systemd", "private"))
		return err == nil
	})
	return m
}

func (m *manager) environ() []string {
	return append(os.Environ(), "XDG_RUNTIME_DIR="+m.dir, "XDG_CONFIG_HOME="+m.dir, "SYSTEMD_LOG_TARGET=console", "DBUS_SESSION_BUS_ADDRESS=")
}

// control calls systemctl.
func (m *manager) control(args ...string) string {
	m.t.Helper()
	cmd := exec.Command("systemctl", append([]string{"--user"}, args...)...)
	cmd.Env = m.environ()
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.t.Fatalf("systemctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func (m *manager) show(property string) string {
	m.t.Helper()
	return m.control("show", "web.service", "--value", "-p", property)
}

// install writes the service and tells systemd.
func (m *manager) install(addr, socket string) {
	m.t.Helper()
	cfg, err := json.Marshal(Config{Name: "web", HealthAddr: "127.0.0.1:0", DrainInterval: time.Second, UpgradeSignal: "SIGUSR2"})
	if err != nil {
		m.t.Fatal(err)
	}
	text := fmt.Sprintf(`
[Unit]
StartLimitIntervalSec=0
[Service]
Type=notify
ExecStart=%s
ExecReload=/bin/kill -USR2 $MAINPID
Restart=always
RestartSec=200ms
FileDescriptorStoreMax=16
Environment=FDSTORE=16
Environment=%s=upgrade
Environment='%s=%s'
Environment=LIFECYCLE_TEST_ADDR=%s
Environment=LIFECYCLE_TEST_UNIX=%s
`, os.Args[0], scenarioEnv, configEnv, cfg, addr, socket)
	if err := os.WriteFile(m.unit, []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.control("daemon-reload")
}

// freeAddress returns an address on which nothing listens.
func freeAddress(t *testing.T) string {
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

// ask sends one request on a connection of its own.
func ask(network, addr string) (pid string, err error) {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	}}
	resp, err := client.Get("http://web/")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// A real systemd keeps the sockets of a service: no connection is refused while the service is
// restarted, replaced by a new release, or killed, and the next process serves those that wait.
func TestSystemdKeepsTheSockets(t *testing.T) {
	if testing.Short() {
		t.Skip("TestServiceManagerKeepsSockets is the short version")
	}
	m := startSystemd(t)
	addr, socket := freeAddress(t), filepath.Join(m.dir, "web.sock")
	m.install(addr, socket)
	m.control("start", "web.service")

	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer cancel()
	var mu sync.Mutex
	answers, lost, refused := 0, 0, 0
	for _, network := range []string{"tcp", "unix"} {
		to := addr
		if network == "unix" {
			to = socket
		}
		for range 3 {
			clients.Go(func() {
				for ctx.Err() == nil {
					_, err := ask(network, to)
					mu.Lock()
					switch {
					case err == nil:
						answers++
					case errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist):
						if refused++; refused == 1 {
							t.Errorf("a connection was refused: %v", err)
						}
					default:
						lost++
						t.Logf("lost: %v", err)
					}
					mu.Unlock()
					time.Sleep(2 * time.Millisecond)
				}
			})
		}
	}
	counts := func() (a, l int) {
		mu.Lock()
		defer mu.Unlock()
		return answers, lost
	}
	// more waits for answers of a process that runs now.
	more := func(what string) {
		t.Helper()
		before, _ := counts()
		eventually(t, "answers after "+what, func() bool { now, _ := counts(); return now > before+100 })
	}
	if n := m.show("NFileDescriptorStore"); n != "4" {
		t.Errorf("systemd keeps %s sockets, want those of TCP, of unix, of UDP and of the planes", n)
	}
	more("the start")
	for range 3 {
		m.control("restart", "web.service")
		more("a restart")
	}
	before := m.show("MainPID")
	m.control("reload", "web.service")
	eventually(t, "another main process", func() bool { return m.show("MainPID") != before })
	more("an upgrade")
	if _, lost := counts(); lost > 0 {
		t.Errorf("%d requests were lost by restarts and an upgrade", lost)
	}
	for range 3 {
		before := m.show("MainPID")
		m.control("kill", "--kill-who=main", "--signal=KILL", "web.service")
		eventually(t, "the next process", func() bool { now := m.show("MainPID"); return now != before && now != "0" })
		more("a kill")
	}
	cancel()
	clients.Wait()
	a, l := counts()
	t.Logf("%d answers, %d lost by three kills, %d refused", a, l, refused)

	moved := freeAddress(t)
	m.install(moved, socket)
	m.control("restart", "web.service")
	if _, err := ask("tcp", moved); err != nil {
		t.Errorf("the new address: %v", err)
	}
	eventually(t, "the end of the old socket", func() bool {
		_, err := net.Dial("tcp", addr)
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	if n := m.show("NFileDescriptorStore"); n != "4" {
		t.Errorf("systemd keeps %s sockets after an address has changed", n)
	}
	m.control("stop", "web.service")
	eventually(t, "the end of the service", func() bool {
		_, err := net.Dial("tcp", moved)
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}
