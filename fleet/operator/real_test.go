package operator_test

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// survey is a mission like an application's.
type survey struct {
	ID       string `json:"id" lifecycle:"id"`
	State    string `json:"phase" lifecycle:"phase"`
	Org      string `json:"org" lifecycle:"indexable"`
	Parent   string `json:"parent,omitempty"`
	Priority uint32 `json:"priority" lifecycle:"operator_writable"`
	Comment  string `json:"comment" lifecycle:"operator_writable"`
	Crew     int8   `json:"crew" lifecycle:"indexable"`
	Drones   int    `json:"drones"`
}

func (s *survey) EntityID() string       { return s.ID }
func (s *survey) Workflow() string       { return "drone-survey" }
func (s *survey) Phase() string          { return s.State }
func (s *survey) IsTerminal() bool       { return surveys.IsTerminal(s.State) }
func (s *survey) KVBucket() string       { return "MISSIONS" }
func (s *survey) KVKey(id string) string { return id }
func (s *survey) ParentEntityID() string { return s.Parent }

var surveys = workflow.Transitions{
	"planning": {"flying", "aborted"}, "flying": {"capturing", "landing", "aborted"}, "capturing": {"flying"},
	"landing": {"completed", "failed"}, "completed": {}, "failed": {}, "aborted": {},
}

// realServer returns a server over real parts: NATS, a Manager, and a process that announces
// itself.
func realServer(t testing.TB) (base string, mgr *workflow.Manager, js jetstream.JetStream) {
	t.Helper()
	js = brokertest.Embedded(t, broker.Config{Buckets: []jetstream.KeyValueConfig{workflow.Bucket("MISSIONS")}}).JetStream()
	mgr = workflow.NewManager(js, brokertest.Quiet())
	t.Cleanup(func() { mgr.Close() })
	if err := mgr.Register("drone-survey", func() workflow.Participant { return new(survey) }, surveys); err != nil {
		t.Fatal(err)
	}
	f, err := presence.Open(t.Context(), js, presence.Config{})
	if err != nil {
		t.Fatal(err)
	}
	log, err := operator.OpenAuditLog(t.Context(), js, operator.AuditLogConfig{Stream: "AUDIT"})
	if err != nil {
		t.Fatal(err)
	}
	base, _ = serve(t, operator.Config{Workflows: operator.FromManager(mgr), Processes: operator.FromPresence(f), AuditLog: log})
	return base, mgr, js
}

