//go:build unix

package lifecycle

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// window returns a Config with a drain window that no test waits out, in which every
// signal counts.
func window() Config {
	return Config{DrainInterval: time.Hour, DrainWait: WaitAlways, SignalDebounce: Off, MinSlice: Off}
}

func TestHandlersAreInstalledBeforeAnyUserCodeOfRun(t *testing.T) {
	for _, place := range []string{"parent context", "log handler", "unit", "actor", "Start", "start condition", "probe", "listener"} {
		t.Run(place, func(t *testing.T) {
			p := launch(t, "raise", Config{DrainInterval: Off}, env(modeEnv, place))
			p.wantExit(0)
			p.says("raised", freshHook, "phase stopped", "result: <nil>")
		})
	}
}

func TestSignalDuringStartRollsBackWhatHadStarted(t *testing.T) {
	for _, c := range []struct {
		mode    string
		code    int
		reached bool // the unit after the slow one has been started
	}{
		{"start condition", 0, true}, // the App waits for start conditions once all units are started
		{"Start", ExitStuck, false},  // Start never returns, and the App abandons it
		{"probe", 0, true},
	} {
		t.Run(c.mode, func(t *testing.T) {
			p := launch(t, "rollback", Config{DrainInterval: time.Hour, ShutdownGrace: time.Minute, UnitSlice: time.Second, HookSlice: 58 * time.Second, Linger: Off}, env(modeEnv, c.mode))
			p.await("unit begins")
			p.await("slow begins")
			if c.reached {
				p.await("the unit behind has begun")
			}
			p.signal(syscall.SIGTERM)
			p.wantExit(c.code)
			p.says("unit ends: received signal: terminated", freshHook)
			if !c.reached {
				p.saysNot("the unit behind has begun")
			}
			if c.mode != "probe" { // the App runs probes once all units have started
				p.saysNot("phase running")
				p.saysNot("phase draining")
			}
		})
	}
}

// After a signal during the start there is no window to skip, so the next signal
// ends the process.
func TestSecondSignalDuringARollbackForces(t *testing.T) {
	p := launch(t, "hanging hook", window(), env(modeEnv, "start"))
	p.await("unit begins")
	p.await("slow begins")
	p.signal(syscall.SIGTERM)
	p.await("hook begins")
	p.signal(syscall.SIGTERM)
	p.wantExit(128 + int(syscall.SIGTERM))
	p.saysNot("phase draining")
	p.says("giving up on hook stuck")
}

func TestFirstSignalIsGraceful(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			p := launch(t, "service", Config{DrainInterval: 50 * time.Millisecond, DrainWait: WaitAlways})
			p.await("phase running")
			p.signal(sig)
			p.wantExit(0)
			p.says("phase draining", "window: full", "phase stopping", "unit ends: received signal: "+sig.String(), freshHook, "phase stopped")
		})
	}
}

func TestExitOnSignalExitsWith128PlusN(t *testing.T) {
	for sig, code := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130} {
		t.Run(sig.String(), func(t *testing.T) {
			p := launch(t, "service", Config{DrainInterval: Off, ExitOnSignal: true})
			p.await("phase running")
			p.signal(sig)
			p.wantExit(code)
			p.says(freshHook)
		})
	}
}

func TestSignalsInABurstAreOneRequest(t *testing.T) {
	cfg := window()
	cfg.SignalDebounce, cfg.DrainInterval = time.Hour, 200*time.Millisecond
	p := launch(t, "service", cfg)
	p.await("phase running")
	p.signal(syscall.SIGINT)
	p.signal(syscall.SIGTERM)
	p.await("phase draining")
	for range 5 {
		p.signal(syscall.SIGTERM)
		p.signal(syscall.SIGINT)
	}
	p.wantExit(0)
	p.says("window: full", freshHook)
}

func TestSecondSignalSkipsTheWindow(t *testing.T) {
	p := launch(t, "service", window())
	p.await("phase running")
	p.signal(syscall.SIGTERM)
	p.await("phase draining")
	p.signal(syscall.SIGTERM)
	p.wantExit(0)
	p.says("window: skipped by a second signal", freshHook, "phase stopped")
}

