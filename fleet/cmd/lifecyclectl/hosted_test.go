package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// startHost runs a host of Starlark workers with few attempts per message. It writes the
// secret TOKEN of the tenant shop into the file token.
func startHost(tb testing.TB, js jetstream.JetStream, token string) *host.Host {
	tb.Helper()
	engines, err := engine.NewRegistry(starlark.New())
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(token, []byte("hunter2-of-the-shop\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	h, err := host.New(js, host.Config{Engines: engines, Logger: brokertest.Quiet(), RetryBase: time.Millisecond, MaxRetries: 1, Grants: map[string]host.Grant{
		"*":    {Env: map[string]string{"REGION": "north"}},
		"shop": {Secrets: map[string]string{"TOKEN": "file:" + token}},
	}})
	if err != nil {
		tb.Fatal(err)
	}
	if err := h.Start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := h.Stop(ctx); err != nil {
			tb.Error(err)
		}
	})
	return h
}

// faulty are the workers of a real host, with faults on demand:
// thousands of dead letters, a redrive that fails in the middle, a recovery that
// takes long or does not recover all.
type faulty struct {
	operator.Workers
	slow chan struct{} // a recovery waits for it; nil does not wait

	mu       sync.Mutex // guards the fields below
	letters  []*operatorv1.DeadLetter
	redriven int
	fails    int // redrives after this many fail; 0 means never
	lost     []string
}

// lose makes the recovery of these workers fail.
func (f *faulty) lose(ids ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = append(f.lost, ids...)
}

// die adds n dead letters.
func (f *faulty) die(id string, n, failAfter int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fails = failAfter
	for range n {
		f.letters = append(f.letters, &operatorv1.DeadLetter{
			Id: fmt.Sprintf("%08d", len(f.letters)+1), WorkerId: id, Topic: "orders.created", Reason: "exit status 3\x1b[2J", Attempts: 5, At: timestamppb.Now(),
		})
	}
}

func (f *faulty) DeadLetters(ctx context.Context, id, group string, after uint64, limit int) ([]*operatorv1.DeadLetter, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.letters) == 0 {
		return f.Workers.DeadLetters(ctx, id, group, after, limit)
	}
	var page []*operatorv1.DeadLetter
	for _, d := range f.letters {
		if numberOf(d) > after && len(page) < limit {
			page = append(page, d)
		}
	}
	return page, nil
}

func numberOf(d *operatorv1.DeadLetter) uint64 {
	n, err := strconv.ParseUint(d.GetId(), 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func (f *faulty) Redrive(ctx context.Context, id string, letters []uint64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails > 0 && f.redriven >= f.fails {
		return 0, operator.Errorf(connect.CodeUnavailable, operator.ReasonUnavailable, "", "the stream cannot be had now")
	}
	if len(f.letters) == 0 {
		return f.Workers.Redrive(ctx, id, letters)
	}
	before := len(f.letters)
	f.letters = slices.DeleteFunc(f.letters, func(d *operatorv1.DeadLetter) bool {
		return slices.Contains(letters, numberOf(d))
	})
	f.redriven += before - len(f.letters)
	return before - len(f.letters), nil
}

func (f *faulty) Recover(ctx context.Context, who string) (*operatorv1.RecoverWorkersResponse, error) {
	if f.slow != nil {
		<-f.slow
	}
	answer, err := f.Workers.Recover(ctx, who)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range f.lost {
		answer.Failures = append(answer.Failures, &operatorv1.RecoverWorkersResponse_Failure{Id: id, Error: "the code is gone"})
	}
	return answer, err
}
