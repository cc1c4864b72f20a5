//go:build linux

package lifecycle

import (
	"context"
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
	"syscall"
	"testing"
	"time"
)

// The scenario of these tests serves on the sockets "http" and "health" of its service
// manager.
func init() {
	scenarios["activated"] = func() int {
		self := fmt.Sprint(time.Now().UnixNano()) // differs after an exec, as the process id does not
		mux := http.NewServeMux()
		mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "%d %s", os.Getpid(), self) })
		mux.HandleFunc("/child", func(w http.ResponseWriter, _ *http.Request) { // what a child sees
			out, err := exec.Command("sh", "-c", "env; ls -l /proc/self/fd; grep SigIgn /proc/self/status").CombinedOutput()
			fmt.Fprintf(w, "%s\n%v", out, err)
		})
		app := scenarioApp()
		app.Serve("http", &http.Server{Addr: "fd://http", Handler: mux})
		return runApp(context.Background(), app)
	}
}

// activate gives the process listening sockets as systemd does. The id of a child is not
// known before it starts, so a shell sets LISTEN_PID to its own id and then becomes the
// program.
func activate(t *testing.T, names ...string) (change func(*exec.Cmd), addrs []string) {
	t.Helper()
	var files []*os.File
	for range names {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		file, err := ln.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, ln.Addr().String())
		_ = ln.Close() // file is a copy that stays open, as systemd's copy does
		t.Cleanup(func() { _ = file.Close() })
		files = append(files, file)
	}
	return func(cmd *exec.Cmd) {
		cmd.Args = []string{"sh", "-c", `LISTEN_PID=$$ exec "$0"`, cmd.Path}
		cmd.Path = "/bin/sh"
		cmd.ExtraFiles = files
		cmd.Env = append(cmd.Env, "LISTEN_FDS="+strconv.Itoa(len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
	}, addrs
}

// notified listens on a NOTIFY_SOCKET and returns the messages that arrive there.
func notified(t *testing.T) (change func(*exec.Cmd), messages <-chan string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	all, ended := make(chan string, 1024), make(chan struct{})
	go func() {
		defer close(ended)
		for buf := make([]byte, 4096); ; {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			all <- string(buf[:n])
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-ended })
	return env("NOTIFY_SOCKET", path), all
}

func awaitMessage(t *testing.T, messages <-chan string, begin string) (before []string) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case m := <-messages:
			if strings.HasPrefix(m, begin) {
				return before
			}
			before = append(before, m)
		case <-late:
			t.Fatalf("no message begins with %s, only %q", begin, before)
		}
	}
}

