package operator

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// chatty are processes whose announcements the test makes.
type chatty struct {
	Processes
	say chan stream.Item[*operatorv1.Process]
}

func (c chatty) Watch(ctx context.Context, to Sink[*operatorv1.Process]) error {
	to.Sync()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case it := <-c.say:
			to(it)
		}
	}
}

// An announcement that says nothing new is in the lists, and no watcher gets it.
func TestWatchersGetOnlyNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		area := chatty{say: make(chan stream.Item[*operatorv1.Process])}
		s, err := New(Config{Processes: area})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(t.Context())
		r := s.processes.Read("", nil)
		defer r.Close()
		next := func() int {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			items, err := r.Next(ctx, 100)
			if err != nil {
				return 0
			}
			return len(items)
		}
		next() // the sync
		begun := time.Now()
		say := func(kind stream.Kind, change func(*operatorv1.Process)) (seen time.Time) {
			t.Helper()
			time.Sleep(5 * time.Second)
			p := &operatorv1.Process{
				Id: "web.a", Service: "web", Phase: "running", Ready: true, StartedAt: timestamppb.New(begun), SeenAt: timestamppb.Now(), SaidAt: timestamppb.Now(),
				Units:    []*operatorv1.Unit{{Name: "http", Status: "Running", Children: []*operatorv1.Unit{{Name: "a"}}}},
				Probes:   []*operatorv1.Probe{{Name: "db", State: "up"}},
				Servers:  []*operatorv1.Server{{Name: "http", InFlight: 100, Connections: 100}},
				Findings: []*operatorv1.Finding{{Rule: "memory-high", Cause: time.Now().String()}},
			}
			change(p)
			area.say <- stream.Item[*operatorv1.Process]{Kind: kind, Key: p.GetId(), Value: p}
			return p.GetSeenAt().AsTime()
		}
		same := func(*operatorv1.Process) {}
		say(stream.Put, same)
		if n := next(); n != 1 {
			t.Fatalf("%d items for a new process", n)
		}
		for what, change := range map[string]func(*operatorv1.Process){
			"nothing":              same,
			"its memory":           func(p *operatorv1.Process) { p.MemoryBytes = time.Now().UnixNano() },
			"a little of its load": func(p *operatorv1.Process) { p.Servers[0].InFlight += 20 },
		} {
			seen := say(stream.Put, change)
			if n := next(); n != 0 {
				t.Errorf("%d items when %s has changed", n, what)
			}
			list, err := s.listed(t.Context())
			if err != nil || len(list) != 1 || !list[0].GetSeenAt().AsTime().Equal(seen) {
				t.Errorf("%s: the list has %v, %v", what, list, err)
			}
		}
		for what, change := range map[string]func(*operatorv1.Process){
			"the phase":         func(p *operatorv1.Process) { p.Phase = "draining" },
			"readiness":         func(p *operatorv1.Process) { p.Ready = false },
			"a suspension":      func(p *operatorv1.Process) { p.Suspended = "new disk" },
			"a suspicion":       func(p *operatorv1.Process) { p.Suspect = "forged" },
			"a child":           func(p *operatorv1.Process) { p.Units[0].Children[0].Status = "Failed" },
			"a probe":           func(p *operatorv1.Process) { p.Probes[0].State = "down" },
			"a restart":         func(p *operatorv1.Process) { p.Restarts = []*operatorv1.Restart{{Unit: "http"}} },
			"a step":            func(p *operatorv1.Process) { p.Steps = []*operatorv1.Step{{Name: "db", Result: "running"}} },
			"a finding":         func(p *operatorv1.Process) { p.Findings = nil },
			"another life":      func(p *operatorv1.Process) { p.StartedAt = timestamppb.Now() },
			"the load":          func(p *operatorv1.Process) { p.Servers[0].InFlight = 200 },
			"the load's end":    func(p *operatorv1.Process) { p.Servers[0].Connections = 0 },
			"what it waits for": func(p *operatorv1.Process) { p.Waiting = "hook db" },
		} {
			say(stream.Put, change)
			if n := next(); n != 1 {
				t.Errorf("%d items when %s has changed", n, what)
			}
			say(stream.Put, same)
			if n := next(); n != 1 {
				t.Errorf("%d items when %s has changed back", n, what)
			}
		}
		say(stream.Gap, same)
		say(stream.Put, same)
		say(stream.Synced, same)
		if n := next(); n != 0 {
			t.Errorf("%d items after a gap in which nothing has changed", n)
		}
		say(stream.Deleted, same)
		if n := next(); n != 1 {
			t.Errorf("%d items for an end", n)
		}
		if list, err := s.listed(t.Context()); err != nil || len(list) != 0 {
			t.Errorf("after its end the list has %v, %v", list, err)
		}
	})
}
