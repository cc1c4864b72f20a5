//go:build linux

package sdsocket

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The sockets that are open are handed over, in the order in which they were opened, under
// names that fit into one variable. The copies leave the sockets as they are.
func TestFiles(t *testing.T) {
	var s Sockets
	var lc net.ListenConfig
	var open []*Listener
	for range 3 {
		ln, err := s.Listen(t.Context(), &lc, "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		open = append(open, ln)
	}
	if err := open[1].Close(); err != nil {
		t.Fatal(err)
	}
	files, names, err := s.Files()
	if err != nil {
		t.Fatal(err)
	}
	if want := slices.Repeat([]string{"lifecycle=tcp%3D127.0.0.1%3A0"}, 2); !slices.Equal(names, want) {
		t.Errorf("the names are %q, want %q", names, want)
	}
	for i, f := range files {
		ln, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		if want := open[2*i].Addr().String(); ln.Addr().String() != want {
			t.Errorf("socket %d listens on %s, want %s", i, ln.Addr(), want)
		}
		if !s.Has(ln.Addr()) {
			t.Errorf("the sockets have not %s", ln.Addr())
		}
		_, _ = ln.Close(), f.Close()
	}
	if s.Has(open[1].Addr()) {
		t.Errorf("the sockets have %s, which is closed", open[1].Addr())
	}
	accepted := make(chan error, 1)
	go func() { // it would block for ever if the copies had made the socket a blocking one
		_, err := open[0].Accept()
		accepted <- err
	}()
	_ = open[0].Close()
	if err := <-accepted; err == nil {
		t.Error("a connection was accepted")
	}
}

// A socket that may not be used yet waits, and is shared: nothing may be changed in it.
func TestGate(t *testing.T) {
	s := Sockets{gate: make(chan struct{})}
	ln, err := s.Listen(t.Context(), new(net.ListenConfig), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	other, err := s.Listen(t.Context(), new(net.ListenConfig), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if !ln.Shared() {
		t.Error("the socket is not shared before Go")
	}
	_ = other.Close()
	if _, err := other.Accept(); err == nil {
		t.Error("a closed listener accepts")
	}
	got := make(chan error, 1)
	go func() {
		nc, err := ln.Accept()
		if err == nil {
			err = nc.Close()
		}
		got <- err
	}()
	select {
	case <-got:
		t.Error("a connection was accepted before Go")
	default:
	}
	s.Go()
	if err := <-got; err != nil {
		t.Error(err)
	}
	if ln.Shared() {
		t.Error("the socket is shared after Go")
	}
	s.HandOver()
	if !ln.Shared() {
		t.Error("the socket is not shared after HandOver")
	}
}

// The file of a unix socket that a killed process has left is replaced, and one that is in use, or
// no socket, is not. A socket whose file the program has removed is opened anew.
func TestFileOfAUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listen := func(s *Sockets) (*Listener, error) { return s.Listen(t.Context(), new(net.ListenConfig), "unix", path) }
	killed, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen(new(Sockets)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("in use: %v", err)
	}
	killed.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = killed.Close()
	next, err := listen(new(Sockets))
	if err != nil {
		t.Fatalf("left by a killed process: %v", err)
	}
	defer next.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	anew, err := listen(&Sockets{names: []string{ownName("unix", path)}, taken: []bool{false}})
	if err != nil {
		t.Fatalf("its file was removed: %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
	_ = anew.Close()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(new(Sockets)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("no socket: %v", err)
	}
}

func TestEnviron(t *testing.T) {
	env := []string{"A=1", "LISTEN_PID=1", "LISTEN_FDS=3", "LISTEN_FDNAMES=a:b:c", "LISTEN_PIDFDID=5", "LISTEN=yes"}
	if got, want := Environ(env, []string{"x", "y"}), []string{"A=1", "LISTEN=yes", "LISTEN_FDS=2", "LISTEN_FDNAMES=x:y"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := Environ(env, nil), []string{"A=1", "LISTEN=yes"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
