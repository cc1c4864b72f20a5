package presence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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
		"oom":      {presence.End{Reason: "OOMKilled", ExitStatus: 137}, "running", presence.EndOOM, []string{"OOMKilled", "signal 9", "it was running"}, 137},
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
	attend(t, f, &log{seen: map[string]int{}, gone: map[string]int{}})
	for name, want := range ends {
		put(t, js, "s."+name, string(presence.Entry("s."+name, fmt.Appendf(nil,
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
