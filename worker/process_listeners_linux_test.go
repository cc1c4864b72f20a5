package worker_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

// listenHelper serves on the socket that it was given, and answers with its process id. At
// SIGTERM it ends the requests in progress.
func listenHelper(mode string) {
	if os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) || os.Getenv("LISTEN_FDS") != "1" {
		panic("LISTEN_PID=" + os.Getenv("LISTEN_PID") + " LISTEN_FDS=" + os.Getenv("LISTEN_FDS"))
	}
	ln, err := net.FileListener(os.NewFile(3, "socket"))
	if err != nil {
		panic(err)
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	switch mode {
	case "session": // a process in a session of its own accepts
		child := helperCommand("accept", nil)
		child.ExtraFiles = []*os.File{os.NewFile(3, "socket")}
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
		if err := child.Start(); err != nil {
			panic(err)
		}
		<-asked
		return
	case "hidden": // accepts as a program that has changed its user
		const setDumpable = 4 // PR_SET_DUMPABLE of prctl(2)
		if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, setDumpable, 0, 0, 0, 0, 0); errno != 0 {
			panic(errno)
		}
	case "fails":
		fmt.Fprintln(os.Stderr, "no such table")
		os.Exit(3)
	case "quits":
		os.Exit(0)
	case "deaf": // accepts nothing
		<-asked
		return
	}
	go func() {
		<-asked
		ln.Close()
	}()
	var requests sync.WaitGroup // Shutdown of net/http may miss a connection that was just accepted
	defer requests.Wait()
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		requests.Go(func() { answer(conn, mode) })
	}
}

// answer reads one request and answers with the process id.
func answer(conn net.Conn, mode string) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return
	}
	status, body := "200 OK", strconv.Itoa(os.Getpid())
	if mode == "unready" && req.URL.Path == "/ready" {
		status, body = "503 Service Unavailable", "no database"
	}
	fmt.Fprintf(conn, "HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

// served is a supervisor with one program that serves on a socket.
type served struct {
	*worker.Supervisor
	t    *testing.T
	addr string
	mode atomic.Value // of the next instance
}

func serveBySupervisor(t *testing.T, shape func(*worker.SupervisorConfig)) *served {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	s := &served{t: t, addr: ln.Addr().String()}
	s.mode.Store("")
	cfg := worker.SupervisorConfig{Children: []worker.Spec{{
		Name:    "web",
		Backoff: worker.Backoff{Min: 10 * time.Millisecond, Max: 20 * time.Millisecond},
		New: func(name string) (worker.Worker, error) {
			cmd := helperCommand("listen:"+s.mode.Load().(string), nil)
			cmd.Stderr = io.Discard // the worker's error has its last line
			return worker.NewProcess(name, cmd, worker.WithListeners(ln), worker.WithReady(s.isReady)), nil
		},
	}}, Backoff: worker.Backoff{MaxRestarts: worker.NoLimit}}
	if shape != nil {
		shape(&cfg)
	}
	s.Supervisor = worker.NewSupervisor("tree", cfg)
	s.LogTo(slog.New(slog.DiscardHandler))
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
		<-s.Gone()
	})
	s.awaitPID(0)
	return s
}

// isReady asks the process itself.
func (s *served) isReady(ctx context.Context, p *worker.Process) error {
	client := http.Client{Transport: &http.Transport{DialContext: p.DialContext, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+"/ready", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	switch {
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(body)))
	case string(body) != strconv.Itoa(p.PID()):
		s.t.Errorf("process %s has answered for %d", body, p.PID())
	}
	return nil
}

// awaitPID waits for a running child of another process id, and returns its id.
func (s *served) awaitPID(other int) int {
	s.t.Helper()
	for within := within(s.t); within.Err() == nil; time.Sleep(time.Millisecond) {
		if c, ok := s.Child("web"); ok && c.Status == worker.StatusRunning && c.PID != other {
			return c.PID
		}
	}
	s.t.Fatalf("no other process runs: %+v", s.State())
	return 0
}

