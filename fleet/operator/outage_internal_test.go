package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/internal/canary"
	"github.com/pleme-io/lifecycle-go/fleet/internal/stream"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// cutOff are processes whose NATS is away: their watch has told of them before.
type cutOff struct{ chatty }

func (cutOff) Events(ctx context.Context, _ presence.EventQuery) ([]*operatorv1.Event, uint64, error) {
	<-ctx.Done() // as a request on a connection that is broken
	return nil, 0, ctx.Err()
}

// While NATS is away a process is answered from the index, by its whole id and without the
// service, and its page is there without the events. Both say since when NATS is away. An
// id that the index does not have is not "not found".
func TestProcessIsShownWhileNATSIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		area := cutOff{chatty{say: make(chan stream.Item[*operatorv1.Process])}}
		s, err := New(Config{Processes: area, Dependencies: []Dependency{{Name: "NATS", Check: func(context.Context) error { return errors.New("connection refused") }}}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(t.Context())
		for _, id := range []string{"web.one", "web.two", "api.two", "web.three", "three", "x.web.one"} {
			area.say <- stream.Item[*operatorv1.Process]{Kind: stream.Put, Key: id, Value: &operatorv1.Process{Id: id, Service: "web", Phase: "running", SeenAt: timestamppb.Now()}}
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		get := func(path string, who Principal) (code int, asOf, text string) {
			r := httptest.NewRequestWithContext(WithPrincipal(t.Context(), who), http.MethodGet, path, nil)
			w := httptest.NewRecorder()
			inner, err := s.transcoder(s.pages(s.ui))
			if err != nil {
				t.Fatal(err)
			}
			inner.ServeHTTP(w, r)
			return w.Code, w.Header().Get(client.HeaderAsOf), w.Body.String()
		}
		for who, p := range map[string]Principal{
			"a viewer of all": {Name: "vic", Role: RoleViewer}, "a viewer of a part": {Name: "ivy", Grants: []Grant{{Role: RoleViewer, Services: []string{"web"}}}},
		} {
			for id, want := range map[string]string{"web.one": "web.one", "one": "web.one", "web.two": "web.two", "three": "web.three"} {
				code, asOf, text := get("/processes/"+id, p)
				at, err := time.Parse(time.RFC3339Nano, asOf)
				if code != 200 || !strings.Contains(text, `"id":"`+want+`"`) || err != nil || time.Since(at) < time.Minute {
					t.Errorf("%s asks for %s: %d as of %s: %s", who, id, code, asOf, text)
				}
				code, _, text = get("/ui/processes/"+id, p)
				for _, part := range []string{"<h1>" + want, "NATS has been away since", "The events cannot be read now: NATS is away since"} {
					if code != 200 || !strings.Contains(strings.ReplaceAll(text, "<wbr>", ""), part) {
						t.Errorf("%s opens the page of %s: %d, without %q", who, id, code, part)
					}
				}
			}
			if code, _, text := get("/processes/two", p); code != 400 && code != 404 || code == 400 && !strings.Contains(text, "api.two, web.two") {
				t.Errorf("%s asks for a process of two services: %d %s", who, code, text)
			}
			for _, id := range []string{"web.four", "four"} {
				if code, _, text := get("/processes/"+id, p); code != 503 || !strings.Contains(text, "NATS is away since") {
					t.Errorf("%s asks for %s: %d %s", who, id, code, text)
				}
			}
		}
	})
}

// An outage began with its first failed check, and has the reason of the latest.
func TestOutageHasTheLatestReason(t *testing.T) {
	d := &dependencies{
		list: []Dependency{{Name: "NATS"}},
		log:  slog.New(slog.DiscardHandler),
		away: map[string]outage{},
	}
	began, latest := time.Now(), errors.New("authorization violation")
	d.note("NATS", began, errors.New("connection refused"))
	d.note("NATS", began.Add(time.Second), latest)
	if got := d.outages(); len(got) != 1 || got[0] != (outage{"NATS", began, latest}) {
		t.Errorf("%v", got)
	}
}

// A refusal for an error that no part of the server has made for callers is logged, and the caller
// gets the number of that line.
func TestRefusalOfAnyError(t *testing.T) {
	var log strings.Builder
	s, err := New(Config{Workers: struct{ Workers }{}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	w := httptest.NewRecorder()
	s.refuse(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/workers", nil), errors.New("the disk is full"))
	if text := w.Body.String(); w.Code != 500 || strings.Contains(text, "disk") || !strings.Contains(text, "incident") {
		t.Errorf("%d %s", w.Code, text)
	}
	if !strings.Contains(log.String(), "the disk is full") {
		t.Errorf("the log is %q", log.String())
	}
}

// NATS whose disk is full answers: a diagnosis names the disk and what to do. A write whose outcome is
// not known then is unavailable and names NATS.
func TestDiskOfADependencyIsFull(t *testing.T) {
	full := fmt.Errorf("NATS: %w: MISSIONS: no space left on device", canary.ErrNoWrites)
	unknown := workflowErr(fmt.Errorf("patch: %w", workflow.ErrOutcomeUnknown))
	var ours *Error
	if err := new(dependencies).explain(unknown); !errors.As(err, &ours) || ours.Reason != ReasonTimeout {
		t.Errorf("without an outage: %v", err)
	}
	s, err := New(Config{Dependencies: []Dependency{{Name: "NATS", Check: func(context.Context) error { return full }}}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	for len(s.deps.outages()) == 0 {
		time.Sleep(time.Millisecond)
	}
	answer, err := s.Diagnosis(t.Context())
	if err != nil || len(answer.GetFindings()) != 1 {
		t.Fatal(answer, err)
	}
	f := answer.GetFindings()[0]
	if f.GetRule() != "store-refuses-writes" || !strings.Contains(f.GetCause(), "no space left") || !strings.Contains(f.GetChange(), "make room") {
		t.Errorf("the finding is %v", f)
	}
	err = s.failure(t.Context(), "WorkflowService.Patch", unknown)
	if text := client.Message(err); connect.CodeOf(err) != connect.CodeUnavailable ||
		!strings.Contains(text, "outcome") || !strings.Contains(text, "NATS is away since") || !strings.Contains(text, "no space left") {
		t.Errorf("a write: %v", err)
	}
}