// forced takes a process through three signals, the last an interrupt.
func forced(t *testing.T, p *process) {
	t.Helper()
	p.await("phase running")
	p.signal(syscall.SIGTERM)
	p.await("phase draining")
	p.signal(syscall.SIGTERM)
	p.await("hook begins")
	p.signal(syscall.SIGINT)
	began := time.Now()
	p.wantExit(128 + int(syscall.SIGINT)) // of the last one
	t.Logf("exit %v after the third signal", time.Since(began))
}

func TestThirdSignalDumpsAndExits(t *testing.T) {
	cfg := window()
	cfg.TerminationLog = terminationFile(t)
	p := launch(t, "hanging hook", cfg)
	forced(t, p)
	const why = "svc: a further signal (interrupt) while stopping; giving up on hook stuck"
	p.says("lifecycle: "+why+"; exit status 130", "goroutine ", "lifecycle-go.hangForEver", "lifecycle-go.(*App).Run")
	if got, want := read(t, cfg.TerminationLog), strings.Replace(why, "svc: ", "svc: killed: ", 1); got != want {
		t.Errorf("the termination log is %q, want %q", got, want)
	}
}

// Five Ctrl-C a second are faster than the debounce, and end the process all the same.
func TestAnImpatientHandForces(t *testing.T) {
	cfg := window()
	cfg.SignalDebounce = 0 // its default
	p := launch(t, "hanging hook", cfg)
	p.await("phase running")
	ended := make(chan struct{})
	go func() { defer close(ended); p.wait() }()
	hand := time.NewTicker(200 * time.Millisecond)
	defer hand.Stop()
	for pressing := true; pressing; {
		_ = p.cmd.Process.Signal(os.Interrupt)
		select {
		case <-hand.C:
		case <-ended:
			pressing = false
		}
	}
	p.wantExit(128 + int(syscall.SIGINT))
}

func TestThirdSignalExitsWhileTheLogBlocks(t *testing.T) {
	p := launch(t, "hanging hook", window(), env(modeEnv, "log"))
	forced(t, p)
	p.says("lifecycle-go.hangForEver")
}

func TestThirdSignalExitsWhileStderrBlocks(t *testing.T) {
	w := fullPipeOf(t)
	p := launch(t, "hanging hook", window(), func(cmd *exec.Cmd) { cmd.Stderr = w }) // its log goes there too
	forced(t, p)
}

func TestThirdSignalExitsWhileTheAppIsLocked(t *testing.T) {
	p := launch(t, "hanging hook", window(), env(modeEnv, "lock"))
	p.await("locked")
	// The App cannot even begin to stop, so there is no phase to wait for. The test
	// sends signals again and again, since the kernel merges pending ones of one kind.
	sent, quit := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sent)
		for i := 0; ; i++ {
			_ = p.cmd.Process.Signal([]os.Signal{syscall.SIGTERM, syscall.SIGINT}[i%2])
			select {
			case <-time.After(10 * time.Millisecond):
			case <-quit:
				return
			}
		}
	}()
	s := p.wait()
	close(quit)
	<-sent
	if got := s.ExitStatus(); got != 130 && got != 143 {
		t.Errorf("the process ended with %s", p.describe())
	}
	p.says("lifecycle-go.hangForEver")
}

func TestFirstSignalDoesNotShortenADrainThatSomethingElseBegan(t *testing.T) {
	for _, by := range []string{"Stop", "parent", "fault"} {
		t.Run(by, func(t *testing.T) {
			p := launch(t, "stopped by", window(), env(modeEnv, by))
			p.await("phase draining")
			p.signal(syscall.SIGTERM)
			p.await("a signal, and the app is stopping already")
			p.saysNot("the rest of the drain window is skipped")
			p.saysNot("phase stopping")
			p.signal(syscall.SIGINT)
			p.await("the rest of the drain window is skipped")
			p.await("hook begins")
			p.signal(syscall.SIGTERM)
			p.wantExit(128 + int(syscall.SIGTERM))
		})
	}
}

