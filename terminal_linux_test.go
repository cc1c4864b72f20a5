package lifecycle

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// R22: what Ctrl-C at a terminal does.
func TestInterruptAtATerminal(t *testing.T) {
	const skipped = "window: Ctrl-C at a terminal"
	for _, c := range []struct {
		name     string
		how      func(*process, *terminal)
		change   func(*exec.Cmd)
		wait     DrainWait
		skipped  bool
		terminal bool
	}{
		{"Ctrl-C", pressCtrlC, nil, WaitAuto, true, true},
		{"Ctrl-C in Kubernetes", pressCtrlC, env("KUBERNETES_SERVICE_HOST", "10.0.0.1"), WaitAuto, false, true},
		{"Ctrl-C with DrainWait always", pressCtrlC, nil, WaitAlways, false, true},
		{"SIGTERM at a terminal", sendTo(syscall.SIGTERM), nil, WaitAuto, false, true},
		{"SIGINT without a terminal", sendTo(syscall.SIGINT), nil, WaitAuto, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tty := openTerminal(t)
			// Clients send requests to this process only when the health planes
			// allow it.
			cfg := Config{DrainInterval: time.Hour, DrainWait: c.wait, SignalDebounce: Off, HealthAddr: "127.0.0.1:0"}
			p := launch(t, "service", cfg, func(cmd *exec.Cmd) {
				if c.change != nil {
					c.change(cmd)
				}
				if c.terminal {
					cmd.Stdin = tty.slave
					cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
				}
			})
			p.await("phase running")
			c.how(p, tty)
			if !c.skipped {
				p.await(`msg="draining: still serving everything" window=1h0m0s`)
				p.signal(syscall.SIGTERM) // a second signal ends the window
			}
			p.wantExit(0)
			if strings.Contains(p.out.String(), skipped) != c.skipped {
				t.Errorf("the window was skipped: %v, want %v", !c.skipped, c.skipped)
			}
			p.says(freshHook)
		})
	}
}

func pressCtrlC(p *process, tty *terminal) {
	if _, err := tty.master.WriteString("\x03"); err != nil {
		p.t.Fatal(err)
	}
}

func sendTo(sig syscall.Signal) func(*process, *terminal) {
	return func(p *process, _ *terminal) { p.signal(sig) }
}

// terminal is a pseudo-terminal. Text written to master arrives at slave as if
// typed.
type terminal struct{ master, slave *os.File }

func openTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("cannot open a pseudo-terminal: %v", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	var locked int32
	if err := ioctl(master, syscall.TIOCSPTLCK, &locked); err != nil {
		t.Skipf("unlock the pseudo-terminal: %v", err)
	}
	// Open it through the master, not by its path: the path may belong to another
	// instance of devpts than the one mounted here.
	const tiocgptpeer = 0x5441
	fd, _, errno := syscall.Syscall(syscall.SYS_IOCTL, master.Fd(), tiocgptpeer, syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC)
	if errno != 0 {
		t.Skipf("open the other end of the pseudo-terminal: %v", errno)
	}
	slave := os.NewFile(fd, "pseudo-terminal")
	t.Cleanup(func() { _ = slave.Close() })
	return &terminal{master, slave}
}

func ioctl(f *os.File, request uintptr, arg *int32) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(arg))); errno != 0 {
		return errno
	}
	return nil
}
