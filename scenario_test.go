//go:build unix

package lifecycle

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
)

// The scenarios. Each writes a line to stdout for each step that it reaches, and
// logs to stderr.
func init() {
	for name, program := range map[string]func() int{
		"service":        service,
		"hanging hook":   hangingHook,
		"stopped by":     stoppedBy,
		"raise":          raise,
		"rollback":       rollback,
		"two apps":       twoApps,
		"not run":        notRun,
		"reload":         reload,
		"log reader":     logReader,
		"stuck":          stuck,
		"signal context": signalContext,
		"child fails":    childFails,
	} {
		scenarios[name] = program
	}
}

// modeEnv selects a variant of a scenario.
const modeEnv = "LIFECYCLE_TEST_MODE"

func mode() string { return os.Getenv(modeEnv) }

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// scenarioApp returns the App that the test has configured. It writes each phase
// that it enters to stdout.
func scenarioApp(opts ...Option) *App {
	var cfg Config
	if err := json.Unmarshal([]byte(os.Getenv(configEnv)), &cfg); err != nil {
		panic(err)
	}
	a, err := New(cfg, append([]Option{WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil)))}, opts...)...)
	if err != nil {
		panic(err)
	}
	return a
}

// runApp runs the App and writes its result to stdout.
func runApp(ctx context.Context, a *App) int {
	stop := a.Events().Listen(64, func(e fsm.Event) {
		if e.Kind == KindApp {
			say("phase %s", e.To)
		}
	})
	err := a.Run(ctx)
	stop()
	r := a.Report()
	say("window: %s", r.Window)
	say("reloads: %d", len(r.Reloads))
	for _, u := range r.Units {
		say("unit %s", u)
	}
	say("result: %v", err)
	return ExitCode(err)
}

