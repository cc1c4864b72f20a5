//go:build unix

package procpool_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

func TestWorkersInheritTheirConnection(t *testing.T) {
	for name, command := range languages(t) {
		t.Run(name, func(t *testing.T) {
			p := startPool(t, command, func(c *procpool.Config) {
				c.Inherit, c.SocketDir, c.MaxQueue = true, "/nowhere", 1
				c.Recycle.MaxQueries = 5
			})
			for range 20 {
				if got := do(t, p, []byte("[1]")); got != "[1]" {
					t.Errorf("got %s", got)
				}
			}
			q := submit(t, p, ask{Op: "count", N: 1000}.raw())
			n := 0
			for _, err := range q.Messages() {
				if err != nil {
					t.Fatal(err)
				}
				n++
			}
			if s := p.Stats(); n != 1000 || s.Crashed != 0 || s.Spawned < 2 {
				t.Errorf("%d messages, %+v", n, s)
			}
		})
	}
}

// TestWorkerOfAnotherUser runs workers as a user that cannot enter the pool's folder.
func TestWorkerOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("it needs root")
	}
	// The folder of a test binary is closed to other users.
	dir, err := os.MkdirTemp("", "other")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	example := filepath.Join(dir, "example")
	if out, err := exec.Command("go", "build", "-o", example, "./child/example").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const otherUser = 65534
	p := startPool(t, func() *exec.Cmd {
		cmd := exec.Command(example)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
		return cmd
	}, func(c *procpool.Config) { c.Inherit = true })
	pid, err := strconv.Atoi(do(t, p, ask{Op: "pid"}.raw()))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat("/proc/" + strconv.Itoa(pid)); err != nil || info.Sys().(*syscall.Stat_t).Uid != otherUser { //nolint:forcetypeassert // a unix system has it
		t.Errorf("the worker's user: %v, %v", info, err)
	}
}

// TestInheritedConnectionOfAWorkerThatFails has workers that end before they are ready,
// and after.
func TestInheritedConnectionOfAWorkerThatFails(t *testing.T) {
	n := 0
	p := startPool(t, func() *exec.Cmd {
		if n++; n < 3 {
			return self("exit:early")
		}
		return self("serve")
	}, func(c *procpool.Config) {
		c.Inherit, c.MaxQueue, c.Backoff.Min = true, 1, 1
		c.BreakAfter = procpool.Off
	})
	if _, err := p.Do(within(t), ask{Op: "exit", N: 1}.raw()); err == nil {
		t.Error("it was answered")
	}
	do(t, p, ask{}.raw())
}

// TestErrorOfAStartNamesTheDescriptor has a worker, or a wrapper, that does not know of an
// inherited connection.
func TestErrorOfAStartNamesTheDescriptor(t *testing.T) {
	p := start(t, "never-ready", func(c *procpool.Config) {
		c.Inherit, c.BreakAfter, c.StartTimeout = true, 1, 50*time.Millisecond
	})
	if _, err := p.Do(within(t), ask{}.raw()); err == nil || !strings.Contains(err.Error(), wire.EnvFD) || strings.Contains(err.Error(), wire.EnvSocket) {
		t.Errorf("got %v", err)
	}
}