// awaitBeside waits until another instance starts beside the child.
func (s *served) awaitBeside() worker.State {
	s.t.Helper()
	for within := within(s.t); within.Err() == nil; time.Sleep(time.Millisecond) {
		if c, _ := s.Child("web"); len(c.Children) == 1 && c.Children[0].PID > 0 {
			return c.Children[0]
		}
	}
	s.t.Fatalf("no instance starts: %+v", s.State())
	return worker.State{}
}

// ask sends one request on a connection of its own, and again when a kill has cut it.
func (s *served) ask(mayBeCut bool) (pid int, err error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + s.addr)
	if err != nil {
		if mayBeCut && !errors.Is(err, syscall.ECONNREFUSED) {
			return s.ask(false)
		}
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(body))
}

// load sends requests until stop is called, which returns how many were sent and fails the test
// for each that was lost.
func (s *served) load(mayBeCut bool) (stop func() int64) {
	var sent atomic.Int64
	var over atomic.Bool
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for !over.Load() {
				if _, err := s.ask(mayBeCut); err != nil {
					s.t.Errorf("request %d is lost: %v", sent.Load(), err)
				}
				sent.Add(1)
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	return func() int64 {
		over.Store(true)
		clients.Wait()
		return sent.Load()
	}
}

// The rule: a process with listeners is replaced by overlap.
func TestListenersAreReplacedByOverlap(t *testing.T) {
	s := serveBySupervisor(t, nil)
	stop := s.load(false)
	rounds := 5
	if !testing.Short() {
		rounds = 50
	}
	for i := range rounds {
		before := s.awaitPID(0)
		if err := s.RestartChild(within(t), "web"); err != nil {
			t.Fatal(err)
		}
		c, _ := s.Child("web")
		if c.PID == before || c.Status != worker.StatusRunning || c.Restarts != i+1 {
			t.Fatalf("after a restart the child is %+v, and was process %d", c, before)
		}
	}
	if sent := stop(); sent == 0 {
		t.Error("no request was sent")
	}
	if n := len(s.State().Children); n != 1 {
		t.Errorf("there are %d children", n)
	}
}

// A kill cuts what the process has in its hands, and refuses nothing: connections wait in the
// socket for the next instance.
func TestAKilledListenerRefusesNothing(t *testing.T) {
	s := serveBySupervisor(t, nil)
	stop := s.load(true)
	kills := 3
	if !testing.Short() {
		kills = 20
	}
	for range kills {
		pid := s.awaitPID(0)
		_ = syscall.Kill(pid, syscall.SIGKILL)
		s.awaitPID(pid)
	}
	stop()
}

// A new instance that fails costs nothing.
func TestANewInstanceThatFailsCostsNothing(t *testing.T) {
	for mode, says := range map[string]string{
		"fails":   "exit status 3; last line of stderr: no such table",
		"quits":   worker.ErrStartCondition.Error(),
		"unready": "did not start in time",
		"deaf":    "did not start in time",
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s := serveBySupervisor(t, nil)
			limit := func(limit time.Duration) {
				spec, _ := s.ChildSpec("web")
				spec.StartTimeout = limit
				if err := s.Replace(spec); err != nil {
					t.Error(err)
				}
			}
			before := s.awaitPID(0)
			stop := s.load(false)
			s.mode.Store(mode)
			if mode == "unready" || mode == "deaf" {
				limit(time.Second)
			}
			err := s.RestartChild(within(t), "web")
			if err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("the restart says %v, want %q", err, says)
			}
			stop()
			if c, _ := s.Child("web"); c.PID != before || c.Status != worker.StatusRunning || c.Restarts != 0 {
				t.Errorf("the child is %+v, and was process %d", c, before)
			}
			s.mode.Store("")
			limit(time.Minute)
			if err := s.RestartChild(within(t), "web"); err != nil {
				t.Error(err)
			}
		})
	}
}

// While an instance is not ready, its State says why.
func TestTheStateSaysWhyAProcessIsNotReady(t *testing.T) {
	s := serveBySupervisor(t, nil)
	s.mode.Store("unready")
	restarted := make(chan error, 1)
	go func() { restarted <- s.RestartChild(within(t), "web") }()
	const want = "it is not ready: 503 Service Unavailable: no database"
	for within := within(t); s.awaitBeside().Reason != want; time.Sleep(time.Millisecond) {
		if within.Err() != nil {
			t.Fatalf("the new instance is %+v", s.awaitBeside())
		}
	}
	if err := s.StopChild(within(t), "web"); err != nil {
		t.Error(err)
	}
	<-restarted
}