// untilStopped is a unit that returns when its context ends.
func untilStopped(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// sayHook is a hook that writes the state of its context.
func sayHook(ctx context.Context) error {
	_, deadline := ctx.Deadline()
	say("hook: context alive %v, deadline %v", ctx.Err() == nil, deadline)
	return nil
}

// sayUnit is a unit that writes when it begins, and when and why it ends.
func sayUnit(ctx context.Context) error {
	say("unit begins")
	<-ctx.Done()
	say("unit ends: %v", context.Cause(ctx))
	return ctx.Err()
}

const freshHook = "hook: context alive true, deadline true"

func service() int {
	say("pid %d", os.Getpid())
	a := scenarioApp().Go("work", sayUnit).OnShutdown("db", sayHook)
	return runApp(context.Background(), a)
}

// hangForEver writes words and then hangs. Tests look for its name in a dump.
func hangForEver(words string) {
	say("%s", words)
	for { // not select{}: the runtime ends a program whose goroutines all block
		time.Sleep(time.Hour)
	}
}

// hangingHook runs an App with a hook that never returns. Its mode selects what
// else fails.
func hangingHook() int {
	var opts []Option
	if mode() == "log" {
		opts = append(opts, WithLogger(slog.New(slog.NewTextHandler(fullPipe(), nil))))
	}
	a := scenarioApp(opts...).Go("work", sayUnit).OnShutdown("stuck", func(context.Context) error {
		hangForEver("hook begins")
		return nil
	})
	if mode() == "start" {
		a.Go("slow", func(ctx context.Context) error {
			say("slow begins")
			return untilStopped(ctx) // it never calls MarkStarted
		}, WithStartCondition())
	}
	if mode() == "lock" { // so that every caller of every method blocks
		a.Go("locker", func(context.Context) error {
			held := make(chan struct{})
			go func() {
				_, _ = a.phases.Wait(context.Background(), func(Phase) bool {
					close(held)
					hangForEver("the phase is held")
					return false
				})
			}()
			<-held
			a.mu.Lock()
			a.stop.mu.Lock()
			a.parts.mu.Lock()
			a.reloads.mu.Lock()
			hangForEver("locked")
			return nil
		})
	}
	return runApp(context.Background(), a)
}

// fullPipe returns a full pipe without a reader: a write to
// it blocks for ever.
func fullPipe() *os.File {
	var fds [2]int
	if err := syscall.Pipe(fds[:]); err != nil {
		panic(err)
	}
	if err := fill(fds[1]); err != nil {
		panic(err)
	}
	return os.NewFile(uintptr(fds[1]), "full pipe")
}

// fill writes to a pipe until it is full, and leaves it in blocking mode.
func fill(fd int) error {
	if err := syscall.SetNonblock(fd, true); err != nil {
		return err
	}
	for size := 4096; size > 0; {
		switch _, err := syscall.Write(fd, make([]byte, size)); {
		case errors.Is(err, syscall.EAGAIN):
			size /= 2
		case err != nil && !errors.Is(err, syscall.EINTR):
			return err
		}
	}
	return syscall.SetNonblock(fd, false)
}

// twoApps runs two Apps at the same time, and goes on after both have returned.
func twoApps() int {
	var running sync.WaitGroup
	var both sync.WaitGroup
	both.Add(2)
	for _, name := range []string{"one", "two"} {
		a := scenarioApp().Go("work", untilStopped).OnReload("config", func(context.Context) error { return nil })
		running.Go(func() {
			go func() { <-a.Reached(PhaseRunning); both.Done() }()
			err := a.Run(context.Background())
			say("app %s: %v, %s", name, err, a.Report().Reason)
		})
	}
	both.Wait()
	say("both are running")
	running.Wait()
	say("both have returned")
	if mode() == "pipe" {
		_, _ = io.ReadAll(os.Stdin) // ends when the reader of stdout is gone
		say("this has no reader")
		return 3
	}
	hangForEver("hangs")
	return 3
}

// notRun makes an App and does not run it.
func notRun() int {
	a := scenarioApp().Go("work", untilStopped).OnReload("config", func(context.Context) error { return nil })
	say("made an app that is %s", a.Phase())
	hangForEver("hangs")
	return 3
}

// reload runs an App with reload functions. Each call waits for a line from stdin.
func reload() int {
	a := scenarioApp().Go("work", sayUnit).OnShutdown("db", sayHook)
	if mode() == "without" {
		return runApp(context.Background(), a)
	}
	in := bufio.NewReader(os.Stdin)
	var count, running atomic.Int32
	a.OnReload("config", func(context.Context) error {
		n := count.Add(1)
		if running.Add(1) > 1 {
			say("two reloads at a time")
		}
		defer running.Add(-1)
		say("reload %d begins", n)
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		if line = strings.TrimSpace(line); line != "ok" {
			return errors.New(line)
		}
		return nil
	})
	if mode() == "slow start" { // until SIGUSR1
		a.Go("slow", func(ctx context.Context) error {
			begin := make(chan os.Signal, 1)
			signal.Notify(begin, syscall.SIGUSR1)
			defer signal.Stop(begin)
			say("slow begins")
			for len(a.reloads.asked) == 0 {
				time.Sleep(time.Millisecond)
			}
			say("hangup seen")
			<-begin
			MarkStarted(ctx)
			return untilStopped(ctx)
		}, WithStartCondition())
	}
	a.OnReload("behind", func(context.Context) error { say("reload %d, behind", count.Load()); return nil })
	return runApp(context.Background(), a)
}

// logReader logs to stdout. It writes its steps to the file that the mode names.
func logReader() int {
	trail, err := os.OpenFile(mode(), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	a := scenarioApp(WithLogger(slog.New(slog.NewTextHandler(os.Stdout, nil))))
	a.Go("work", untilStopped).OnShutdown("db", func(context.Context) error {
		_, err := os.Stdout.WriteString("is a reader there?\n")
		_, _ = fmt.Fprintf(trail, "hook: %v\n", errors.Is(err, syscall.EPIPE))
		return nil
	})
	a.Go("writer", func(ctx context.Context) error {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		if line == "write\n" {
			_, _ = os.Stdout.WriteString("is a reader there?\n")
			_, _ = fmt.Fprintln(trail, "the write came back")
		}
		return untilStopped(ctx)
	})
	_, _ = fmt.Fprintln(trail, "begins")
	err = a.Run(context.Background())
	_, _ = fmt.Fprintf(trail, "result: %v\n", err)
	return ExitCode(err)
}

// stuck has a part that keeps Run from returning.
func stuck() int {
	var opts []Option
	if strings.Contains(mode(), "log") {
		opts = append(opts, WithLogger(slog.New(slog.NewTextHandler(fullPipe(), nil))))
	}
	a := scenarioApp(opts...)
	switch what, _, _ := strings.Cut(mode(), "+"); what {
	case "predicate":
		a.Go("work", func(ctx context.Context) error {
			<-a.Reached(PhaseRunning)
			go func() {
				_, _ = a.phases.Wait(ctx, func(p Phase) bool {
					hangForEver("ready to be stuck")
					return false
				})
			}()
			return untilStopped(ctx)
		})
	case "HoldRestarts":
		a.Add(holder{newOwnWorker("wedged", nil)})
		a.Go("work", func(ctx context.Context) error {
			<-a.Reached(PhaseRunning)
			say("ready to be stuck")
			return untilStopped(ctx)
		})
	}
	a.OnShutdown("db", sayHook)
	err := a.Run(context.Background())
	say("it was not stuck: %v", err)
	return 3
}

type holder struct{ *ownWorker }

func (holder) HoldRestarts() { hangForEver("hangs") }

// childFails starts a child, and exits with the child's exit status.
func childFails() int {
	a := scenarioApp().OnShutdown("db", sayHook).Go("child", func(ctx context.Context) error {
		return exec.CommandContext(ctx, "/bin/sh", "-c", "exit 42").Run()
	})
	return runApp(context.Background(), a)
}

// signalContext works under a SignalContext.
func signalContext() int {
	switch mode() {
	case "ignores one":
		signal.Ignore(os.Interrupt)
	case "ignores all", "names what it ignores":
		signal.Ignore(stopSignals...)
	case "its parent ignores one":
		if !signal.Ignored(os.Interrupt) { // the program that this process runs next inherits it
			signal.Ignore(os.Interrupt)
			panic(syscall.Exec(os.Args[0], os.Args, os.Environ()))
		}
	}
	ctx, stop := SignalContext(context.Background())
	switch mode() {
	case "ignores one":
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT) // has no effect
	case "ignores all": // no signal is left, which does not mean each of them
		others := make(chan os.Signal, 1)
		signal.Notify(others, syscall.SIGUSR1)
		_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1)
		<-others
		say("left alone: %v", ctx.Err())
		stop()
		return 0
	case "names what it ignores":
		named, end := SignalContext(context.Background(), os.Interrupt)
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
		<-named.Done()
		say("cause: %v", context.Cause(named))
		end()
		stop()
		return 0
	case "stop": // stop is called twice, and then signals have their default effect
		stop()
		stop()
		say("stopped: %v", context.Cause(ctx))
		hangForEver("hangs")
	case "twice": // the pauses give a signal time to be restored, and one that kills time to do so
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
		<-ctx.Done()
		time.Sleep(20 * time.Millisecond)
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
		time.Sleep(50 * time.Millisecond)
		say("survived")
		return 0
	case "app": // a SignalContext as the parent of an App
		defer stop()
		a := scenarioApp().Go("work", sayUnit).OnShutdown("db", sayHook)
		return runApp(ctx, a)
	}
	say("ready")
	<-ctx.Done()
	say("cause: %v", context.Cause(ctx))
	hangForEver("hangs")
	return 3
}
