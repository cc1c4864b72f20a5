//go:build linux

package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	return notifiedWith(t, func(string, *os.File) {})
}

// notifiedWith also calls keep with each socket that comes with a message, and its name.
func notifiedWith(t *testing.T, keep func(name string, socket *os.File)) (change func(*exec.Cmd), messages <-chan string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	all, ended := make(chan string, 1024), make(chan struct{})
	go func() {
		defer close(ended)
		for buf, rights := make([]byte, 4096), make([]byte, 64); ; {
			n, m, _, _, err := conn.ReadMsgUnix(buf, rights)
			if err != nil {
				return
			}
			text := string(buf[:n])
			if messages, _ := syscall.ParseSocketControlMessage(rights[:m]); len(messages) > 0 {
				fds, _ := syscall.ParseUnixRights(&messages[0])
				_, after, _ := strings.Cut(text, "FDNAME=")
				name, _, _ := strings.Cut(after, "\n")
				keep(name, os.NewFile(uintptr(fds[0]), name))
			}
			all <- text
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

// A service manager that keeps sockets gets each that the process has opened. The next process has
// them, also after a kill, and what it does not use any more is forgotten.
func TestServiceManagerKeepsSockets(t *testing.T) {
	var mu sync.Mutex
	kept := map[string]*os.File{}
	t.Cleanup(func() {
		for _, f := range kept {
			_ = f.Close()
		}
	})
	notify, messages := notifiedWith(t, func(name string, socket *os.File) {
		mu.Lock()
		defer mu.Unlock()
		if kept[name] != nil { // systemd does not keep a socket twice
			_ = socket.Close()
			return
		}
		kept[name] = socket
	})
	// start gives a process what is kept, as systemd does.
	start := func(addr, socket string) *process {
		return launch(t, "upgrade", Config{HealthAddr: HealthOff, DrainWait: WaitNever}, notify, func(cmd *exec.Cmd) {
			mu.Lock()
			defer mu.Unlock()
			cmd.Env = append(cmd.Env, "FDSTORE=8", "LIFECYCLE_TEST_ADDR="+addr, "LIFECYCLE_TEST_UNIX="+socket)
			if len(kept) == 0 {
				return
			}
			names := slices.Collect(maps.Keys(kept))
			for _, name := range names {
				cmd.ExtraFiles = append(cmd.ExtraFiles, kept[name])
			}
			cmd.Args = []string{"sh", "-c", `LISTEN_PID=$$ exec "$0"`, cmd.Path}
			cmd.Path = "/bin/sh"
			cmd.Env = append(cmd.Env, "LISTEN_FDS="+strconv.Itoa(len(names)), "LISTEN_FDNAMES="+strings.Join(names, ":"))
		})
	}
	addr, socket := freeAddress(t), filepath.Join(t.TempDir(), "web.sock")
	first := start(addr, socket)
	awaitMessage(t, messages, "READY=1")
	mu.Lock()
	n := len(kept)
	mu.Unlock()
	if n != 3 {
		t.Fatalf("it keeps %d sockets, want one of TCP, of unix and of UDP", n)
	}
	first.signal(syscall.SIGKILL)
	first.wait()
	waiting := make(chan error, 2)
	for _, to := range [][2]string{{"tcp", addr}, {"unix", socket}} {
		go func() { // while no process serves
			_, err := ask(to[0], to[1])
			waiting <- err
		}()
	}
	second := start(addr, socket)
	awaitMessage(t, messages, "READY=1") // so that it is not taken for the next one's
	for range 2 {
		if err := <-waiting; err != nil {
			t.Errorf("a request that came while no process served: %v", err)
		}
	}
	second.signal(syscall.SIGTERM)
	second.wantExit(0)
	moved := freeAddress(t)
	for len(messages) > 0 {
		<-messages
	}
	start(moved, socket)
	before := awaitMessage(t, messages, "READY=1")
	forgotten := "FDSTOREREMOVE=1\nFDNAME=lifecycle=" + url.QueryEscape("tcp="+addr)
	if !slices.Contains(before, forgotten) {
		t.Errorf("the messages %q do not have %q", before, forgotten)
	}
	if _, err := ask("tcp", moved); err != nil {
		t.Error(err)
	}
}
