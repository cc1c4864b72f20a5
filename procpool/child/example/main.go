// Command example is a worker in Go. It needs a pool. The tests run it, and so do
// these commands:
//
//	go build -o /tmp/worker ./procpool/child/example
//	go run ./procpool/cmd/conformance -slow '{"op":"sleep","seconds":30}' -- /tmp/worker
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/pleme-io/lifecycle-go/procpool/child"
)

func main() {
	if err := child.Serve(context.Background(), do, child.Concurrency(places())); err != nil {
		log.Fatal(err)
	}
}

// places is how many queries this worker takes at a time: its first argument, or one.
func places() int {
	if len(os.Args) < 2 {
		return 1
	}
	n, err := strconv.Atoi(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	return n
}

// question is what all example workers understand. They echo anything else.
type question struct {
	Op      string          `json:"op"`
	N       int             `json:"n"`
	Seconds float64         `json:"seconds"`
	Text    string          `json:"text"`
	Value   json.RawMessage `json:"value"`
}

func do(ctx context.Context, q *child.Query) (any, error) {
	var ask question
	if err := json.Unmarshal(q.Payload, &ask); err != nil {
		return child.Data{Value: q.Payload, Bytes: q.Bytes}, nil //nolint:nilerr // not an object with these fields
	}
	switch ask.Op {
	case "count": // stream 0 to n-1
		if err := q.Session("session of " + q.ID); err != nil {
			return nil, err
		}
		for i := range ask.N {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err := q.Send(i); err != nil {
				return nil, err
			}
		}
		return ask.N, nil
	case "sleep":
		select {
		case <-time.After(time.Duration(ask.Seconds * float64(time.Second))):
			return "slept", nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	case "fail":
		return nil, fmt.Errorf("failed: %s", ask.Text)
	case "panic":
		panic(ask.Text)
	case "exit":
		fmt.Fprintln(os.Stderr, "about to exit")
		os.Exit(ask.N)
	case "call": // ask the pool's process
		return q.Call(ctx, ask.Text, ask.Value)
	case "about":
		a := q.About
		return map[string]any{"metadata": a.Metadata, "traceparent": a.Traceparent, "tracestate": a.Tracestate, "deadline": !a.Deadline.IsZero()}, nil
	case "pid":
		return os.Getpid(), nil
	}
	return child.Data{Value: q.Payload, Bytes: q.Bytes}, nil
}
