//go:build unix

package procpool_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool"
)

func Example() {
	pool, err := procpool.New(procpool.Config{
		Name:       "echo",
		Command:    func() *exec.Cmd { return self("serve") }, // exec.Command("python3", "worker.py")
		MaxWorkers: 2,
		MaxQueue:   10,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	if err := pool.Start(ctx); err != nil { // an App does this: app.Add(pool)
		fmt.Println(err)
		return
	}
	defer pool.Stop(ctx)

	result, err := pool.Do(ctx, json.RawMessage(`{"hello":"world"}`))
	fmt.Println(string(result), err)
	// Output: {"hello":"world"} <nil>
}

func ExamplePool_Submit() {
	pool, err := procpool.New(procpool.Config{Command: func() *exec.Cmd { return self("serve") }})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	if err := pool.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Stop(ctx)

	q, err := pool.Submit(ctx, json.RawMessage(`{"op":"count","n":3}`), procpool.Key("session 7"), procpool.Timeout(time.Minute))
	if err != nil {
		fmt.Println(err)
		return
	}
	for message, err := range q.Messages() {
		var crash *procpool.CrashError
		if errors.As(err, &crash) {
			fmt.Println("its worker died:", crash.Signal)
			return
		}
		fmt.Println("message", string(message))
	}
	result, err := q.Result()
	fmt.Println("result", string(result), err)
	// Output:
	// message 0
	// message 1
	// message 2
	// result 3 <nil>
}

// A caller sends an image and its parameters, and gets an image and what is to say about
// it. The handler of a worker in Go:
//
//	func thumbnail(ctx context.Context, q *child.Query) (any, error) {
//		small, size, err := shrink(q.Payload, q.Bytes)
//		return child.Data{Value: size, Bytes: small}, err
//	}
func ExamplePool_DoBytes() {
	pool, err := procpool.New(procpool.Config{Command: func() *exec.Cmd { return self("serve") }})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	if err := pool.Start(ctx); err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Stop(ctx)

	image := []byte("\x89PNG\r\n")
	size, thumbnail, err := pool.DoBytes(ctx, json.RawMessage(`{"width":200}`), image)
	fmt.Printf("%s %q %v\n", size, thumbnail, err) // this worker echoes
	// Output: {"width":200} "\x89PNG\r\n" <nil>
}