// Every verb that crosses an overlap does what it says, and leaves no process behind.
func TestVerbsCrossAnOverlap(t *testing.T) {
	for verb, cross := range map[string]func(s *served){
		"StopChild": func(s *served) {
			if err := s.StopChild(within(s.t), "web"); err != nil {
				s.t.Error(err)
			}
			if c, _ := s.Child("web"); c.Status != worker.StatusStopped {
				s.t.Errorf("the child is %s", c.Status)
			}
		},
		"Remove": func(s *served) {
			if err := s.Remove(within(s.t), "web"); err != nil {
				s.t.Error(err)
			}
			if _, ok := s.Child("web"); ok {
				s.t.Error("the child is there")
			}
		},
		"Stop": func(s *served) { _ = s.Stop(within(s.t)) },
		"kill of the old": func(s *served) {
			old := s.awaitPID(0)
			_ = syscall.Kill(old, syscall.SIGKILL)
			s.awaitPID(old)
			_ = s.StopChild(within(s.t), "web")
		},
		"kill of the new": func(s *served) {
			old, _ := s.Child("web")
			_ = syscall.Kill(s.awaitBeside().PID, syscall.SIGKILL)
			if got := s.awaitPID(0); got != old.PID {
				s.t.Errorf("process %d serves, want %d", got, old.PID)
			}
		},
		"Suspend": func(s *served) {
			// It waits until no child starts: here until the new instance is given up.
			go func() { _ = syscall.Kill(s.awaitBeside().PID, syscall.SIGKILL) }()
			if err := s.Suspend(within(s.t)); err != nil {
				s.t.Error(err)
			}
			if err := s.Resume(within(s.t)); err != nil {
				s.t.Error(err)
			}
		},
		"Add": func(s *served) {
			spec, _ := s.ChildSpec("web")
			if err := s.Add(spec); !errors.Is(err, worker.ErrNameTaken) {
				s.t.Errorf("a second child of the name: %v", err)
			}
			_ = s.StopChild(within(s.t), "web")
		},
	} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			s := serveBySupervisor(t, nil)
			s.mode.Store("deaf")
			restarted := make(chan error, 1)
			go func() { restarted <- s.RestartChild(within(t), "web") }()
			beside := s.awaitBeside()
			if beside.Status != worker.StatusStarting {
				t.Errorf("the new instance is %s", beside.Status)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if err := s.RestartChild(ctx, "web"); err == nil || s.awaitBeside().PID != beside.PID {
				t.Errorf("a call at the same time is another restart: %v", err)
			}
			s.mode.Store("")
			cross(s)
			if err := <-restarted; err == nil {
				t.Error("the restart has succeeded")
			}
			for within := within(t); runs(beside.PID); time.Sleep(time.Millisecond) {
				if within.Err() != nil {
					t.Fatal("the new instance runs on")
				}
			}
		})
	}
}

// With one-for-all, a sibling that fails ends an overlap too.
func TestASiblingThatFailsEndsAnOverlap(t *testing.T) {
	fail := make(chan struct{})
	s := serveBySupervisor(t, func(cfg *worker.SupervisorConfig) {
		cfg.Strategy = worker.OneForAll
		cfg.Children = append(cfg.Children, worker.FuncSpec("sibling", func(ctx context.Context) error {
			select {
			case <-fail:
				return errors.New("failed")
			case <-ctx.Done():
				return nil
			}
		}))
	})
	old := s.awaitPID(0)
	s.mode.Store("deaf")
	restarted := make(chan error, 1)
	go func() { restarted <- s.RestartChild(within(t), "web") }()
	s.awaitBeside()
	s.mode.Store("")
	fail <- struct{}{}
	if err := <-restarted; err == nil {
		t.Error("the restart has succeeded")
	}
	s.awaitPID(old)
}

