package diagnosis_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/internal/endclass"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/worker"
)

// People copy the next command into a shell. Names that others choose do nothing there.
func TestNamesDoNothingInAShell(t *testing.T) {
	const name = `a.$(id);b 'c'`
	const quoted = `'a.$(id);b '\''c'\'''`
	f := diagnosis.Fleet{
		Now:       now,
		Processes: []*operatorv1.Process{process(func(p *operatorv1.Process) { p.Id, p.Suspect, p.Phase = name, "forged", "" }), process(func(p *operatorv1.Process) { p.Id, p.Suspended = name, "x" })},
		Ends: []*operatorv1.Event{
			{Service: name, Process: name, Kind: "exit", To: endclass.Failed, At: before(time.Minute)},
			{Service: name, Process: name, Kind: "exit", To: endclass.OOM, At: before(time.Minute)},
			{Service: name, Process: name, Kind: "lost", To: endclass.Lost, At: before(time.Minute)},
			{Service: name, Process: name, Kind: "dropped", Count: 3, At: before(time.Minute)},
		},
		Killed:    []*operatorv1.Event{{Process: name, Name: "w", At: before(time.Minute)}},
		Workers:   []*operatorv1.Worker{{Id: name, State: "failed", DeadLetters: 1, UpdatedAt: before(time.Minute)}},
		Workflows: []*operatorv1.Definition{{Type: name, Degraded: 1}},
		Stuck:     []diagnosis.Stuck{{Type: name, ID: name}},
		Hot:       []diagnosis.Hot{{Type: name, ID: name}},
	}
	found := diagnosis.Diagnose(f)
	if len(found) < 11 {
		t.Errorf("there are %d findings", len(found))
	}
	for _, f := range found {
		rest := strings.ReplaceAll(f.GetNext(), quoted, "NAME")
		if strings.ContainsAny(rest, "$;'") || !strings.Contains(rest, "NAME") {
			t.Errorf("%s leads to %s", f.GetRule(), f.GetNext())
		}
	}
	for want, got := range map[string]string{
		"lifecyclectl describe web.1":                  diagnosis.Command("describe %s", "web.1"),
		"lifecyclectl history -- --server=evil -o":     diagnosis.Command("history %s %s", "--server=evil", "-o"),
		"lifecyclectl logs --follow -- -x":             diagnosis.Command("logs %s --follow", "-x"),
		"lifecyclectl events --service -x --kind exit": diagnosis.Command("events --service %s --kind exit", "-x"),
	} {
		if strings.ReplaceAll(got, "'", "") != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// What a process says of itself spoils no answer that others are in too: times that JSON
// does not have, and units that lie too deep in each other.
func TestStatusThatNoProcessHas(t *testing.T) {
	var units []worker.State
	for range 5000 {
		units = []worker.State{{Name: strings.Repeat("u", 50), Status: worker.StatusRunning, Children: units}}
	}
	for _, at := range []time.Time{{}, time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(math.MaxInt64>>2, 0)} {
		units[0].UpdatedAt = at
		s := lifecycle.Status{At: at, Units: units, Probes: []health.Status{{Name: "db", Since: at}}}
		s.Report.Phases = []lifecycle.PhaseTime{{Phase: "running", Entered: at}}
		p := &operatorv1.Process{StartedAt: diagnosis.Stamp(at)}
		diagnosis.FromStatus(p, s)
		p.Findings = diagnosis.Process(p, now)
		text, err := protojson.Marshal(p)
		if err != nil {
			t.Errorf("a process that says %v: %v", at, err)
		}
		if len(text) > 100_000 || !p.GetTruncated() {
			t.Errorf("5000 units in each other have %d bytes, truncated: %v", len(text), p.GetTruncated())
		}
	}
	if got := diagnosis.Stamp(now); !got.AsTime().Equal(now) {
		t.Errorf("%v becomes %v", now, got.AsTime())
	}
	if p := (&operatorv1.Process{Phase: "running", MemoryBytes: 1 << 20, MemoryLimitBytes: math.MaxInt64 &^ 4095, SeenAt: timestamppb.New(now)}); len(diagnosis.Process(p, now)) > 0 {
		t.Errorf("a process without a limit of memory: %v", diagnosis.Process(p, now))
	}
}
