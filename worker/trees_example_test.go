package worker_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

func ExampleSupervisor_tree() {
	feed := func(ctx context.Context) error { // any function that returns soon after its context ends
		<-ctx.Done()
		return ctx.Err()
	}
	feeds := worker.Spec{Name: "feeds", New: func(name string) (worker.Worker, error) {
		return worker.NewSupervisor(name, worker.SupervisorConfig{
			Children: []worker.Spec{worker.FuncSpec("prices", feed), worker.FuncSpec("rates", feed)},
		}), nil
	}}
	root := worker.NewSupervisor("root", worker.SupervisorConfig{
		Strategy: worker.RestForOne, // what fails is restarted, and what was added after it
		Children: []worker.Spec{worker.FuncSpec("cache", feed), feeds},
	})
	if err := root.Start(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	_, _ = root.Await(context.Background(), func(s worker.Status) bool { return s == worker.StatusRunning })
	for _, child := range root.State().Children {
		fmt.Println(child.Name, child.Kind, child.Status)
	}
	fmt.Println(root.Stop(context.Background()))
	// Output:
	// cache func Running
	// feeds supervisor Running
	// <nil>
}

func ExampleSupervisor_StopChild() {
	idle := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	s := worker.NewSupervisor("root", worker.SupervisorConfig{
		Children: []worker.Spec{worker.FuncSpec("indexer", idle), worker.FuncSpec("mailer", idle)},
	})
	ctx := context.Background()
	show := func(err error) {
		mailer, _ := s.Child("mailer")
		fmt.Println(mailer.Status, s.Counts().Active, err)
	}
	_ = s.Start(ctx)
	_, err := s.Await(ctx, func(s worker.Status) bool { return s == worker.StatusRunning }) // it has started each child
	show(err)
	show(s.StopChild(ctx, "mailer")) // the spec and the place stay

	spec, _ := s.ChildSpec("mailer")
	spec.StopTimeout = time.Minute
	show(s.Replace(spec))               // a replacement neither starts nor stops anything
	show(s.RestartChild(ctx, "mailer")) // the new spec is in use
	show(s.Remove(ctx, "mailer"))       // the spec goes too
	_ = s.Stop(ctx)
	// Output:
	// Running 2 <nil>
	// Stopped 1 <nil>
	// Stopped 1 <nil>
	// Running 2 <nil>
	//  1 <nil>
}

func ExampleAutoShutdown() {
	work := worker.FuncSpec("import", func(context.Context) error { return nil })
	work.Restart, work.Significant = worker.OnFailure, true
	meter := worker.FuncSpec("meter", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	job := worker.NewSupervisor("job", worker.SupervisorConfig{
		AutoShutdown: worker.AnySignificant, // the meter is of no use without the import
		Children:     []worker.Spec{meter, work},
	})
	_ = job.Start(context.Background())
	<-job.Done()
	fmt.Println(job.Status(), job.Err())
	// Output: Finished <nil>
}

func ExampleBackoffError() {
	tries := 0
	fetch := worker.FuncSpec("fetch", func(context.Context) error {
		if tries++; tries == 1 {
			return errors.New("connection refused")
		}
		return worker.ErrDoNotRestart
	})
	s := worker.NewSupervisor("root", worker.SupervisorConfig{Backoff: worker.Backoff{Min: 200 * time.Millisecond}, Children: []worker.Spec{fetch}})
	events := s.Watch(100) // the events of the whole tree
	defer events.Close()
	_ = s.Start(context.Background())
	for e := range events.All(context.Background()) {
		var wait *worker.BackoffError
		switch {
		case errors.As(e.Cause, &wait):
			fmt.Println(e.Name, "waits after failure", wait.Failures, "-", wait.Err)
		case e.To == string(worker.StatusKilled):
			fmt.Println(e.Name, "did not stop in time:", e.Cause)
		case errors.Is(e.Cause, worker.ErrDoNotRestart):
			fmt.Println(e.Name, "is done:", e.Cause)
			_ = s.Stop(context.Background())
			return
		}
	}
	// Output:
	// fetch waits after failure 1 - connection refused
	// fetch is done: do not restart
}
