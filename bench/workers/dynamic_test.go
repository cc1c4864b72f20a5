package workers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/thejerf/suture/v4"

	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
	"github.com/pleme-io/lifecycle-go/worker"
)

// swarm is a supervisor to which children are added one by one while it runs. A child
// that fails is restarted at once.
type swarm struct {
	tree
	add func() error
}

// swarms are the ways to have many children of one kind. The last is a Supervisor, which
// keeps an order and a Spec for each child.
var swarms = []struct {
	peer string
	open func(fn func(context.Context) error) (swarm, error)
}{
	{"lifecycle-go", func(fn func(context.Context) error) (swarm, error) {
		d := worker.NewDynamic("bench", worker.DynamicConfig{
			Template: worker.Spec{Restart: worker.OnFailure},
			Backoff:  worker.Backoff{Min: 1, Max: 1, MaxRestarts: worker.NoLimit},
		}, func(ctx context.Context, _ int) error { return fn(ctx) })
		if err := d.Start(context.Background()); err != nil {
			return swarm{}, err
		}
		return swarm{gone(&d.Supervisor), func() error { _, err := d.Add(0); return err }}, nil
	}},
	{"suture", func(fn func(context.Context) error) (swarm, error) {
		s := suture.New("bench", suture.Spec{
			EventHook: func(suture.Event) {}, FailureThreshold: 1e18, FailureBackoff: 1, Timeout: time.Hour,
		})
		ctx, cancel := context.WithCancel(context.Background())
		result := s.ServeBackground(ctx)
		stop := stopper(func() error {
			cancel()
			if err := <-result; !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		})
		return swarm{stop, func() error { s.Add(service(fn)); return nil }}, nil
	}},
	{"lifecycle-go-supervisor", func(fn func(context.Context) error) (swarm, error) {
		s := worker.NewSupervisor("bench", worker.SupervisorConfig{Backoff: worker.Backoff{Min: 1, Max: 1, MaxRestarts: worker.NoLimit}})
		if err := s.Start(context.Background()); err != nil {
			return swarm{}, err
		}
		n := 0
		return swarm{gone(s), func() error {
			spec := worker.FuncSpec(names[n], fn)
			spec.Restart = worker.OnFailure
			n++
			return s.Add(spec)
		}}, nil
	}},
}

func gone(s *worker.Supervisor) stopper {
	return func() error {
		err := s.Stop(context.Background())
		<-s.Gone()
		return err
	}
}

// storm adds n children that fail at random, one start in four, and are then idle. It
// returns once all are idle.
func storm(s swarm, n int, fn *func(context.Context) error) (starts func() int64, err error) {
	var begun, idle, ended atomic.Int64
	all := make(chan struct{})
	*fn = func(ctx context.Context) error {
		begun.Add(1)
		if rand.IntN(4) == 0 {
			return errFails
		}
		if idle.Add(1) == int64(n) {
			close(all)
		}
		<-ctx.Done()
		ended.Add(1)
		return nil
	}
	for range n {
		if err := s.add(); err != nil {
			return nil, err
		}
	}
	<-all
	return func() int64 {
		if ended.Load() != int64(n) {
			return 0
		}
		return begun.Load()
	}, nil
}

func TestSwarmsDoTheWork(t *testing.T) {
	for _, k := range swarms {
		t.Run(k.peer, func(t *testing.T) {
			if starts, _, err := weather(k.open, 1000); err != nil || starts < 1100 {
				t.Errorf("%d starts, %v", starts, err)
			}
		})
	}
}

// weather runs a storm and stops it.
func weather(open func(func(context.Context) error) (swarm, error), n int) (starts int64, stopped time.Duration, err error) {
	var fn func(context.Context) error
	s, err := open(func(ctx context.Context) error { return fn(ctx) })
	if err != nil {
		return 0, 0, err
	}
	count, err := storm(s, n, &fn)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	err = s.stop()
	return count(), time.Since(began), err
}

// BenchmarkDynamic starts children one by one, lets them fail at random, and stops them.
func BenchmarkDynamic(b *testing.B) {
	for _, n := range sizes() {
		for _, k := range swarms {
			b.Run(fmt.Sprintf("workers=%d/peer=%s", n, k.peer), func(b *testing.B) {
				b.ReportAllocs()
				report := cpu.Measure(b)
				var stops time.Duration
				for b.Loop() {
					starts, stopped, err := weather(k.open, n)
					if err != nil || starts < int64(n) {
						b.Fatalf("%d starts, %v", starts, err)
					}
					stops += stopped
				}
				report()
				b.ReportMetric(stops.Seconds()*1e3/float64(b.N), "stop-ms")
			})
		}
	}
}
