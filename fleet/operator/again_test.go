package operator

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/worker"
)

// announcement is what an idle process announces at a time.
func announcement(at time.Time) presence.Process {
	begun := at.Truncate(time.Hour)
	return presence.Process{
		ID: "web.a", Service: "web", AnnouncedAt: at, Host: "node-1", StartedAt: begun, SeenAt: at, Ready: true, Memory: presence.Memory{Used: at.Unix()},
		Status: lifecycle.Status{
			At: at, Units: []worker.State{{Name: "http", Kind: "func", Status: worker.StatusRunning, UpdatedAt: begun}},
			Servers: []lifecycle.ServerStatus{{Name: "http", Addr: ":8080"}},
			Probes:  []health.Status{{Plane: "readiness", Name: "db", State: health.Up, Since: begun, Critical: true}},
			Report:  lifecycle.Report{Name: "web", Phase: lifecycle.PhaseRunning, Budget: time.Minute, Phases: []lifecycle.PhaseTime{{Phase: lifecycle.PhaseRunning, Entered: begun}}},
		},
	}
}

// The index has what a process says over and over only once: a beat shares all with its
// announcement, and an announcement that says nothing new shares what is equal with the one
// that watchers know.
func TestAProcessIsKeptOnce(t *testing.T) {
	x := &index{list: map[string]known{}}
	put := func(p *operatorv1.Process) bool {
		return x.take(stream.Item[*operatorv1.Process]{Kind: stream.Put, Key: p.GetId(), Value: p})
	}
	kept := func(what string) {
		t.Helper()
		k := x.list["web.a"]
		for name, ok := range map[string]bool{
			"units": shared(k.last.GetUnits(), k.told.GetUnits()), "probes": shared(k.last.GetProbes(), k.told.GetProbes()), "servers": shared(k.last.GetServers(), k.told.GetServers()),
			"phases": shared(k.last.GetPhases(), k.told.GetPhases()), "counts": k.last.GetCounts() == k.told.GetCounts(), "budget": k.last.GetBudget() == k.told.GetBudget(), "begin": k.last.GetStartedAt() == k.told.GetStartedAt(),
		} {
			if !ok {
				t.Errorf("%s: the %s are kept twice", what, name)
			}
		}
	}
	begun := time.Date(2026, 1, 1, 12, 0, 5, 0, time.UTC)
	first := processOf(announcement(begun))
	if again(repeated{}, announcement(begun)) != nil || !put(first) {
		t.Fatal("a new process is no news")
	}
	beat := announcement(begun)
	beat.SeenAt, beat.AnnouncedAt = begun.Add(6*time.Second), begun.Add(5*time.Second)
	second := again(repeated{first, begun}, beat)
	if second == nil || put(second) || !second.GetSeenAt().AsTime().Equal(beat.SeenAt) || !second.GetSaidAt().AsTime().Equal(beat.AnnouncedAt) || !first.GetSeenAt().AsTime().Equal(begun) {
		t.Fatalf("a beat is %v", second)
	}
	kept("a beat")
	later := begun.Add(20 * time.Second)
	if again(repeated{second, begun}, announcement(later)) != nil {
		t.Fatal("an announcement counts as a beat")
	}
	third := processOf(announcement(later))
	if put(third) || x.get("web.a").GetMemoryBytes() != later.Unix() {
		t.Error("an announcement that says nothing new is news, or is not kept")
	}
	kept("an announcement")

	for what, change := range map[string]func(*presence.Process){
		"another life": func(p *presence.Process) { p.StartedAt = later },
		"a suspicion":  func(p *presence.Process) { p.Suspect = "forged" },
		"no time":      func(p *presence.Process) { p.Status.At = time.Time{} },
	} {
		p := announcement(later)
		change(&p)
		if again(repeated{third, later}, p) != nil {
			t.Errorf("%s counts as a beat", what)
		}
	}
}

// What depends on the time that has passed is judged anew at each beat.
func TestABeatIsJudgedAnew(t *testing.T) {
	p := announcement(time.Now())
	p.Suspended, p.Ready = "new disk", false
	p.Status.Probes[0] = health.Status{Plane: "readiness", Name: "lifecycle", State: health.Down, Since: time.Now()}
	old := processOf(p)
	if len(old.GetFindings()) != 0 {
		t.Fatalf("at first there is %v", old.GetFindings())
	}
	old.Probes[0].Since = timestamppb.New(time.Now().Add(-time.Hour)) // an hour has passed
	now := again(repeated{old, p.Status.At}, p)
	if now == nil || len(now.GetFindings()) != 1 || now.GetFindings()[0].GetRule() != "suspended-long" || len(old.GetFindings()) != 0 {
		t.Errorf("the findings are %v", now.GetFindings())
	}
}

// A field that is added to the message is copied too.
func TestShallowHasEveryField(t *testing.T) {
	p := new(operatorv1.Process)
	m := p.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case f.IsList():
			m.Mutable(f).List().AppendMutable()
		case f.Message() != nil:
			m.Mutable(f)
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString("x"))
		case f.Kind() == protoreflect.BoolKind:
			m.Set(f, protoreflect.ValueOfBool(true))
		case f.Kind() == protoreflect.Int32Kind:
			m.Set(f, protoreflect.ValueOfInt32(1))
		case f.Kind() == protoreflect.Int64Kind:
			m.Set(f, protoreflect.ValueOfInt64(1))
		default:
			t.Fatalf("field %s is a %s: this test does not know how to set it", f.Name(), f.Kind())
		}
	}
	if got := shallow(p); !proto.Equal(got, p) {
		t.Errorf("shallow(%v) is %v", p, got)
	}
}
