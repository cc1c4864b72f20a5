//go:build unix

package procpool_test

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
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/worker"
)

// TestStrangersCannotTakeAWorkersPlace also shows that strangers do not keep the
// worker out, whether they are many or half open.
func TestStrangersCannotTakeAWorkersPlace(t *testing.T) {
	if !isLinux() {
		t.Skip("only Linux tells which process has connected; elsewhere the mode of the folder keeps other users out")
	}
	dir := socketDir(t)
	gate := filepath.Join(t.TempDir(), "gate")
	p := startPool(t, func() *exec.Cmd {
		cmd := self("serve")
		wrapped := exec.Command("/bin/sh", "-c", `while ! test -e "$0"; do sleep 0.01; done; "$1"; exit $?`, gate, cmd.Path) // a wrapper that does not exec
		wrapped.Env = cmd.Env
		return wrapped
	}, func(c *procpool.Config) { c.MinWorkers, c.SocketDir = 1, dir })
	var socket string
	eventually(t, "there is a socket", func() bool {
		found, _ := filepath.Glob(dir + "/*.sock")
		if len(found) == 1 && !strings.Contains(found[0], "000000.sock") {
			socket = found[0]
		}
		return socket != ""
	})
	for range 30 {
		var conn net.Conn
		eventually(t, "the socket listens", func() (ok bool) { // its file is there a moment before
			var err error
			conn, err = net.Dial("unix", socket)
			return err == nil || !errors.Is(err, syscall.ECONNREFUSED)
		})
		if conn == nil {
			t.Fatal("no connection")
		}
		defer conn.Close()
		fmt.Fprintln(conn, `{"type":"ready"}`)
	}
	eventually(t, "they were refused", func() bool { return p.Stats().Strangers >= 30 })
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := do(t, p, ask{Op: "pid"}.raw()); got == strconv.Itoa(os.Getpid()) || p.Stats().Spawned != 1 {
		t.Errorf("process %s answers, %+v", got, p.Stats())
	}
	if _, err := net.Dial("unix", socket); err == nil {
		t.Error("the door is still open")
	}
}

func TestHalfOpenConnectionOfTheGroupDoesNotKeepTheWorkerOut(t *testing.T) {
	p := start(t, "probe-first", nil)
	if got := do(t, p, ask{}.raw()); got != "{}" {
		t.Errorf("got %s", got)
	}
}

func TestDaemonIsRefusedByName(t *testing.T) {
	if !isLinux() {
		t.Skip("only Linux tells which process has connected")
	}
	for timeout := time.Second; ; timeout *= 5 { // a busy machine takes longer to start it
		p := start(t, "daemon", func(c *procpool.Config) {
			c.StartTimeout = timeout
			c.BreakAfter = 1
			c.Backoff.Min = time.Minute
		})
		if _, err := p.Do(within(t), ask{}.raw()); !errors.Is(err, procpool.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		s := p.Stats()
		if s.Strangers > 0 {
			return
		}
		if timeout > 20*time.Second {
			t.Fatalf("%+v", s)
		}
	}
}

func TestSocketDirThatCannotBeUsed(t *testing.T) {
	open, file, long := filepath.Join(t.TempDir(), "open"), filepath.Join(t.TempDir(), "file"), filepath.Join(socketDir(t), strings.Repeat("d", 90))
	for _, err := range []error{os.Mkdir(open, 0o700), os.Chmod(open, 0o755), os.WriteFile(file, nil, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]string{
		open:         "mode 0755, want 0700",
		file:         "is not a folder",
		file + "/x/": "make the folder for sockets",
		long:         "set a shorter SocketDir or Name",
	} {
		p, err := procpool.New(procpool.Config{Command: func() *exec.Cmd { return self("serve") }, SocketDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Start(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %s: %v, want %q", dir, err, want)
		}
		if p.State().Status != worker.StatusFailed {
			t.Errorf("with %s the pool is %s", dir, p.State().Status)
		}
	}
}

func TestLiveSocketsOfOthersAreKept(t *testing.T) {
	dir := socketDir(t)
	live, err := net.Listen("unix", dir+"/live.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	old(t, dir+"/live.sock")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: dir + "/stale.sock", Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()
	old(t, dir+"/stale.sock")
	// A socket that was bound and on which its pool is about to listen.
	early, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(early)
	if err := syscall.Bind(early, &syscall.SockaddrUnix{Name: dir + "/early.sock"}); err != nil {
		t.Fatal(err)
	}
	p, err := procpool.New(procpool.Config{Command: func() *exec.Cmd { return self("serve") }, SocketDir: dir, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	defer p.Stop(within(t))
	left, _ := filepath.Glob(dir + "/*")
	if want := []string{dir + "/early.sock", dir + "/live.sock"}; !slices.Equal(left, want) {
		t.Errorf("left are %v, want %v", left, want)
	}
}

// old sets the time of a socket to yesterday.
func old(t *testing.T, path string) {
	t.Helper()
	yesterday := time.Now().Add(-24 * time.Hour)
	if err := os.Chtimes(path, yesterday, yesterday); err != nil {
		t.Fatal(err)
	}
}

// TestFullDiskIsAnErrorOfTheStart mounts a file system with room for one file.
func TestFullDiskIsAnErrorOfTheStart(t *testing.T) {
	dir := socketDir(t)
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "nr_inodes=2,mode=0700", "full", dir).CombinedOutput(); err != nil {
		t.Skipf("a file system cannot be mounted here: %v %s", err, out)
	}
	defer exec.Command("umount", dir).Run()
	sub := filepath.Join(dir, "sub")
	p, err := procpool.New(procpool.Config{Command: func() *exec.Cmd { return self("serve") }, SocketDir: sub, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(context.Background()); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
		_ = p.Stop(within(t))
	}
}

// TestRelativeSocketDir has workers that run in another folder.
func TestRelativeSocketDir(t *testing.T) {
	dir, elsewhere := socketDir(t), t.TempDir()
	t.Chdir(dir)
	p := startPool(t, func() *exec.Cmd {
		cmd := self("serve")
		cmd.Dir = elsewhere
		return cmd
	}, func(c *procpool.Config) { c.SocketDir, c.QueryTimeout = "sockets", patience/4 })
	do(t, p, ask{}.raw())
}