// Random restarts, kills and stops leave one child and no process.
func TestOverlapsAtRandom(t *testing.T) {
	s := serveBySupervisor(t, nil)
	rounds := 20
	if !testing.Short() {
		rounds = 200
	}
	modes := []string{"", "", "", "fails", "quits", "deaf"}
	var verbs sync.WaitGroup
	for range 2 {
		verbs.Go(func() {
			for range rounds {
				s.mode.Store(modes[rand.N(len(modes))])
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(100*time.Millisecond))
				switch rand.N(4) {
				case 0:
					_ = s.StopChild(ctx, "web")
				case 1:
					if c, _ := s.Child("web"); c.PID > 0 && c.Status == worker.StatusRunning {
						_ = syscall.Kill(c.PID, syscall.SIGKILL)
					}
				default:
					_ = s.RestartChild(ctx, "web")
				}
				cancel()
			}
		})
	}
	verbs.Wait()
	s.mode.Store("")
	if err := s.StopChild(within(t), "web"); err != nil {
		t.Fatal(err)
	}
	if err := s.RestartChild(within(t), "web"); err != nil {
		t.Fatal(err)
	}
	if pid, err := s.ask(false); err != nil || pid != s.awaitPID(0) {
		t.Errorf("process %d answers, with %v", pid, err)
	}
	if state := s.State(); len(state.Children) != 1 || len(state.Children[0].Children) != 0 {
		t.Errorf("the tree is %+v", state)
	}
}

// Several sockets and the command's own files come in this order, and the shell leaves nothing
// but the id.
func TestListenersAreDescriptorsFromThreeOn(t *testing.T) {
	var listeners []net.Listener
	for range 2 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		listeners = append(listeners, ln)
	}
	unix, err := net.Listen("unix", t.TempDir()+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	out := newLines()
	const script = `
		echo "$0 $1 $LISTEN_FDS $LISTEN_FDNAMES $((LISTEN_PID == $$))"
		ls -l /proc/$$/fd | grep -c socket:
		readlink /proc/$$/fd/6`
	cmd := exec.Command("/bin/sh", "-c", script, "a b", "c'\"$")
	cmd.ExtraFiles = []*os.File{file}
	cmd.Env = append(os.Environ(), "LISTEN_FDS=7", "LISTEN_PID=1")
	cmd.Stdout = out
	p := start(t, cmd, worker.WithListeners(listeners...), worker.WithListeners(unix))
	<-p.Done()
	if want := "a b c'\"$ 3 unknown:unknown:unknown 1\n3\n/dev/null\n"; out.String() != want {
		t.Errorf("the program has\n%swant\n%s", out, want)
	}
}

// What cannot be given is an error of Start, and no process starts.
func TestListenersThatCannotBeGiven(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	defer ln.Close()
	for name, test := range map[string]struct {
		cmd    *exec.Cmd
		option worker.ProcessOption
		says   string
	}{
		"of package tls": {exec.Command("/bin/true"), worker.WithListeners(ln, tls.NewListener(ln, nil)), "listener 2: a *tls.listener has no descriptor"},
		"closed":         {exec.Command("/bin/true"), worker.WithListeners(closed), "listener 1: "},
		"nil":            {exec.Command("/bin/true"), worker.WithListeners(nil), "listener 1: a <nil> has no descriptor"},
		"no program":     {exec.Command("/no/such/program"), worker.WithListeners(ln), "no such file"},
		"no such name":   {exec.Command("no-such-program"), worker.WithListeners(ln), "not found"},
		"relative":       {exec.Command("./no-such-program"), worker.WithListeners(ln), "no such file"},
		"in a directory": {&exec.Cmd{Path: "./passwd", Args: []string{"./passwd"}, Dir: "/etc"}, worker.WithListeners(ln), "permission denied"},
		"not executable": {exec.Command("/etc/passwd"), worker.WithListeners(ln), "permission denied"},
		"no check":       {exec.Command("/bin/true"), worker.WithReady(nil), "WithReady: the check is nil"},
	} {
		p := worker.NewProcess("web", test.cmd, test.option)
		if err := p.Start(t.Context()); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
		if p.PID() != 0 {
			t.Errorf("%s: process %d was started", name, p.PID())
		}
	}
}

