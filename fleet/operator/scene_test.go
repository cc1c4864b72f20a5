package operator_test

import (
	"context"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// scene is a fleet in which the test chooses every text that other programs
// normally choose. Some are texts that no real part accepts, so the pages must
// not rely on their checks.
type scene struct {
	text     func(what string) string
	entities []*operatorv1.Entity

	mu    sync.Mutex // guards the fields below
	sinks []operator.Sink[*operatorv1.Entity]
	turn  int64
}

func newScene(text func(what string) string) *scene {
	s := &scene{text: text}
	for _, what := range []string{"entity", "other"} {
		s.entities = append(s.entities, &operatorv1.Entity{
			Type: text("workflow"), Id: text(what), Phase: text("phase"), Revision: 7, Etag: `"7"`, UpdatedAt: timestamppb.Now(),
			Next: []string{text("next"), text("last")}, ParentId: text("parent"), Degraded: text("degraded"),
			Fields: &structpb.Struct{Fields: map[string]*structpb.Value{text("field"): structpb.NewStringValue(text("value"))}},
		})
	}
	return s
}

// config configures a server of the scene, for a caller with such a name.
func (s *scene) config() operator.Config {
	return operator.Config{
		Name: s.text("fleet"), Workflows: s, Workers: sceneWorkers{s: s}, Processes: sceneProcesses{s: s}, Rate: 1e6, Auth: named(s.text("caller")),
	}
}

// named accepts every request as an operator of that name.
type named string

func (n named) Authenticate(r *http.Request) (operator.Principal, error) {
	return operator.Principal{Name: string(n), Role: operator.RoleOperator, Method: "test"}, nil
}

// pages returns the paths of every page of the scene.
func (s *scene) pages() map[string]string {
	p := func(what string) string { return url.PathEscape(s.text(what)) }
	q := func(kv ...string) string {
		v := url.Values{}
		for i := 0; i < len(kv); i += 2 {
			v.Set(kv[i], kv[i+1])
		}
		return "?" + v.Encode()
	}
	entity := []string{"type", s.text("workflow"), "id", s.text("entity")}
	return map[string]string{
		"fleet": "/ui/", "process": "/ui/processes/" + p("process"), "log": "/ui/processes/" + p("process") + "/logs", "stacks": "/ui/processes/" + p("process") + "/stacks", "config": "/ui/processes/" + p("process") + "/config", "workflows": "/ui/workflows", "workflow": "/ui/workflows/" + p("workflow"),
		"filters": "/ui/workflows/" + p("workflow") + q("contains", s.text("contains"), "match", s.text("match"), "phase", s.text("phase")),
		"entity":  "/ui/workflows/" + p("workflow") + "/" + p("entity"), "gone": "/ui/workflows/" + p("workflow") + "/" + p("unknown"),
		"workers": "/ui/workers", "worker": "/ui/workers/" + p("worker"), "audit": "/ui/audit",
		"move":    "/ui/act/transition" + q(append(entity, "phase", s.text("next"))...),
		"patch":   "/ui/act/patch" + q(append(entity, "field", s.text("field"))...),
		"restart": "/ui/act/restart-unit" + q("id", s.text("process"), "unit", s.text("unit")),
		"drain":   "/ui/act/drain" + q("id", s.text("process")), "rollback": "/ui/act/rollback" + q("id", s.text("worker"), "digest", s.text("digest")),
		"letters": "/ui/workers/" + p("worker") + "/deadletters", "group": "/ui/workers/" + p("worker") + "/deadletters" + q("group", s.text("reason")),
		"letter": "/ui/workers/" + p("worker") + "/deadletters/" + "7", "hex": "/ui/workers/" + p("worker") + "/deadletters/" + "7" + "?as=hex",
		"edit": "/ui/act/edit" + q("id", s.text("worker"), "letter", "7"), "discard": "/ui/act/discard" + q("id", s.text("worker"), "group", s.text("reason")),
		"diff":    "/ui/workers/" + p("worker") + "/diff",
		"redrive": "/ui/act/redrive" + q("id", s.text("worker"), "letter", "7"), "nothing": "/ui/act/" + p("action"),
	}
}

// change changes something that every open page shows.
func (s *scene) change() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	for _, to := range s.sinks {
		to.Put(s.entities[0].GetId(), s.entities[0])
	}
}

func (s *scene) Definitions(ctx context.Context) ([]*operatorv1.Definition, error) {
	d, err := s.Definition(ctx, s.text("workflow"))
	return []*operatorv1.Definition{d}, err
}

func (s *scene) Definition(_ context.Context, typ string) (*operatorv1.Definition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &operatorv1.Definition{Type: typ, Total: s.turn, WritableFields: []*operatorv1.Field{{Name: s.text("field"), Type: "string"}}, Phases: []*operatorv1.Phase{
		{Name: s.text("phase"), Next: []string{s.text("next"), s.text("last")}, Count: 2}, {Name: s.text("next"), Next: []string{s.text("last")}}, {Name: s.text("last")},
	}}, nil
}

