package operator_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func TestMain(m *testing.M) {
	scaleMain()
	host.EngineMain(starlark.New())
	ignored := brokertest.ServerLeaks(goleak.IgnoreTopFunction)
	// net/http waits half a second after it has refused a body.
	ignored = append(ignored, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
	goleak.VerifyTestMain(m, ignored...)
}

// quiet is a logger that discards everything.
var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// serve runs a Server on its own port and returns its address.
func serve(t testing.TB, cfg operator.Config) (url string, s *operator.Server) {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = quiet
	}
	s, err := operator.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := s.HTTPServer()
	scheme := "http://"
	go func() {
		if cfg.TLS != nil {
			srv.ServeTLS(ln, "", "")
		} else {
			srv.Serve(ln)
		}
	}()
	if cfg.TLS != nil {
		scheme = "https://"
	}
	t.Cleanup(func() {
		s.Close(context.Background())
		srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return scheme + ln.Addr().String(), s
}

// mission is the state of an entity in memory.
type mission struct {
	Org      string        `json:"org"`
	Priority int           `json:"priority"`
	Serial   uint64        `json:"serial"`
	Window   time.Duration `json:"window"`
	Due      time.Time     `json:"due"`
	Armed    bool          `json:"armed"`
	Note     string        `json:"note"`
}

var missionPhases = []*operatorv1.Phase{
	{Name: "planning", Next: []string{"flying", "aborted"}},
	{Name: "flying", Next: []string{"capturing", "landing", "aborted"}},
	{Name: "capturing", Next: []string{"flying"}},
	{Name: "landing", Next: []string{"completed", "failed"}},
	{Name: "completed"}, {Name: "failed"}, {Name: "aborted"},
}

// memory is a Workflows of one type, "drone-survey", in memory. It tests what the
// server does with requests, with faults on demand. Other tests use
// NATS and the real Manager.
type memory struct {
	mu       sync.Mutex
	entities map[string]*operatorv1.Entity
	history  map[string][]*operatorv1.HistoryEntry
	sinks    map[int]operator.Sink[*operatorv1.Entity]
	n        int
	watches  int
	fault    error // returned by every call, when it is set
	panics   bool
}

func newMemory(n int) *memory {
	m := &memory{entities: map[string]*operatorv1.Entity{}, history: map[string][]*operatorv1.HistoryEntry{}, sinks: map[int]operator.Sink[*operatorv1.Entity]{}}
	for i := range n {
		m.add(fmt.Sprintf("m-%05d", i), mission{Org: []string{"acme", "globex"}[i%2], Priority: i % 5, Serial: 1<<60 + uint64(i), Due: time.Unix(1e9, 0).UTC()})
	}
	return m
}

// fail makes every later call return fault, or panic.
func (m *memory) fail(fault error, panics bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault, m.panics = fault, panics
}

func (m *memory) add(id string, state mission) *operatorv1.Entity {
	text, _ := json.Marshal(state)
	fields, err := operator.Fields(text)
	if err != nil {
		panic(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.putLocked(&operatorv1.Entity{Type: "drone-survey", Id: id, Phase: "planning", Fields: fields}, "", "framework", "")
}

func (m *memory) putLocked(e *operatorv1.Entity, from, source, note string) *operatorv1.Entity {
	m.n++
	e.Revision, e.Etag, e.UpdatedAt = uint64(m.n), operator.ETag(uint64(m.n)), timestamppb.Now()
	for _, p := range missionPhases {
		if p.GetName() == e.GetPhase() {
			e.Next, e.Terminal = p.GetNext(), len(p.GetNext()) == 0
		}
	}
	if from != e.GetPhase() {
		m.history[e.GetId()] = append(m.history[e.GetId()], &operatorv1.HistoryEntry{From: from, To: e.GetPhase(), At: e.GetUpdatedAt(), Source: source, Note: note, Revision: e.GetRevision()})
	}
	m.entities[e.GetId()] = e
	for _, s := range m.sinks {
		s.Put(e.GetId(), e)
	}
	return e
}

func (m *memory) Definitions(ctx context.Context) ([]*operatorv1.Definition, error) {
	d, err := m.Definition(ctx, "drone-survey")
	return []*operatorv1.Definition{d}, err
}

func (m *memory) Definition(_ context.Context, typ string) (*operatorv1.Definition, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.panics {
		panic("a defect")
	}
	if m.fault != nil {
		return nil, m.fault
	}
	if typ != "drone-survey" {
		return nil, operator.Errorf(connect.CodeNotFound, operator.ReasonUnknownType, "type", "no workflow is called %q", typ)
	}
	d := &operatorv1.Definition{Type: typ, Bucket: "MISSIONS", Total: int64(len(m.entities))}
	for _, p := range missionPhases {
		p = proto.CloneOf(p)
		for _, e := range m.entities {
			if e.GetPhase() == p.GetName() {
				p.Count++
			}
		}
		d.Phases = append(d.Phases, p)
	}
	for i := range reflect.TypeFor[mission]().NumField() {
		f := reflect.TypeFor[mission]().Field(i)
		if f.Name != "Org" {
			d.WritableFields = append(d.WritableFields, &operatorv1.Field{Name: f.Tag.Get("json"), Type: f.Type.String()})
		}
	}
	return d, nil
}

func (m *memory) FieldType(_, field string) (reflect.Type, bool) {
	for i := range reflect.TypeFor[mission]().NumField() {
		if f := reflect.TypeFor[mission]().Field(i); f.Tag.Get("json") == field {
			return f.Type, true
		}
	}
	return nil, false
}

func (m *memory) List(_ context.Context, _ string, q workflow.ListOptions) ([]*operatorv1.Entity, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []*operatorv1.Entity
	for id, e := range m.entities {
		if id <= q.After || q.Phase != "" && e.GetPhase() != q.Phase || q.Active && e.GetTerminal() || !strings.Contains(id, q.Contains) || !e.GetUpdatedAt().AsTime().After(q.UpdatedAfter) {
			continue
		}
		if org, ok := q.Match["org"]; ok && e.GetFields().GetFields()["org"].GetStringValue() != org {
			continue
		}
		if prio, ok := q.Match["priority"]; ok && int(e.GetFields().GetFields()["priority"].GetNumberValue()) != prio {
			continue
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b *operatorv1.Entity) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return list[:min(len(list), q.Limit)], nil
}

func (m *memory) Counts(context.Context, string, time.Duration) ([]workflow.PhaseCount, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := workflow.PhaseCount{Phase: "planning"}
	for id, e := range m.entities {
		if at := e.GetUpdatedAt().AsTime(); e.GetPhase() == c.Phase {
			c.Entities++
			c.Oldest, c.Median, c.OldestID = at, at, id
		}
	}
	if c.Entities == 0 {
		return nil, m.fault
	}
	return []workflow.PhaseCount{c}, m.fault
}

func (m *memory) Get(_ context.Context, _, id string) (*operatorv1.Entity, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.getLocked(id, 0)
}

func (m *memory) getLocked(id string, revision uint64) (*operatorv1.Entity, error) {
	e := m.entities[id]
	switch {
	case e == nil:
		return nil, operator.Errorf(connect.CodeNotFound, operator.ReasonNotFound, "id", "no entity %q", id)
	case revision != 0 && e.GetRevision() != revision:
		return nil, operator.Errorf(connect.CodeAborted, operator.ReasonStale, "if_match", "it is at revision %d", e.GetRevision())
	}
	return proto.CloneOf(e), nil
}

func (m *memory) Transition(_ context.Context, t *operatorv1.TransitionRequest, _ string, revision uint64) (*operatorv1.Entity, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.getLocked(t.GetId(), revision)
	if err != nil {
		return nil, "", err
	}
	if !slices.Contains(e.GetNext(), t.GetPhase()) {
		return nil, "", operator.Errorf(connect.CodeFailedPrecondition, operator.ReasonInvalidTransition, "phase",
			"%s is followed by %v, not by %q", e.GetPhase(), e.GetNext(), t.GetPhase())
	}
	from := e.GetPhase()
	e.Phase = t.GetPhase()
	if t.GetDryRun() {
		e.Terminal = !slices.Contains([]string{"planning", "flying", "capturing", "landing"}, t.GetPhase())
		return e, from, nil
	}
	return m.putLocked(e, from, "operator", t.GetNote()), from, nil
}

func (m *memory) Patch(_ context.Context, p *operatorv1.PatchRequest, fields map[string]any, revision uint64) (*operatorv1.Entity, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.getLocked(p.GetId(), revision)
	if err != nil {
		return nil, err
	}
	text, _ := json.Marshal(fields)
	changed, err := operator.Fields(text)
	if err != nil {
		return nil, err
	}
	for k, v := range changed.GetFields() {
		e.Fields.Fields[k] = v
	}
	if p.GetDryRun() {
		return e, nil
	}
	return m.putLocked(e, e.GetPhase(), "", ""), nil
}

func (m *memory) Pause(_ context.Context, p operator.Pause) (*operatorv1.Entity, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.getLocked(p.ID, p.Revision)
	if err != nil {
		return nil, err
	}
	e.Paused = !p.Resume
	return m.putLocked(e, e.GetPhase(), p.Note, p.Who), nil
}

func (m *memory) History(_ context.Context, _, id string) ([]*operatorv1.HistoryEntry, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.history[id], false, nil
}

func (m *memory) Watch(ctx context.Context, _ string, to operator.Sink[*operatorv1.Entity]) error {
	m.mu.Lock()
	m.watches++
	n := m.watches
	for id, e := range m.entities {
		to.Put(id, e)
	}
	to.Sync()
	m.sinks[n] = to
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.sinks, n)
	return ctx.Err()
}

// announced are processes that do not change. A test that needs more embeds it.
type announced struct {
	operator.Processes
	list []*operatorv1.Process
}

func (a announced) Watch(ctx context.Context, to operator.Sink[*operatorv1.Process]) error {
	for _, p := range a.list {
		to.Put(p.GetId(), p)
	}
	to.Sync()
	<-ctx.Done()
	return ctx.Err()
}

func (announced) Events(context.Context, presence.EventQuery) ([]*operatorv1.Event, uint64, error) {
	return nil, 0, nil
}

// request sends one HTTP request and returns the answer.
func request(t testing.TB, method, url, body string, header ...string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

// wantText fails unless text contains each of the parts.
func wantText(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s: %q is missing in\n%s", what, p, text)
		}
	}
}
