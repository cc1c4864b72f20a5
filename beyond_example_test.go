package lifecycle_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// exampleConfig returns the Config of an App without clients.
func exampleConfig() lifecycle.Config {
	return lifecycle.Config{HealthAddr: lifecycle.HealthOff, DrainWait: lifecycle.WaitAlways, DrainInterval: 20 * time.Millisecond}
}

// A consumer of a queue stops fetching when the App begins to drain. It finishes
// the items that it has and returns by itself. Other processes get the rest of
// the queue while this one still serves.
func ExampleApp_Draining() {
	queue := make(chan string, 3)
	queue <- "first"
	queue <- "second"
	app, err := lifecycle.New(exampleConfig(), lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		fmt.Println(err)
		return
	}
	handled := make(chan struct{}, 3)
	app.Go("consumer", func(context.Context) error {
		for {
			select {
			case <-app.Draining():
				fmt.Println("no longer fetching")
				return nil
			case message := <-queue:
				fmt.Println("handled", message)
				handled <- struct{}{}
			}
		}
	})
	go func() {
		<-handled
		<-handled
		app.Stop(nil) // or SIGTERM
	}()
	fmt.Println("run:", app.Run(context.Background()))
	// Output:
	// handled first
	// handled second
	// no longer fetching
	// run: <nil>
}

// mutexElector elects among the Apps of one process. A real one writes a row or
// a key with a time to live, under a name of its own.
type mutexElector struct {
	mu   *sync.Mutex
	mine bool
}

func (e *mutexElector) Acquire(context.Context) (time.Duration, error) {
	if !e.mine && !e.mu.TryLock() {
		return 0, nil // another process leads
	}
	e.mine = true
	return 15 * time.Second, nil
}

func (e *mutexElector) Release(context.Context) error {
	if e.mine {
		e.mine = false
		e.mu.Unlock()
	}
	return nil
}

func ExampleApp_Lead() {
	app, err := lifecycle.New(exampleConfig(), lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		fmt.Println(err)
		return
	}
	app.Lead("compactor", &mutexElector{mu: new(sync.Mutex)}, func(ctx context.Context) error {
		fmt.Println("leading")
		app.Stop(nil) // or SIGTERM
		<-ctx.Done()
		fmt.Println("no longer leading:", context.Cause(ctx))
		return ctx.Err()
	})
	fmt.Println("run:", app.Run(context.Background()))
	// Output:
	// leading
	// no longer leading: stop requested
	// run: <nil>
}

// An operator, or the program itself, takes the process out of rotation and
// puts it back. Nothing stops.
func ExampleApp_Suspend() {
	app, err := lifecycle.New(exampleConfig(), lifecycle.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		fmt.Println(err)
		return
	}
	app.Suspend("the index is rebuilt")
	code, body := get(app.Handler(), "/readyz")
	fmt.Println(code, strings.TrimSpace(body))
	app.Resume()
	code, body = get(app.Handler(), "/readyz")
	fmt.Println(code, strings.TrimSpace(body))
	// Output:
	// 503 {"status":"fail","checks":{"lifecycle":"suspended: the index is rebuilt"}}
	// 200 {"status":"ok","checks":{}}
}
