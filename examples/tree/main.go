// Command tree is a supervisor of supervisors, with a function, a real child
// process and a goroutine that keeps breaking them. Run it and watch it heal:
//
//	go run ./examples/tree
//
// Every change of a status is a line. At the end, after -for or Ctrl-C, it prints
// the tree as a Mermaid flowchart.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

func main() {
	if _, ok, _ := worker.HandoverFromEnv(); ok {
		ctx, cancel := lifecycle.SignalContext(context.Background())
		<-ctx.Done() // the child: a service that will be killed
		cancel()
		return
	}
	lasts := flag.Duration("for", 12*time.Second, "how long to run; 0 means until it is stopped")
	pause := flag.Duration("every", 2*time.Second, "how often something is broken")
	flag.Parse()
	if *lasts < 0 || *pause <= 0 || flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "tree: -for is %v, want 0 or more; -every is %v, want more than 0; there are %d arguments, want none\n", *lasts, *pause, flag.NArg())
		os.Exit(2)
	}
	lifecycle.Main(func() error { return run(context.Background(), os.Stdout, *lasts, *pause) })
}

func run(ctx context.Context, out io.Writer, lasts, pause time.Duration) error {
	if lasts > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, lasts)
		defer cancel()
	}
	tree := newTree()
	stop := follow(tree, out)
	app, err := lifecycle.New(lifecycle.Config{Name: "tree", HealthAddr: "127.0.0.1:0"},
		lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	app.Add(tree).Go("vandal", func(context.Context) error { return vandalise(app.Draining(), tree, out, pause) })
	err = app.Run(ctx)
	stop()
	fmt.Fprintln(out, tree.State().Mermaid())
	return err
}

// flaky fails when it receives from this channel.
var flaky = make(chan error)

func newTree() *worker.Supervisor {
	backoff := worker.Backoff{Min: 100 * time.Millisecond, Max: time.Second, MaxRestarts: 1000}
	functions := worker.SupervisorConfig{
		Strategy: worker.OneForAll, Backoff: backoff,
		Children: []worker.Spec{
			worker.FuncSpec("cache", idle),
			worker.FuncSpec("reader", func(ctx context.Context) error {
				select {
				case err := <-flaky:
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			}),
		},
	}
	programs := worker.SupervisorConfig{
		Backoff: backoff,
		Children: []worker.Spec{worker.CommandSpec("program", func() *exec.Cmd {
			self, err := os.Executable()
			if err != nil {
				panic(err) // a failed start
			}
			return exec.Command(self)
		})},
	}
	branch := func(name string, cfg worker.SupervisorConfig) worker.Spec {
		return worker.Spec{Name: name, New: func(name string) (worker.Worker, error) {
			return worker.NewSupervisor(name, cfg), nil
		}}
	}
	return worker.NewSupervisor("tree", worker.SupervisorConfig{
		Backoff:  backoff,
		Children: []worker.Spec{branch("functions", functions), branch("programs", programs)},
	})
}

func idle(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// vandalise breaks one child after the other, until enough were restarted.
func vandalise(enough <-chan struct{}, tree *worker.Supervisor, out io.Writer, pause time.Duration) error {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
		case <-enough:
			return nil
		}
		select {
		case <-enough: // both were ready
			return nil
		default:
		}
		if n%2 == 0 {
			fmt.Fprintln(out, "--- the reader fails")
			select {
			case flaky <- errors.New("connection reset"):
			case <-enough:
			}
			continue
		}
		if pid := pidOf(tree.State(), "program"); pid != 0 {
			fmt.Fprintln(out, "--- killing the program, pid", pid)
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Signal(syscall.SIGKILL)
			}
		}
	}
}

// pidOf finds a running process in the tree.
func pidOf(s worker.State, name string) int {
	if s.Name == name && s.Status == worker.StatusRunning {
		return s.PID
	}
	for _, c := range s.Children {
		if pid := pidOf(c, name); pid != 0 {
			return pid
		}
	}
	return 0
}

// follow prints what happens in the tree, until stop is called.
func follow(tree *worker.Supervisor, out io.Writer) (stop func()) {
	changes := tree.Watch(1024)
	done := make(chan struct{})
	began := time.Now()
	go func() {
		defer close(done)
		for e := range changes.All(context.Background()) {
			why := ""
			if e.Cause != nil {
				why = ": " + e.Cause.Error()
			}
			fmt.Fprintf(out, "%6.2fs  %-10s %s -> %s%s\n", e.At.Sub(began).Seconds(), e.Name, e.From, e.To, why)
		}
	}()
	return func() {
		changes.Close()
		<-done
	}
}
