//go:build unix

package lifecycle

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// launchReload starts the scenario with a stdin that the test writes to.
func launchReload(t *testing.T, cfg Config, change ...func(*exec.Cmd)) (*process, *pipe) {
	t.Helper()
	in := newPipe(t)
	p := launch(t, "reload", cfg, append(change, func(cmd *exec.Cmd) { cmd.Stdin = in.r })...)
	return p, in
}

func TestHangupReloads(t *testing.T) {
	p, in := launchReload(t, window())
	p.await("phase running")
	p.signal(syscall.SIGHUP)
	p.await("reload 1 begins")
	for range 5 { // while a reload runs: the App reloads at least once more, and never twice at a time
		p.signal(syscall.SIGHUP)
	}
	_, _ = in.w.WriteString("the file is broken\n")
	p.await("reload 1, behind") // a function that fails does not keep the next one from running
	p.await("reload 2 begins")
	p.await(`msg="reload failed, the old state stays" reload=config`)
	p.await("the file is broken")
	_, _ = in.w.WriteString(strings.Repeat("ok\n", 5))
	p.await("reload 2, behind")
	p.await("msg=reloaded reload=config")
	p.signal(syscall.SIGTERM)
	p.await("phase draining")
	p.signal(syscall.SIGTERM)
	p.wantExit(0) // a reload that failed does not fail the App
	p.saysNot("two reloads at a time")
	p.says(freshHook)
}

func TestNoReloadBeginsWhileDraining(t *testing.T) {
	p, _ := launchReload(t, window())
	p.await("phase running")
	p.signal(syscall.SIGTERM)
	p.await("phase draining")
	p.signal(syscall.SIGHUP) // the signal does not end the process either
	p.signal(syscall.SIGTERM)
	p.wantExit(0)
	p.says("reloads: 0", "window: skipped by a second signal")
}

// A flood of SIGHUP does not delay a request to stop.
func TestFloodOfHangupsDoesNotCrowdOutAStop(t *testing.T) {
	p, in := launchReload(t, Config{DrainInterval: Off, SignalDebounce: Off})
	_ = in.w.Close() // each reload fails at once
	p.await("phase running")
	flood := make(chan struct{})
	go func() {
		defer close(flood)
		// Send until the App stops or the process has ended: the race detector's
		// exit code does not survive signals.
		for !strings.Contains(p.out.String(), "phase draining") && p.cmd.Process.Signal(syscall.SIGHUP) == nil {
			time.Sleep(50 * time.Microsecond)
		}
	}()
	t.Cleanup(func() { _ = p.cmd.Process.Kill(); p.wait(); <-flood })
	p.await("reload 3 begins")
	p.signal(syscall.SIGTERM)
	// Once Run has returned, SIGHUP has its default effect again, and the flood
	// may still go on.
	if s := p.wait(); s.Signaled() && s.Signal() != syscall.SIGHUP || s.Exited() && s.ExitStatus() != 0 {
		t.Errorf("the process ended with %s", p.describe())
	}
}

func TestHangupWithoutReloadsHasItsDefaultEffect(t *testing.T) {
	p, _ := launchReload(t, window(), env(modeEnv, "without"))
	p.await("phase running")
	p.signal(syscall.SIGHUP)
	p.wantKilledBy(syscall.SIGHUP)
	p.saysNot("phase draining")
}

func TestHangupThatIsIgnoredStaysIgnored(t *testing.T) {
	for _, m := range []string{"with", "without"} {
		t.Run(m, func(t *testing.T) {
			p, _ := launchReload(t, Config{DrainInterval: Off}, env(modeEnv, m), func(cmd *exec.Cmd) { // as nohup does
				cmd.Args = []string{"sh", "-c", `trap "" HUP; exec "$0"`, cmd.Path}
				cmd.Path = "/bin/sh"
			})
			p.await("phase running")
			if runtime.GOOS == "linux" && !ignores(t, p.cmd.Process.Pid, syscall.SIGHUP) {
				t.Error("the process no longer ignores SIGHUP")
			}
			p.signal(syscall.SIGHUP)
			p.signal(syscall.SIGTERM)
			p.wantExit(0)
			p.says("reloads: 0", freshHook)
		})
	}
}

// ignores reads from /proc whether a process ignores a signal. To see that no
// reload happens, a test would have to wait for ever.
func ignores(t *testing.T, pid int, sig syscall.Signal) bool {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, mask, _ := strings.Cut(string(status), "SigIgn:")
	bits, err := strconv.ParseUint(strings.Fields(mask)[0], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return bits&(1<<(sig-1)) != 0
}

func TestHangupWhileItStartsReloadsOnceItRuns(t *testing.T) {
	p, in := launchReload(t, Config{DrainInterval: Off}, env(modeEnv, "slow start"))
	p.await("slow begins")
	p.signal(syscall.SIGHUP)
	p.await("hangup seen")
	p.saysNot("reload 1 begins")
	p.signal(syscall.SIGUSR1)
	p.await("reload 1 begins")
	p.await("phase running")
	_, _ = in.w.WriteString("ok\n")
	p.await("reload 1, behind")
	p.signal(syscall.SIGTERM)
	p.wantExit(0)
	p.says("reloads: 2") // two functions, once each
}
