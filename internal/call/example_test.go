package call_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// A hook may run until its context ends. The error names a hook that does not
// return.
func ExampleWithin() {
	closeDB := func(context.Context) error { return fmt.Errorf("close the database: %w", io.ErrClosedPipe) }

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := call.Within(ctx, "db", call.Settle, func() error { return closeDB(ctx) })

	var left *call.AbandonedError
	fmt.Println(errors.As(err, &left), err)
	// Output: false close the database: io: read/write on closed pipe
}

// A caller may wait for a call in its own way: one channel closes at its end,
// another bounds the wait, and Abandon gives the stack of a call that does not
// return.
func ExampleStart() {
	release := make(chan struct{})
	hang := call.Start("graceful stop", func() error { <-release; return nil })

	over := make(chan struct{})
	close(over) // the time is over at once
	var left *call.AbandonedError
	if err := hang.Wait(over, time.Millisecond); errors.As(err, &left) {
		fmt.Println(left.Name, "was abandoned")
	}

	close(release)
	<-hang.Done()
	_, err := hang.Ended()
	fmt.Println("it ended later with", err)
	// Output:
	// graceful stop was abandoned
	// it ended later with <nil>
}

// A worker contains its Call. The Call's goroutine calls the worker when the
// function has ended.
func ExampleCall_Start() {
	ended := make(chan error)
	var life call.Call
	life.Start(context.Background(), "worker", "worker", func() error { panic("out of paper") }, func(err error) { ended <- err })
	fmt.Println(<-ended)
	// Output: worker: panic: out of paper
}

// A method of a foreign value that should answer at once.
func ExampleAsk() {
	var a call.Answers
	status, err := call.Ask(&a, "Status", func() string { return "running" })
	fmt.Println(status, err)
	_, err = call.Ask(&a, "Err", func() error { panic("no error") })
	fmt.Println(err)
	// Output:
	// running <nil>
	// Err: panic: no error
}