// page gets a page on a connection of its own.
func page(addr, path string) (string, error) {
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr, Timeout: patience}).Get("http://" + addr + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func mustPage(t *testing.T, addr, path string) string {
	t.Helper()
	body, err := page(addr, path)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// The sockets of the service manager serve the App and its planes, and no child of the
// process sees them or their variables.
func TestSocketActivation(t *testing.T) {
	sockets, addrs := activate(t, "health", "http")
	p := launch(t, "activated", Config{HealthAddr: "fd://health", DrainWait: WaitNever}, sockets)
	p.await("running")
	if got := mustPage(t, addrs[1], "/"); !strings.HasPrefix(got, strconv.Itoa(p.cmd.Process.Pid)+" ") {
		t.Errorf("http answers %q, want process %d", got, p.cmd.Process.Pid)
	}
	if got := mustPage(t, addrs[0], "/readyz"); !strings.Contains(got, `"ok"`) {
		t.Errorf("/readyz answers %q", got)
	}
	seen := mustPage(t, addrs[1], "/child")
	if strings.Contains(seen, "LISTEN_") || strings.Contains(seen, "socket:") || !strings.Contains(seen, "<nil>") {
		t.Errorf("a child sees its parent's sockets or their variables:\n%s", seen)
	}
	p.signal(syscall.SIGTERM)
	p.wantExit(0)
	// The service manager's copy still listens. The next process gets the connections
	// that arrive now.
	conn, err := net.Dial("tcp", addrs[1])
	if err != nil {
		t.Errorf("after the stop: %v", err)
	} else {
		_ = conn.Close()
	}
}

// A socket that the service manager did not give fails the start, with an error that says
// what it gave.
func TestSocketActivationErrors(t *testing.T) {
	one, _ := activate(t, "web")
	two, _ := activate(t, "http", "http")
	dead := func(cmd *exec.Cmd) { one(cmd); cmd.ExtraFiles = nil }
	plain, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	for name, tt := range map[string]struct {
		change func(*exec.Cmd)
		addr   string
		want   string
	}{
		"none":            {func(*exec.Cmd) {}, "", "LISTEN_FDS is not set"},
		"of another":      {func(cmd *exec.Cmd) { cmd.Env = append(cmd.Env, "LISTEN_FDS=1", "LISTEN_PID=1") }, "", `LISTEN_PID is "1", and this process is`},
		"of another name": {one, "", "it gave web: FileDescriptorName="},
		"two of a name":   {two, "", "two have the name"},
		"used twice": {func(cmd *exec.Cmd) {
			env("LISTEN_FDNAMES", "http")(cmd)
			one(cmd)
			cmd.Env = append(cmd.Env, "LISTEN_FDNAMES=http")
		}, "fd://3", "another server has it"},
		"no such number":    {one, "fd://4", "want a number from 3 to 3"},
		"not open":          {dead, "fd://3", "descriptor 3"},
		"not a socket":      {func(cmd *exec.Cmd) { one(cmd); cmd.ExtraFiles = []*os.File{plain} }, "fd://3", "descriptor 3"},
		"names do not fit":  {func(cmd *exec.Cmd) { one(cmd); cmd.Env = append(cmd.Env, "LISTEN_FDNAMES=a:b") }, "", "want as many names"},
		"an absurd number":  {func(cmd *exec.Cmd) { one(cmd); cmd.Env = append(cmd.Env, "LISTEN_FDS=many") }, "", "want a number from 1"},
		"no such health fd": {one, "fd://health", `socket "health" of the service manager`},
	} {
		t.Run(name, func(t *testing.T) {
			p := launch(t, "activated", Config{HealthAddr: tt.addr}, tt.change)
			p.wantExit(1)
			p.says(tt.want)
		})
	}
}

// The sockets come from systemd's own tool, systemd-socket-activate.
func TestSystemdSocketActivate(t *testing.T) {
	tool, err := exec.LookPath("systemd-socket-activate")
	if err != nil {
		t.Skip("there is no systemd-socket-activate: Debian's package systemd has it")
	}
	addrs := []string{freeAddress(t), freeAddress(t)}
	p := launch(t, "activated", Config{HealthAddr: "fd://health", DrainWait: WaitNever}, func(cmd *exec.Cmd) {
		args := []string{tool, "-l", addrs[0], "-l", addrs[1], "--fdname=http:health"}
		for _, kv := range cmd.Env { // it clears the environment
			args = append(args, "-E", kv)
		}
		cmd.Args, cmd.Path = append(args, cmd.Path), tool
	})
	p.await("Listening on") // it starts the program with the first connection
	var body string
	for deadline := time.Now().Add(patience); ; {
		if body, err = page(addrs[0], "/"); err == nil || !errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(deadline) {
			break
		}
	}
	if err != nil || !strings.HasPrefix(body, strconv.Itoa(p.cmd.Process.Pid)+" ") {
		t.Errorf("http answers %q, %v", body, err)
	}
	if got := mustPage(t, addrs[1], "/livez"); !strings.Contains(got, `"ok"`) {
		t.Errorf("/livez answers %q", got)
	}
	p.signal(syscall.SIGTERM)
	p.wantExit(0)
}
