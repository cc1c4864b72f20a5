package workers

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	aretw0 "github.com/aretw0/lifecycle"
	aretw0log "github.com/aretw0/lifecycle/pkg/core/log"
	aretw0worker "github.com/aretw0/lifecycle/pkg/core/worker"
	"github.com/thejerf/suture/v4"

	"github.com/pleme-io/lifecycle-go/worker"
)

// tree is a running supervisor of one of the peers.
type tree interface {
	// stop stops the tree and waits until all has ended.
	stop() error
}

// kind is one of the compared supervisors. Each is used as its documentation shows,
// silent, one for one, with no wait before a restart and no limit.
type kind struct {
	peer string
	// grow starts n children that run fn. They run once fn has been called for
	// each.
	grow func(n int, fn func(context.Context) error) (tree, error)
	// most is the most children that a measurement may have: with more it takes
	// minutes. 0 means without a limit.
	most int
}

var kinds = []kind{
	{peer: "lifecycle-go", grow: ours},
	{peer: "suture", grow: sutures},
	{peer: "aretw0-lifecycle", grow: aretw0s, most: aretw0Most},
}

// names are made before anything is measured, because the names of a service's workers
// are constants.
var names = func() []string {
	names := make([]string, 100_000)
	for i := range names {
		names[i] = "worker-" + strconv.Itoa(i)
	}
	return names
}()

type stopper func() error

func (s stopper) stop() error { return s() }

func ours(n int, fn func(context.Context) error) (tree, error) {
	cfg := worker.SupervisorConfig{
		Backoff:  worker.Backoff{Min: 1, Max: 1, MaxRestarts: worker.NoLimit},
		Children: make([]worker.Spec, n),
	}
	for i := range n {
		cfg.Children[i] = worker.FuncSpec(names[i], fn)
	}
	s := worker.NewSupervisor("bench", cfg)
	if err := s.Start(context.Background()); err != nil {
		return nil, err
	}
	return stopper(func() error {
		err := s.Stop(context.Background())
		<-s.Gone()
		return err
	}), nil
}

type service func(context.Context) error

func (s service) Serve(ctx context.Context) error { return s(ctx) }

func sutures(n int, fn func(context.Context) error) (tree, error) {
	s := suture.New("bench", suture.Spec{
		EventHook: func(suture.Event) {}, FailureThreshold: 1e18, FailureBackoff: 1, Timeout: time.Hour,
	})
	for range n {
		s.Add(service(fn))
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := s.ServeBackground(ctx)
	return stopper(func() error {
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}), nil
}

func init() {
	aretw0log.SetLogger(slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelError + 1})))
}

func aretw0s(n int, fn func(context.Context) error) (tree, error) {
	specs := make([]aretw0.SupervisorSpec, n)
	for i := range specs {
		specs[i] = aretw0.SupervisorSpec{Name: names[i], Factory: func() (aretw0worker.Worker, error) {
			return aretw0worker.FromFunc(names[i], fn), nil
		}}
	}
	s := aretw0.NewSupervisor("bench", aretw0.SupervisorStrategyOneForOne, specs...)
	ctx, cancel := context.WithCancel(context.Background())
	if err := s.Start(ctx); err != nil {
		cancel()
		return nil, err
	}
	return stopper(func() error {
		defer cancel()
		return s.Stop(ctx)
	}), nil
}

// crowd is n idle children.
type crowd struct {
	tree
	ended *atomic.Int64
}

// gather returns once all run.
func gather(k kind, n int) (crowd, error) {
	var begun, ended atomic.Int64
	all := make(chan struct{})
	t, err := k.grow(n, func(ctx context.Context) error {
		if begun.Add(1) == int64(n) {
			close(all)
		}
		<-ctx.Done()
		ended.Add(1)
		return nil
	})
	if err != nil {
		return crowd{}, err
	}
	<-all
	return crowd{t, &ended}, nil
}