func (s *scene) FieldType(string, string) (reflect.Type, bool) {
	return reflect.TypeFor[string](), true
}

func (s *scene) List(context.Context, string, workflow.ListOptions) ([]*operatorv1.Entity, error) {
	return s.entities, nil
}

func (s *scene) Counts(context.Context, string, time.Duration) ([]workflow.PhaseCount, error) {
	e := s.entities[0]
	at := e.GetUpdatedAt().AsTime()
	return []workflow.PhaseCount{{Phase: e.GetPhase(), Entities: 1, Stuck: 1, Oldest: at, Median: at, OldestID: e.GetId()}}, nil
}

func (s *scene) Get(_ context.Context, _, id string) (*operatorv1.Entity, error) {
	for _, e := range s.entities {
		if e.GetId() == id {
			return e, nil
		}
	}
	return nil, operator.Errorf(connect.CodeNotFound, operator.ReasonNotFound, "id", "no entity %s", id)
}

func (s *scene) Transition(_ context.Context, t *operatorv1.TransitionRequest, _ string, _ uint64) (*operatorv1.Entity, string, error) {
	return nil, "", operator.Errorf(connect.CodeFailedPrecondition, operator.ReasonInvalidTransition, "phase", "not to %s", t.GetPhase())
}

func (s *scene) Pause(context.Context, operator.Pause) (*operatorv1.Entity, error) {
	return nil, operator.Errorf(connect.CodeUnimplemented, operator.ReasonNotServed, "", "not here")
}

func (s *scene) Patch(_ context.Context, p *operatorv1.PatchRequest, _ map[string]any, _ uint64) (*operatorv1.Entity, error) {
	return nil, operator.Errorf(connect.CodeFailedPrecondition, operator.ReasonInvalid, "fields", "not %s", p.GetId())
}

func (s *scene) History(context.Context, string, string) ([]*operatorv1.HistoryEntry, bool, error) {
	return []*operatorv1.HistoryEntry{{To: s.text("phase"), At: timestamppb.Now(), Source: s.text("source"), Note: s.text("note"), Revision: 6}, {From: s.text("phase"), To: s.text("next"), At: timestamppb.Now(), Revision: 7}}, true, nil
}

