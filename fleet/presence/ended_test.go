package presence_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// A tombstone has what the platform knows, which tells memory, a panic, a signal, an
// eviction and an error apart. A platform that knows nothing, or whose answer is late or
// a panic, changes nothing.
func TestTombstoneHasWhatThePlatformKnows(t *testing.T) {
	js := nats(t)
	ends := map[string]struct {
		end   presence.End
		state string
		to    string
		says  []string
		exit  int
	}{
		"oom":      {presence.End{Reason: "OOMKilled", ExitStatus: 137, Restarts: 4}, "running", presence.EndOOM, []string{"OOMKilled", "signal 9", "restarts so far: 4", "it was running"}, 137},
		"panic":    {presence.End{Reason: "Error", ExitStatus: 2, Message: "panic: index out of range\n"}, "running", presence.EndPanicked, []string{"as of a panic", "index out of range"}, 2},
		"kill":     {presence.End{Reason: "Error", ExitStatus: 137}, "running", presence.EndKilled, []string{"signal 9 (killed)"}, 137},
		"segv":     {presence.End{Reason: "Error", ExitStatus: 139}, "running", presence.EndKilled, []string{"signal 11"}, 139},
		"cut":      {presence.End{Reason: "Error", ExitStatus: 137}, "stopping", presence.EndForced, []string{"signal 9", "after its stop began"}, 137},
		"evicted":  {presence.End{Reason: "Evicted", ExitStatus: -1, Message: "The node was low on resource: memory."}, "running", presence.EndEvicted, []string{"Evicted", "low on resource"}, 0},
		"own":      {presence.End{Reason: "Error", ExitStatus: 7}, "running", presence.EndFailed, []string{"exit status 7"}, 7},
		"quiet":    {presence.End{Reason: "Completed", ExitStatus: 0}, "running", presence.EndLost, []string{"exit status 0"}, 0},
		"unknown":  {presence.End{}, "running", presence.EndLost, []string{"not heard since"}, 0},
		"late":     {presence.End{}, "running", presence.EndLost, []string{"not heard since"}, 0},
		"panicked": {presence.End{}, "running", presence.EndLost, []string{"not heard since"}, 0},
	}
	cfg := presence.Config{TTL: time.Second, Logger: brokertest.Quiet(), Ended: func(ctx context.Context, p presence.Process) (presence.End, error) {
		name := strings.TrimPrefix(p.ID, "s.")
		switch name {
		case "unknown":
			return presence.End{}, errors.New("the kubelet has forgotten it")
		case "late":
			<-ctx.Done()
			return presence.End{}, ctx.Err()
		case "panicked":
			panic("a defect")
		}
		return ends[name].end, nil
	}}
	f := open(t, js, cfg)
	l := &log{seen: map[string]int{}, gone: map[string]int{}}
	attend(t, f, l)
	for name, want := range ends {
		announce(t, js, l, "s."+name, string(presence.Entry("s."+name, fmt.Appendf(nil,
			`{"id":"s.%s","service":"s","status":{"report":{"phase":%q,"requested":"2026-01-02T03:04:05Z"}}}`, name, want.state))))
	}
	var list []presence.Event
	brokertest.Await(t, "the tombstones", func() bool {
		list = events(t, f, presence.EventQuery{Kinds: []string{"lost"}})
		return len(list) == len(ends)
	})
	for _, e := range list {
		want := ends[strings.TrimPrefix(e.Process, "s.")]
		if e.To != want.to || e.ExitStatus != want.exit {
			t.Errorf("%s: %s, exit status %d; want %s, %d", e.Process, e.To, e.ExitStatus, want.to, want.exit)
		}
		for _, says := range want.says {
			if !strings.Contains(e.Cause, says) {
				t.Errorf("%s: %q does not say %q", e.Process, e.Cause, says)
			}
		}
	}
}

// A tombstone says how much memory the process used last, with its limit when it has one, and
// when its life began.
func TestTombstoneHasTheLastMemory(t *testing.T) {
	js := nats(t)
	f := open(t, js, presence.Config{TTL: time.Second, Logger: brokertest.Quiet()})
	l := &log{seen: map[string]int{}, gone: map[string]int{}}
	attend(t, f, l)
	want := map[string]string{
		`{"used":104857600,"limit":209715200}`: "its last known memory was 100 of 200 MiB",
		`{"used":104857600,"limit":0}`:         "its last known memory was 100 MiB",
		`{"used":199229440,"limit":209715200}`: "its last known memory was 190 of 200 MiB, so the kernel probably killed it",
	}
	n := 0
	for memory := range want {
		n++
		id := fmt.Sprint("s.m", n)
		announce(t, js, l, id, string(presence.Entry(id, fmt.Appendf(nil,
			`{"id":%q,"service":"s","memory":%s,"status":{"report":{"phase":"running","phases":[{"phase":"starting","entered":"2026-01-02T03:04:05Z"}]}}}`, id, memory))))
	}
	var list []presence.Event
	brokertest.Await(t, "the tombstones", func() bool {
		list = events(t, f, presence.EventQuery{Kinds: []string{"lost"}})
		return len(list) == len(want)
	})
	for memory, says := range want {
		if !has(list, "lost", "", "", says) {
			t.Errorf("of the memory %s the journal does not say %q:\n%s", memory, says, show(list))
		}
	}
	for _, e := range list {
		if !e.Life.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
			t.Errorf("its life began at %v", e.Life)
		}
	}
}

// The next life of a process tells how the life before ended, and when that began: so its
// tombstone finds it, however late.
func TestNextLifeTellsTheEnd(t *testing.T) {
	js := nats(t)
	f := open(t, js, presence.Config{})
	file := filepath.Join(t.TempDir(), "stop.json")
	life := func(id string, run func(context.Context) error) (began time.Time) {
		app, err := lifecycle.New(lifecycle.Config{Name: "shop", HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off, LastStopFile: file},
			lifecycle.WithLogger(brokertest.Quiet()))
		if err != nil {
			t.Fatal(err)
		}
		presence.Announce(app, js, presence.Config{ID: id, Logger: brokertest.Quiet()})
		app.Go("work", run)
		_ = app.Run(t.Context())
		return app.Report().Phases[0].Entered
	}
	panics := func(context.Context) error { panic("index out of range") }
	first := life("one", panics)
	second := life("two", func(context.Context) error { return errors.New("no route to host") })
	life("three", func(context.Context) error { return errors.New("done") })
	for id, want := range map[string]struct {
		class, cause string
		life         time.Time
	}{
		"two":   {presence.EndPanicked, "index out of range", first},
		"three": {presence.EndFailed, "no route to host", second},
	} {
		var list []presence.Event
		brokertest.Await(t, "the begin of a life", func() bool {
			list = events(t, f, presence.EventQuery{Process: id, Kinds: []string{"joined"}})
			return len(list) == 1
		})
		e := list[0]
		if e.From != want.class || !strings.Contains(e.Cause, want.cause) || !e.Life.Equal(want.life) || e.ExitStatus == 0 {
			t.Errorf("life %s tells of the one before: %+v", id, e)
		}
	}
}