// A program that cannot be executed is an error of Start that names it, and the old instance
// runs on, also without a check of readiness.
func TestAProgramThatCannotBeExecuted(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	program := t.TempDir() + "/program"
	if err := os.WriteFile(program, []byte("#!/no/such/interpreter\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := worker.NewProcess("web", exec.Command(program), worker.WithListeners(ln))
	if err := p.Start(t.Context()); err == nil || !strings.Contains(err.Error(), program) || p.Status() != worker.StatusFailed {
		t.Errorf("Start says %v, and the worker is %+v", err, p.State())
	}
	if err := os.Chmod(program, 0o755); err != nil { // the shell finds out that it has no interpreter
		t.Fatal(err)
	}
	p = start(t, exec.Command(program), worker.WithListeners(ln))
	<-p.Done()
	if code := p.State().Exit.Code; code != 126 && code != 127 {
		t.Errorf("the worker is %+v, and its exit %+v", p.State(), p.State().Exit)
	}
}

// beAcceptor accepts connections and keeps each until the client closes it.
func beAcceptor() {
	ln, err := net.FileListener(os.NewFile(3, "socket"))
	if err != nil {
		panic(err)
	}
	for {
		conn, err := ln.Accept()
		if err != nil {
			panic(err)
		}
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			conn.Close()
		}()
	}
}

// beBlind becomes the helper "dials" without CAP_SYS_PTRACE, as in a container.
func beBlind() {
	const dropFromBounds, sysPtrace = 24, 19 // of prctl(2) and capabilities(7)
	runtime.LockOSThread()
	// Without the right to drop it, the process does not have the capability.
	_, _, _ = syscall.RawSyscall6(syscall.SYS_PRCTL, dropFromBounds, sysPtrace, 0, 0, 0, 0)
	self, _ := os.Executable()
	_ = os.Setenv(helperEnv, "dials")
	panic(syscall.Exec(self, os.Args, os.Environ()))
}

// dialHidden says whether a connection reaches a program whose files cannot be seen, and one
// beside it that accepts nothing.
func dialHidden() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	for _, mode := range []string{"hidden", "deaf"} {
		p := worker.NewProcess("web", helperCommand("listen:"+mode, nil), worker.WithListeners(ln))
		if err := p.Start(ctx); err != nil {
			panic(err)
		}
		defer func() { _ = p.Stop(ctx) }()
		_, err := p.DialContext(ctx, "tcp", ln.Addr().String())
		for mode == "hidden" && err != nil { // it may need longer than a dial waits until it accepts
			_, err = p.DialContext(ctx, "tcp", ln.Addr().String())
		}
		_, unseen := os.Readlink(fmt.Sprintf("/proc/%d/fd/3", p.PID()))
		fmt.Println(mode, errors.Is(unseen, os.ErrPermission), err)
	}
}

// DialContext reaches a program whose processes left its group or hide their files.
func TestDialReachesProcessesThatAreHardToSee(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	p := start(t, helperCommand("listen:session", nil), worker.WithListeners(ln))
	for within := within(t); ; {
		conn, err := p.DialContext(within, "tcp", ln.Addr().String())
		if err == nil {
			conn.Close()
			break
		}
		if within.Err() != nil {
			t.Fatalf("a process in a session of its own: %v", err)
		}
	}
	out := newLines()
	start(t, helperCommand("blind", out))
	if got := out.await(t, "hidden "); got != "true <nil>" {
		t.Errorf("a program that hides its files: %s", got)
	}
	if got := out.await(t, "deaf "); !strings.HasSuffix(got, "web has not accepted a connection") {
		t.Errorf("a program beside it that accepts nothing: %s", got)
	}
}

// A caller with a deadline gets the reason, and not the error of the deadline.
func TestDialSaysThatNothingWasAccepted(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	p := start(t, helperCommand("listen:deaf", nil), worker.WithListeners(ln))
	within := within(t)
	// The kernel's table of connections is long on a busy machine, and a look at it takes its time.
	for given := 500 * time.Millisecond; within.Err() == nil; given *= 2 {
		ctx, cancel := context.WithTimeout(within, given)
		_, err := p.DialContext(ctx, "tcp", ln.Addr().String())
		inTime := ctx.Err() == nil
		cancel()
		if err == nil || !strings.Contains(err.Error(), "child has not accepted a connection") {
			t.Fatalf("the dial says %v", err)
		}
		if inTime {
			return
		}
	}
	t.Error("the dial returns after the deadline")
}