func (s *scene) Watch(ctx context.Context, _ string, to operator.Sink[*operatorv1.Entity]) error {
	to.Sync()
	s.mu.Lock()
	s.sinks = append(s.sinks, to)
	s.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

type sceneWorkers struct {
	operator.Workers
	s *scene
}

func (w sceneWorkers) List(ctx context.Context) ([]*operatorv1.Worker, error) {
	x, err := w.Get(ctx, w.s.text("worker"))
	return []*operatorv1.Worker{x}, err
}

func (w sceneWorkers) Get(_ context.Context, id string) (*operatorv1.Worker, error) {
	t := w.s.text
	return &operatorv1.Worker{
		Id: id, MimeType: t("engine"), Topics: []string{t("topic"), t("topic two")}, Group: t("group"), State: t("state"), Desired: t("desired"), Host: t("host"), Error: t("error"), DeadLetters: 1, Backlog: 1 << 40,
		Versions: []*operatorv1.CodeVersion{{Digest: t("digest"), Source: t("source"), Who: t("who"), At: timestamppb.Now()}},
	}, nil
}

func (w sceneWorkers) DeadLetters(context.Context, string, string, uint64, int) ([]*operatorv1.DeadLetter, error) {
	t := w.s.text
	return []*operatorv1.DeadLetter{{Id: t("letter"), Topic: t("topic"), Reason: t("reason"), Data: []byte(t("data")), At: timestamppb.Now()}}, nil
}

func (w sceneWorkers) LetterGroups(context.Context, string) ([]host.LetterGroup, error) {
	t := w.s.text
	return []host.LetterGroup{{Name: t("reason"), Reason: t("reason"), First: time.Now(), Last: time.Now(), Seqs: []uint64{7}}}, nil
}

func (w sceneWorkers) DeadLetter(ctx context.Context, id string, _ uint64) (*operatorv1.DeadLetter, error) {
	t := w.s.text
	list, err := w.DeadLetters(ctx, id, "", 0, 1)
	d := list[0]
	d.Size, d.Message, d.DataDigest, d.Digest = int64(len(d.GetData())), t("message"), t("sum"), t("digest")
	d.Headers = []*operatorv1.Header{{Name: t("header"), Values: []string{t("header value")}}}
	return d, err
}

func (w sceneWorkers) Discard(context.Context, string, []uint64, bool) (int, error) {
	return 1, nil
}

func (w sceneWorkers) Code(context.Context, string, string, string) (*host.Comparison, error) {
	t := w.s.text
	return &host.Comparison{
		From: host.Version{Digest: t("digest")}, To: host.Version{Digest: t("digest two")}, Before: []byte("same\n" + t("code") + "\n"), After: []byte("same\n" + t("code two") + "\n"),
		Settings: []host.Difference{{Field: t("setting"), From: t("old"), To: t("new")}}, Known: true,
	}, nil
}

func (w sceneWorkers) Activity(context.Context, string) (*operatorv1.WorkerActivity, error) {
	return &operatorv1.WorkerActivity{
		Host: w.s.text("host"), Window: durationpb.New(time.Minute), Succeeded: 6, Failed: 3, P50: durationpb.New(time.Millisecond), P95: durationpb.New(time.Second), Longest: durationpb.New(time.Minute),
		Versions: []*operatorv1.VersionActivity{{Digest: w.s.text("digest"), Succeeded: 6, Failed: 3}},
	}, nil
}

type sceneProcesses struct {
	announced
	s *scene
}

func (p sceneProcesses) Watch(ctx context.Context, to operator.Sink[*operatorv1.Process]) error {
	x, y := p.process(p.s.text("process")), p.process(p.s.text("process two"))
	y.Service = p.s.text("service two")
	p.list = []*operatorv1.Process{x, y}
	return p.announced.Watch(ctx, to)
}

func (p sceneProcesses) process(id string) *operatorv1.Process {
	t, now := p.s.text, timestamppb.Now()
	// A tree that is deeper than a page is wide.
	unit := &operatorv1.Unit{Name: t("leaf"), Kind: t("kind"), Status: t("status"), Health: t("health"), Reason: t("reason"), Restarts: 3, Restartable: true}
	for range 24 {
		unit = &operatorv1.Unit{Name: t("unit"), Kind: "supervisor", Status: "Running", Children: []*operatorv1.Unit{unit}}
	}
	return &operatorv1.Process{
		Id: id, Service: t("service"), Host: t("host"), Version: t("version"), Phase: t("phase"), Reason: t("reason"), Suspended: t("suspended"), StartedAt: now, SeenAt: now, Truncated: true,
		Units: []*operatorv1.Unit{unit}, Probes: []*operatorv1.Probe{{Plane: t("plane"), Name: t("probe"), State: t("state"), Error: t("error")}},
		Servers: []*operatorv1.Server{{Name: t("server"), Addr: t("addr")}}, Phases: []*operatorv1.PhaseTime{{Phase: t("phase"), Entered: now, Duration: durationpb.New(time.Second)}},
	}
}

func (p sceneProcesses) Logs(context.Context, string, string, uint64, int) (*operatorv1.GetLogsResponse, error) {
	return &operatorv1.GetLogsResponse{Lines: []*operatorv1.LogLine{{Seq: 7, At: timestamppb.Now(), Text: p.s.text("line")}}}, nil
}

func (p sceneProcesses) Stacks(context.Context, string, string) (string, error) {
	return "goroutine 1 [running]:\n" + p.s.text("stack"), nil
}

func (p sceneProcesses) Config(context.Context, string, string) (*operatorv1.GetConfigResponse, error) {
	t := p.s.text
	return &operatorv1.GetConfigResponse{
		Settings: []*operatorv1.Setting{{Key: t("key"), Value: t("value"), Source: t("source"), Lost: []string{t("lost")}, InForce: t("in force")}}, Truncated: true,
		Reloads: []*operatorv1.Step{{Kind: "reload", Name: t("reload"), Result: t("result"), Error: t("error")}},
	}, nil
}

// evil returns a text that tries to become markup in any place. The id of a hosted worker
// has no slash: with one it is a hook's.
func evil(what string) string {
	text := evilText(what)
	if what == "worker" {
		return strings.ReplaceAll(text, "/", "")
	}
	return text
}

func evilText(what string) string {
	return what + `"'></title></text></script></textarea><img src=x onerror="window.pwned=1"><script>window.pwned=1</script><svg onload=window.pwned=1>{{.}}${1}&lt;`
}

// long returns a name of 200 characters without a place to break.
func long(what string) string { return what + strings.Repeat("x", 200-len(what)) }

// commanded are two processes that remember their commands; p-2 is
// suspended.
type commanded struct {
	announced
	mu    sync.Mutex // guards the fields below
	asked []string
}

func (c *commanded) was(what string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.asked, what)
}

func (c *commanded) ask(what string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, what)
	return "running", nil
}

func newCommanded() *commanded {
	c := &commanded{}
	for _, id := range []string{"p-1", "p-2"} {
		c.list = append(c.list, &operatorv1.Process{Id: id, Service: "s", Phase: "running", Ready: true, StartedAt: timestamppb.Now()})
	}
	c.list[1].Suspended = "by hand"
	return c
}

func (c *commanded) Drain(context.Context, string, string, string) (string, error) {
	return c.ask("drain")
}
func (c *commanded) Suspend(context.Context, string, string, string) (string, error) {
	return c.ask("suspend")
}
func (c *commanded) Resume(context.Context, string, string) (string, error) { return c.ask("resume") }