// The first request to a server may filter by read-only fields, like any
// later one.
func TestFirstRequestFilters(t *testing.T) {
	base, mgr, _ := realServer(t)
	for _, s := range []*survey{{ID: "a", State: "planning", Crew: 2, Drones: 9}, {ID: "b", State: "planning", Crew: 3}} {
		if err := mgr.Create(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	for filter, want := range map[string]string{"crew=2": "a", "drones=9": "a", "crew=3": "b"} {
		base, _ := serve(t, operator.Config{Workflows: operator.FromManager(mgr)})
		code, _, text := request(t, "GET", base+"/workflows/drone-survey?match="+url.QueryEscape(filter), "")
		if code != 200 || strings.Count(text, `"etag"`) != 1 || !strings.Contains(text, `"id":"`+want+`"`) {
			t.Errorf("%s: %d %s", filter, code, text)
		}
	}
	for _, filter := range []string{"colour=red", "crew=many"} {
		code, _, text := request(t, "GET", base+"/workflows/drone-survey?match="+url.QueryEscape(filter), "")
		if code != 400 || !strings.Contains(text, "match[0]") {
			t.Errorf("%s: %d %s", filter, code, text)
		}
	}
}

func TestWorkflowsOnNATS(t *testing.T) {
	base, mgr, js := realServer(t)
	ctx := t.Context()
	for _, s := range []*survey{{ID: "org.a.1", State: "planning", Org: "acme"}, {ID: "org.a.2", State: "planning", Org: "globex", Parent: "org.a.1", Priority: 7}} {
		if err := mgr.Create(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	c := operatorv1connect.NewWorkflowServiceClient(http.DefaultClient, base)
	def, err := c.GetDefinition(ctx, &operatorv1.GetDefinitionRequest{Type: "drone-survey"})
	if err != nil || def.GetTotal() != 2 || def.GetPhases()[0].GetName() != "planning" || def.GetPhases()[0].GetCount() != 2 || len(def.GetWritableFields()) != 2 {
		t.Fatalf("definition: %v, %v", def, err)
	}
	list := func(r *operatorv1.ListEntitiesRequest) string {
		r.Type = "drone-survey"
		page, err := c.ListEntities(ctx, r)
		if err != nil {
			return err.Error()
		}
		ids := ""
		for _, e := range page.GetEntities() {
			ids += e.GetId() + " "
		}
		if page.GetNextPageToken() != "" {
			ids += "…"
		}
		return ids
	}
	for want, r := range map[string]*operatorv1.ListEntitiesRequest{
		"org.a.1 org.a.2 ": {},
		"org.a.1 …":        {PageSize: 1},
		"org.a.2 ":         {Match: []string{"org=globex", "priority=7"}},
		"org.a.1 ":         {Contains: "a.1", Active: true},
		"":                 {Phase: "failed"},
	} {
		if got := list(r); got != want {
			t.Errorf("list %v: %q, want %q", r, got, want)
		}
	}
	watch, err := c.Watch(ctx, &operatorv1.WatchRequest{Type: "drone-survey"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	kinds := ""
	for range 3 {
		if !watch.Receive() {
			t.Fatal(watch.Err())
		}
		kinds += watch.Msg().GetKind().String()
	}
	if kinds != "KIND_PUTKIND_PUTKIND_SYNCED" {
		t.Errorf("the watch began with %s", kinds)
	}

	id := "org.a.1"
	dry, err := c.Transition(ctx, &operatorv1.TransitionRequest{Type: "drone-survey", Id: id, Phase: "flying", DryRun: true})
	if err != nil || dry.GetFrom() != "planning" || dry.GetEntity().GetPhase() != "flying" {
		t.Fatalf("dry run: %v, %v", dry, err)
	}
	e, err := c.GetEntity(ctx, &operatorv1.GetEntityRequest{Type: "drone-survey", Id: id})
	if err != nil || e.GetPhase() != "planning" {
		t.Fatalf("after a dry run: %v, %v", e, err)
	}
	stale := e.GetEtag()
	moved, err := c.Transition(ctx, &operatorv1.TransitionRequest{Type: "drone-survey", Id: id, Phase: "flying", Note: "wind is fine", IfMatch: stale})
	if err != nil || moved.GetFrom() != "planning" || moved.GetEntity().GetEtag() == stale {
		t.Fatalf("transition: %v, %v", moved, err)
	}
	if !watch.Receive() || watch.Msg().GetEntity().GetPhase() != "flying" {
		t.Errorf("the watch sends %v, %v", watch.Msg(), watch.Err())
	}
	_, err = c.Transition(ctx, &operatorv1.TransitionRequest{Type: "drone-survey", Id: id, Phase: "aborted", IfMatch: stale})
	wantError(t, err, connect.CodeAborted, operator.ReasonStale, "if_match")
	_, err = c.Transition(ctx, &operatorv1.TransitionRequest{Type: "drone-survey", Id: id, Phase: "completed"})
	wantError(t, err, connect.CodeFailedPrecondition, operator.ReasonInvalidTransition, "phase")
	h, err := c.GetHistory(ctx, &operatorv1.GetHistoryRequest{Type: "drone-survey", Id: id})
	if err != nil || len(h.GetEntries()) != 2 || h.GetEntries()[1].GetNote() != "wind is fine (loopback)" || h.GetEntries()[1].GetSource() != "operator" {
		t.Errorf("history: %v, %v", h, err)
	}
	code, _, text := request(t, "PATCH", base+"/workflows/drone-survey/org.a.2", `{"fields":{"priority":9,"comment":"soon"}}`)
	if code != 200 || !strings.Contains(text, `"priority":9`) {
		t.Errorf("patch: %d %s", code, text)
	}
	code, _, text = request(t, "PATCH", base+"/workflows/drone-survey/org.a.2", `{"fields":{"org":"acme"}}`)
	if code != 403 {
		t.Errorf("patch of a field that is not writable: %d %s", code, text)
	}
	// A form's text is one value of JSON, or the field's own rules refuse it as a text.
	form := []string{"Content-Type", "application/x-www-form-urlencoded"}
	for value, wants := range map[string]float64{"7": 7, "1,5": 9, "12 345": 9} {
		fields := url.Values{"type": {"drone-survey"}, "id": {"org.a.2"}, "field": {"priority"}, "value": {value}}
		request(t, "POST", base+"/ui/act/patch", fields.Encode(), form...)
		e, err := c.GetEntity(ctx, &operatorv1.GetEntityRequest{Type: "drone-survey", Id: "org.a.2"})
		if got := e.GetFields().GetFields()["priority"].GetNumberValue(); err != nil || got != wants {
			t.Errorf("%q of a form: priority is %v, %v; want %v", value, got, err, wants)
		}
		request(t, "PATCH", base+"/workflows/drone-survey/org.a.2", `{"fields":{"priority":9}}`)
	}
	for _, phase := range []string{"aborted", "flying"} {
		_, err = c.Transition(ctx, &operatorv1.TransitionRequest{Type: "drone-survey", Id: id, Phase: phase})
	}
	wantError(t, err, connect.CodeFailedPrecondition, operator.ReasonTerminal, "phase")
	if err := mgr.Delete(ctx, "drone-survey", "org.a.2"); err != nil {
		t.Fatal(err)
	}
	for watch.Receive() && watch.Msg().GetKind() != operatorv1.WatchResponse_KIND_DELETED {
	}
	if watch.Msg().GetEntity().GetId() != "org.a.2" {
		t.Errorf("the watch reports the deletion as %v, %v", watch.Msg(), watch.Err())
	}

	stream, err := js.Stream(ctx, "AUDIT")
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(ctx)
	if err != nil || info.State.Msgs < 7 {
		t.Errorf("the audit stream has %v, %v", info, err)
	}
}

func TestProcessesOnNATS(t *testing.T) {
	base, _, js := realServer(t)
	app, err := lifecycle.New(lifecycle.Config{Name: "missions", HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}, lifecycle.WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	id := presence.Announce(app, js, presence.Config{Logger: quiet})
	done := make(chan error, 1)
	go func() { done <- app.Run(context.Background()) }()
	c := operatorv1connect.NewProcessServiceClient(http.DefaultClient, base)
	watch, err := c.WatchProcesses(t.Context(), &operatorv1.WatchProcessesRequest{Id: id})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Close()
	until := func(what string, is func(*operatorv1.WatchProcessesResponse) bool) {
		t.Helper()
		stop := time.AfterFunc(time.Minute, func() { watch.Close() })
		defer stop.Stop()
		for watch.Receive() {
			if is(watch.Msg()) {
				return
			}
		}
		t.Fatalf("never %s: %v", what, watch.Err())
	}
	until("ready", func(m *operatorv1.WatchProcessesResponse) bool {
		return m.GetProcess().GetReady() && len(m.GetProcess().GetUnits()) == 1
	})
	if code, _, text := request(t, "POST", base+"/processes/"+id+"/suspend", `{"reason":"new disk"}`); code != 200 {
		t.Fatalf("suspend: %d %s", code, text)
	}
	until("suspended", func(m *operatorv1.WatchProcessesResponse) bool {
		return m.GetProcess().GetSuspended() == "new disk (asked by loopback)"
	})
	if code, _, text := request(t, "POST", base+"/processes/"+id+"/suspend", `{}`); code != 400 {
		t.Errorf("suspend without a reason: %d %s", code, text)
	}
	if _, err := c.ResumeProcess(t.Context(), &operatorv1.ResumeProcessRequest{Id: id}); err != nil {
		t.Fatal(err)
	}
	until("ready again", func(m *operatorv1.WatchProcessesResponse) bool { return m.GetProcess().GetReady() })
	if _, err := c.DrainProcess(t.Context(), &operatorv1.DrainProcessRequest{Id: id, Reason: "new node"}); err != nil {
		t.Fatal(err)
	}
	until("gone", func(m *operatorv1.WatchProcessesResponse) bool {
		return m.GetKind() == operatorv1.WatchResponse_KIND_DELETED
	})
	if err := <-done; err != nil {
		t.Errorf("the process ends with %v", err)
	}
	_, err = c.DrainProcess(t.Context(), &operatorv1.DrainProcessRequest{Id: id})
	wantError(t, err, connect.CodeNotFound, operator.ReasonNotFound, "id")
}
