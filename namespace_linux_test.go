package lifecycle

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// launchInit starts a scenario as process 1 of a namespace of its own, as in a
// container. It skips the test where the kernel does not allow that.
func launchInit(t *testing.T, scenario string, cfg Config, change ...func(*exec.Cmd)) *process {
	t.Helper()
	p, err := tryLaunch(t, scenario, cfg, append(change, func(cmd *exec.Cmd) {
		attr := cmd.SysProcAttr
		attr.Cloneflags = syscall.CLONE_NEWPID
		if uid := os.Geteuid(); uid != 0 {
			attr.Cloneflags |= syscall.CLONE_NEWUSER
			attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
			attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
		}
	})...)
	if err != nil {
		t.Skipf("the kernel does not allow a new process namespace: %v", err)
	}
	return p
}

func TestFirstProcessOfANamespace(t *testing.T) {
	t.Run("graceful", func(t *testing.T) {
		p := launchInit(t, "service", Config{DrainInterval: Off})
		p.await("phase running")
		p.says("pid 1\n")
		p.signal(syscall.SIGTERM)
		p.wantExit(0)
		p.says("unit ends: received signal: terminated", freshHook)
	})
	t.Run("128+n", func(t *testing.T) {
		p := launchInit(t, "service", Config{DrainInterval: Off, ExitOnSignal: true})
		p.await("phase running")
		p.signal(syscall.SIGINT)
		p.wantExit(130)
	})
	t.Run("second signal", func(t *testing.T) {
		p := launchInit(t, "service", window())
		p.await("phase running")
		p.signal(syscall.SIGTERM)
		p.await("phase draining")
		p.signal(syscall.SIGTERM)
		p.wantExit(0)
		p.says("window: skipped by a second signal")
	})
	t.Run("third signal", func(t *testing.T) {
		p := launchInit(t, "hanging hook", window())
		forced(t, p)
		p.says("lifecycle-go.hangForEver")
	})
	t.Run("raised by itself", func(t *testing.T) {
		p := launchInit(t, "raise", Config{DrainInterval: Off}, env(modeEnv, "unit"))
		p.wantExit(0)
		p.says(freshHook)
	})
	t.Run("watchdog", func(t *testing.T) {
		p := launchInit(t, "stuck", Config{DrainInterval: Off, ShutdownGrace: 100 * time.Millisecond}, env(modeEnv, "predicate"))
		p.await("ready to be stuck")
		p.signal(syscall.SIGTERM)
		p.wantExit(ExitStuck)
	})
	t.Run("reload", func(t *testing.T) {
		in := newPipe(t)
		p := launchInit(t, "reload", Config{DrainInterval: Off}, func(cmd *exec.Cmd) { cmd.Stdin = in.r })
		p.await("phase running")
		p.signal(syscall.SIGHUP)
		p.await("reload 1 begins")
		_, _ = in.w.WriteString("ok\n")
		p.await("reload 1, behind")
		p.signal(syscall.SIGTERM)
		p.wantExit(0)
	})
	t.Run("exit status of a fault", func(t *testing.T) {
		p := launchInit(t, "child fails", Config{DrainInterval: Off})
		p.wantExit(42)
	})
}
