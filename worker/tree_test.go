package worker_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/worker"
)

// diary notes what happens to children, in order.
type diary struct {
	mu   sync.Mutex
	text []string
	live map[string]int
	most int // instances of one name at once
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.text = append(d.text, fmt.Sprintf(format, args...))
}

func (d *diary) take() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	text := strings.Join(d.text, " ")
	d.text = nil
	return text
}

func (d *diary) enter(name string, by int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.live == nil {
		d.live = make(map[string]int)
	}
	d.live[name] += by
	d.most = max(d.most, d.live[name])
}

// child returns a spec. Its function runs until it is stopped, or until it
// receives from end the error to return.
func (d *diary) child(name string, end <-chan error) worker.Spec {
	fn := func(ctx context.Context) error {
		d.enter(name, 1)
		defer d.enter(name, -1)
		select {
		case <-ctx.Done():
			d.note("-%s", name)
			return ctx.Err()
		case err := <-end:
			d.note("!%s", name)
			return err
		}
	}
	return worker.Spec{Name: name, New: func(name string) (worker.Worker, error) {
		d.note("+%s", name)
		return worker.NewFunc(name, fn), nil
	}}
}

func supervise(t *testing.T, cfg worker.SupervisorConfig) *worker.Supervisor {
	t.Helper()
	s := worker.NewSupervisor("tree", cfg)
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

var everySecond = worker.Backoff{Min: time.Second, Max: time.Second, Jitter: worker.NoJitter}

func stop(t *testing.T, w worker.Worker) {
	t.Helper()
	if err := w.Stop(context.Background()); err != nil {
		t.Errorf("Stop: %v", err)
	}
}

func statuses(s worker.State) string {
	var b []string
	for _, c := range s.Children {
		b = append(b, c.Name+"="+string(c.Status))
	}
	return strings.Join(b, " ")
}

// onlyTableEdges checks that the table allows the transition of every event.
func onlyTableEdges(t *testing.T, sub *fsm.Subscription) {
	t.Helper()
	table := worker.Transitions()
	for e := range sub.All(context.Background()) {
		if e.IsGap() {
			t.Fatal("the reader missed events")
		}
		if !table.IsValidTransition(worker.Status(e.From), worker.Status(e.To)) {
			t.Errorf("%s went %s -> %s", e.Name, e.From, e.To)
		}
	}
}