func TestTwoAppsStopOnOneSignalAndDefaultsAreBack(t *testing.T) {
	for _, after := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		t.Run(after.String(), func(t *testing.T) {
			p := launch(t, "two apps", Config{DrainInterval: Off})
			p.await("both are running")
			p.signal(syscall.SIGTERM)
			p.await("both have returned")
			p.says("app one: <nil>, received signal: terminated", "app two: <nil>, received signal: terminated")
			p.signal(after)
			p.wantKilledBy(after)
		})
	}
	t.Run("broken pipe", func(t *testing.T) {
		out := newPipe(t)
		in := newPipe(t)
		p := launch(t, "two apps", Config{DrainInterval: Off}, env(modeEnv, "pipe"), func(cmd *exec.Cmd) {
			cmd.Stdin, cmd.Stdout = in.r, out.w
		})
		out.close(out.w)
		out.readUntil(t, "both are running")
		p.signal(syscall.SIGTERM)
		out.readUntil(t, "both have returned")
		out.close(out.r)
		in.close(in.w)
		p.wantKilledBy(syscall.SIGPIPE)
	})
}

func TestAnAppThatDoesNotRunTouchesNoSignal(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			p := launch(t, "not run", Config{})
			p.await("made an app that is created")
			p.signal(sig)
			p.wantKilledBy(sig)
		})
	}
}

func TestTeardownOutlivesTheReaderOfItsLog(t *testing.T) {
	for range 3 { // the scheduler decides when the App logs
		trail := filepath.Join(t.TempDir(), "trail")
		cfg := window()
		cfg.TerminationLog = terminationFile(t)
		out := newPipe(t)
		p := launch(t, "log reader", cfg, env(modeEnv, trail), func(cmd *exec.Cmd) { cmd.Stdout, cmd.Stderr = out.w, out.w })
		out.close(out.w)
		eventually(t, "phase running", func() bool { return strings.HasPrefix(read(t, cfg.TerminationLog), "svc: running") })
		p.signal(syscall.SIGTERM)
		eventually(t, "phase draining", func() bool { return strings.HasPrefix(read(t, cfg.TerminationLog), "svc: draining") })
		out.close(out.r)
		p.signal(syscall.SIGTERM)
		p.wantExit(0)
		if got, want := read(t, trail), "begins\nhook: true\nresult: <nil>\n"; got != want {
			t.Errorf("the trail is %q, want %q", got, want)
		}
	}
}

func TestBrokenPipeHasItsDefaultEffectBeforeTheStop(t *testing.T) {
	trail := filepath.Join(t.TempDir(), "trail")
	cfg := window()
	cfg.TerminationLog = terminationFile(t)
	in, out := newPipe(t), newPipe(t)
	p := launch(t, "log reader", cfg, env(modeEnv, trail), func(cmd *exec.Cmd) { cmd.Stdin, cmd.Stdout = in.r, out.w })
	out.close(out.w)
	eventually(t, "phase running", func() bool { return strings.HasPrefix(read(t, cfg.TerminationLog), "svc: running") })
	out.close(out.r)
	_, _ = in.w.WriteString("write\n")
	p.wantKilledBy(syscall.SIGPIPE)
	if got := read(t, trail); got != "begins\n" {
		t.Errorf("the trail is %q", got)
	}
}

// pipe is a pipe that a test reads and writes itself.
type pipe struct {
	r, w *os.File
	seen strings.Builder
}

func newPipe(t *testing.T) *pipe {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return &pipe{r: r, w: w}
}

func (*pipe) close(f *os.File) { _ = f.Close() }

func (p *pipe) readUntil(t *testing.T, text string) {
	t.Helper()
	_ = p.r.SetReadDeadline(time.Now().Add(patience))
	for buf := make([]byte, 4096); !strings.Contains(p.seen.String(), text); {
		n, err := p.r.Read(buf)
		p.seen.Write(buf[:n])
		if err != nil {
			t.Fatalf("the process did not say %q: %v\n%s", text, err, p.seen.String())
		}
	}
}

// fullPipeOf returns the end to write to of a pipe that is full and that the test does
// not read.
func fullPipeOf(t *testing.T) *os.File {
	t.Helper()
	p := newPipe(t)
	if err := fill(int(p.w.Fd())); err != nil {
		t.Fatal(err)
	}
	return p.w
}
