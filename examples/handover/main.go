// Command handover is a program that works through a list and crashes on the way,
// under a supervisor that tells each instance how the previous one ended. The next
// one continues its work:
//
//	go run ./examples/handover
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

func main() {
	h, ok, err := worker.HandoverFromEnv()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "handover:", err)
		os.Exit(2)
	case ok:
		os.Exit(work(h, os.Stdout))
	}
	os.Exit(lifecycle.ExitCode(run(context.Background(), os.Stdout)))
}

// work is the child: ten items, and a crash after the fourth and the seventh.
func work(h worker.Handover, out io.Writer) int {
	if p := h.Previous; p != nil {
		fmt.Fprintf(out, "instance %d: the one before ended %s with exit code %d\n", h.Restarts+1, p.Status, p.Code)
	} else {
		fmt.Fprintln(out, "instance 1: there is no earlier instance")
	}
	// The session is the same for every instance, so the progress can be filed
	// under it.
	file := filepath.Join(os.TempDir(), "handover-"+h.Session)
	done := 0
	if text, err := os.ReadFile(file); err == nil {
		done, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	} else if !errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(out, err)
		return 2
	}
	for item := done + 1; item <= 10; item++ {
		fmt.Fprintln(out, "  item", item)
		if err := os.WriteFile(file, []byte(strconv.Itoa(item)), 0o600); err != nil {
			fmt.Fprintln(out, err)
			return 2
		}
		if item == 4 || item == 7 {
			return item // a crash
		}
	}
	_ = os.Remove(file)
	return 0
}

// run is the parent. It ends when the child has finished.
func run(ctx context.Context, out io.Writer) error {
	spec := worker.CommandSpec("work", func() *exec.Cmd {
		self, err := os.Executable()
		if err != nil {
			panic(err) // a failed start
		}
		cmd := exec.Command(self)
		cmd.Stdout, cmd.Stderr = out, out
		return cmd
	})
	spec.Restart = worker.OnFailure
	tree := worker.NewSupervisor("tree", worker.SupervisorConfig{
		Backoff:  worker.Backoff{Min: 100 * time.Millisecond},
		Children: []worker.Spec{spec},
	})
	app, err := lifecycle.New(lifecycle.Config{Name: "handover", HealthAddr: "127.0.0.1:0"},
		lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	changes := tree.Watch(256)
	defer changes.Close()
	app.Add(tree).Actor("until it is done", func() error {
		for e := range changes.All(ctx) {
			if e.Name == "work" && e.To == string(worker.StatusFinished) {
				return nil
			}
		}
		return ctx.Err()
	}, func(error) { changes.Close() })
	return app.Run(ctx)
}
