package operator_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1/operatorv1connect"
)

// h2c returns a client that speaks HTTP/2 without TLS, as gRPC does.
func h2c(t testing.TB) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func TestOneContractInEveryProtocol(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(3)})
	for name, opts := range map[string][]connect.ClientOption{
		"gRPC": {connect.WithGRPC()}, "gRPC-Web": {connect.WithGRPCWeb()}, "Connect": nil, "Connect, JSON": {connect.WithProtoJSON()}, "Connect, GET": {connect.WithHTTPGet()},
	} {
		t.Run(name, func(t *testing.T) {
			c := operatorv1connect.NewWorkflowServiceClient(h2c(t), base, opts...)
			list, err := c.ListEntities(t.Context(), &operatorv1.ListEntitiesRequest{Type: "drone-survey", Match: []string{"org=acme"}})
			if err != nil || len(list.GetEntities()) != 2 {
				t.Fatalf("list: %v, %v", list, err)
			}
			_, err = c.Transition(t.Context(), &operatorv1.TransitionRequest{Type: "drone-survey", Id: "m-00000", Phase: "completed"})
			wantError(t, err, connect.CodeFailedPrecondition, operator.ReasonInvalidTransition, "phase")
			e, err := c.Transition(t.Context(), &operatorv1.TransitionRequest{Type: "drone-survey", Id: "m-00000", Phase: "flying", DryRun: true})
			if err != nil || e.GetFrom() != "planning" || e.GetEntity().GetPhase() != "flying" {
				t.Errorf("transition: %v, %v", e, err)
			}
			watch, err := c.Watch(t.Context(), &operatorv1.WatchRequest{Type: "drone-survey"})
			if err != nil {
				t.Fatal(err)
			}
			defer watch.Close()
			for range 3 {
				if !watch.Receive() || watch.Msg().GetKind() != operatorv1.WatchResponse_KIND_PUT {
					t.Fatalf("watch: %v, %v", watch.Msg(), watch.Err())
				}
			}
			if !watch.Receive() || watch.Msg().GetKind() != operatorv1.WatchResponse_KIND_SYNCED {
				t.Errorf("after all calls: %v, %v", watch.Msg(), watch.Err())
			}
		})
	}
	t.Run("REST", func(t *testing.T) {
		code, h, text := request(t, "GET", base+"/workflows/drone-survey/m-00001", "")
		wantText(t, "get", text, `"phase":"planning"`, `"etag":`, `"1152921504606846977"`)
		if code != 200 || h.Get("ETag") == "" {
			t.Errorf("get: %d, etag %q", code, h.Get("ETag"))
		}
		code, _, text = request(t, "GET", base+"/workflows/drone-survey?match=org%3Dacme&page_size=1", "")
		if code != 200 || strings.Count(text, `"id":`) != 1 || !strings.Contains(text, "nextPageToken") {
			t.Errorf("list: %d %s", code, text)
		}
		code, _, text = request(t, "POST", base+"/workflows/drone-survey/m-00001/transition", `{"phase":"flying","note":"wind is fine"}`)
		if code != 200 {
			t.Errorf("transition: %d %s", code, text)
		}
		_, _, text = request(t, "GET", base+"/workflows/drone-survey/m-00001/history", "")
		wantText(t, "history", text, `"from":"planning"`, `"wind is fine"`, `"operator"`)
		code, _, text = request(t, "PATCH", base+"/workflows/drone-survey/m-00001", `{"fields":{"priority":4}}`, "If-Match", h.Get("ETag"))
		if code != 409 {
			t.Errorf("patch with a stale If-Match: %d %s", code, text)
		}
		wantText(t, "stale", text, operator.ReasonStale, `"if_match"`)
	})
}

// wantError fails unless err has the code, the reason, and names the field.
func wantError(t testing.TB, err error, code connect.Code, reason, field string) {
	t.Helper()
	var ce *connect.Error
	if !errors.As(err, &ce) || ce.Code() != code {
		t.Errorf("error is %v, want code %v", err, code)
		return
	}
	reasons, fields := "", ""
	for _, d := range ce.Details() {
		v, err := d.Value()
		if err != nil {
			t.Error(err)
			continue
		}
		switch v := v.(type) {
		case *errdetails.ErrorInfo:
			reasons += v.GetReason()
		case *errdetails.BadRequest:
			for _, f := range v.GetFieldViolations() {
				fields += f.GetField() + " "
			}
		}
	}
	if reasons != reason || !strings.Contains(fields+" ", field) {
		t.Errorf("error %v has the reason %q and the fields %q, want %q and %q", err, reasons, fields, reason, field)
	}
}

func TestRequestsThatAreWrongNameTheField(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(3), Workers: noWorkers{}})
	c := operatorv1connect.NewWorkflowServiceClient(http.DefaultClient, base)
	w := operatorv1connect.NewWorkerServiceClient(http.DefaultClient, base)
	ctx := context.Background()
	long := strings.Repeat("x", 3000)
	fields := func(name string, v any) *structpb.Struct {
		s, err := structpb.NewStruct(map[string]any{name: v})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	get := func(typ, id string) error {
		_, err := c.GetEntity(ctx, &operatorv1.GetEntityRequest{Type: typ, Id: id})
		return err
	}
	list := func(r *operatorv1.ListEntitiesRequest) error {
		r.Type = "drone-survey"
		_, err := c.ListEntities(ctx, r)
		return err
	}
	patch := func(name string, v any) error {
		_, err := c.Patch(ctx, &operatorv1.PatchRequest{Type: "drone-survey", Id: "m-00000", Fields: fields(name, v)})
		return err
	}
	move := func(r *operatorv1.TransitionRequest) error { _, err := c.Transition(ctx, r); return err }
	create := func(r *operatorv1.CreateWorkerRequest) error { _, err := w.CreateWorker(ctx, r); return err }
	redrive := func(r *operatorv1.RedriveRequest) error { _, err := w.Redrive(ctx, r); return err }
	discard := func(r *operatorv1.DiscardDeadLettersRequest) error {
		_, err := w.DiscardDeadLetters(ctx, r)
		return err
	}
	edit := func(r *operatorv1.RedriveEditedRequest) error { _, err := w.RedriveEdited(ctx, r); return err }
	read := func(r *operatorv1.ReadDeadLetterRequest) error { _, err := w.ReadDeadLetter(ctx, r); return err }
	diff := func(r *operatorv1.DiffWorkerCodeRequest) error { _, err := w.DiffWorkerCode(ctx, r); return err }
	for _, tc := range []struct {
		err           error
		code          connect.Code
		reason, field string
	}{
		{get("", ""), connect.CodeInvalidArgument, operator.ReasonInvalid, "type id"},
		{get("drone-survey", long), connect.CodeInvalidArgument, operator.ReasonInvalid, "id"},
		{get("drone-survey", "a\x00b"), connect.CodeInvalidArgument, operator.ReasonInvalid, "id"},
		{get("drone-survey", "unknown"), connect.CodeNotFound, operator.ReasonNotFound, "id"},
		{list(&operatorv1.ListEntitiesRequest{PageSize: -1}), connect.CodeInvalidArgument, operator.ReasonInvalid, "page_size"},
		{list(&operatorv1.ListEntitiesRequest{PageSize: 1001}), connect.CodeInvalidArgument, operator.ReasonInvalid, "page_size"},
		{list(&operatorv1.ListEntitiesRequest{PageToken: "not a token"}), connect.CodeInvalidArgument, operator.ReasonInvalid, "page_token"},
		{list(&operatorv1.ListEntitiesRequest{Phase: "swimming"}), connect.CodeInvalidArgument, operator.ReasonInvalid, "phase"},
		{list(&operatorv1.ListEntitiesRequest{Match: []string{"priority=high"}}), connect.CodeInvalidArgument, operator.ReasonInvalid, "match[0]"},
		{list(&operatorv1.ListEntitiesRequest{Match: []string{"org=acme", "no equals"}}), connect.CodeInvalidArgument, operator.ReasonInvalid, "match[1]"},
		{list(&operatorv1.ListEntitiesRequest{Match: []string{"colour=red"}}), connect.CodeInvalidArgument, operator.ReasonInvalid, "match[0]"},
		{move(&operatorv1.TransitionRequest{Type: "drone-survey", Id: "m-00000"}), connect.CodeInvalidArgument, operator.ReasonInvalid, "phase"},
		{move(&operatorv1.TransitionRequest{Type: "drone-survey", Id: "m-00000", Phase: "flying", Note: strings.Repeat("x", 3000)}), connect.CodeInvalidArgument, operator.ReasonInvalid, "note"},
		{move(&operatorv1.TransitionRequest{Type: "drone-survey", Id: "m-00000", Phase: "flying", IfMatch: "yesterday"}), connect.CodeInvalidArgument, operator.ReasonInvalid, "if_match"},
		{move(&operatorv1.TransitionRequest{Type: "drone-survey", Id: "m-00000", Phase: "flying", IfMatch: "\"999\""}), connect.CodeAborted, operator.ReasonStale, "if_match"},
		{patch("org", "evil"), connect.CodePermissionDenied, operator.ReasonNotWritable, "fields.org"},
		{patch("colour", "red"), connect.CodeInvalidArgument, operator.ReasonInvalid, "fields.colour"},
		{patch("priority", "high"), connect.CodeInvalidArgument, operator.ReasonInvalid, "fields.priority"},
		{patch("priority", 1.5), connect.CodeInvalidArgument, operator.ReasonInvalid, "fields.priority"},
		{patch("priority", nil), connect.CodeInvalidArgument, operator.ReasonInvalid, "fields.priority"},
		{patch("serial", -1.0), connect.CodeInvalidArgument, operator.ReasonInvalid, "fields.serial"},
		{patch("serial", 1e17), connect.CodeInvalidArgument, operator.ReasonInvalid, "fields.serial"},
		{patch("armed", "true"), connect.CodeInvalidArgument, operator.ReasonInvalid, "fields.armed"},
		{patch("note", 5.0), connect.CodeInvalidArgument, operator.ReasonInvalid, "fields.note"},
		{patch("due", "tomorrow"), connect.CodeInvalidArgument, operator.ReasonInvalid, "fields.due"},
		{create(&operatorv1.CreateWorkerRequest{}), connect.CodeInvalidArgument, operator.ReasonInvalid, "mime_type topics code"},
		{create(&operatorv1.CreateWorkerRequest{MimeType: "text/x-python", Topics: []string{"a"}, Code: &operatorv1.Code{Source: &operatorv1.Code_Url{Url: "https://user:pw@host/x"}}}), connect.CodeInvalidArgument, operator.ReasonInvalid, "code.url"},
		{create(&operatorv1.CreateWorkerRequest{MimeType: "text/x-python", Topics: []string{"a"}, Code: &operatorv1.Code{Source: &operatorv1.Code_Url{Url: "file:///etc/passwd"}}}), connect.CodeInvalidArgument, operator.ReasonInvalid, "code.url"},
		{create(&operatorv1.CreateWorkerRequest{MimeType: "text/x-python", Topics: []string{"a"}, Code: &operatorv1.Code{Source: &operatorv1.Code_Content{}, Digest: "md5:00"}}), connect.CodeInvalidArgument, operator.ReasonInvalid, "code.content code.digest"},
		{redrive(&operatorv1.RedriveRequest{WorkerId: "w", All: true, Group: "x"}), connect.CodeInvalidArgument, operator.ReasonInvalid, "group"},
		{discard(&operatorv1.DiscardDeadLettersRequest{WorkerId: "w", Note: "x"}), connect.CodeInvalidArgument, operator.ReasonInvalid, "ids"},
		{discard(&operatorv1.DiscardDeadLettersRequest{WorkerId: "w", All: true}), connect.CodeInvalidArgument, operator.ReasonInvalid, "note"},
		{discard(&operatorv1.DiscardDeadLettersRequest{WorkerId: "w", Ids: make([]string, 1001), Note: "x"}), connect.CodeInvalidArgument, operator.ReasonInvalid, "ids"},
		{edit(&operatorv1.RedriveEditedRequest{WorkerId: "w"}), connect.CodeInvalidArgument, operator.ReasonInvalid, "id"},
		{edit(&operatorv1.RedriveEditedRequest{WorkerId: "w", Id: "1", Data: make([]byte, 6<<20+1)}), connect.CodeInvalidArgument, operator.ReasonInvalid, "data"},
		{read(&operatorv1.ReadDeadLetterRequest{WorkerId: "w", Id: "1", Offset: -1}), connect.CodeInvalidArgument, operator.ReasonInvalid, "offset"},
		{read(&operatorv1.ReadDeadLetterRequest{WorkerId: "w", Id: "1", Limit: 4<<20 + 1}), connect.CodeInvalidArgument, operator.ReasonInvalid, "limit"},
		{diff(&operatorv1.DiffWorkerCodeRequest{Id: "w", From: "sha256:abc"}), connect.CodeInvalidArgument, operator.ReasonInvalid, "from"},
		{redrive(&operatorv1.RedriveRequest{WorkerId: "w"}), connect.CodeInvalidArgument, operator.ReasonInvalid, "ids"},
		{redrive(&operatorv1.RedriveRequest{WorkerId: "w", All: true, Ids: []string{"1"}}), connect.CodeInvalidArgument, operator.ReasonInvalid, "all"},
	} {
		wantError(t, tc.err, tc.code, tc.reason, tc.field)
	}
	if err := patch("serial", "1152921504606846999"); err != nil {
		t.Errorf("a large integer as a string: %v", err)
	}
}

// noWorkers is an area whose methods must not be called.
type noWorkers struct{ operator.Workers }

func TestRESTRefusesWhatIsNotInTheContract(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(1)})
	path := base + "/workflows/drone-survey/m-00000"
	for _, tc := range []struct {
		method, url, body string
		code              int
		parts             []string
	}{
		{"POST", path + "/transition", `{"phase":"flying","dryrun":true}`, 400, []string{operator.ReasonMalformed, `"field":"dryrun"`}},
		{"POST", path + "/transition", `{"phase":7}`, 400, []string{operator.ReasonMalformed}},
		{"POST", path + "/transition", `{"phase":`, 400, []string{operator.ReasonMalformed}},
		{"POST", path + "/transition", ``, 400, []string{"phase"}},
		{"GET", base + "/workflows/drone-survey?colour=red", ``, 400, []string{operator.ReasonMalformed, "colour"}},
		{"GET", base + "/workflows/drone-survey?page_size=many", ``, 400, []string{operator.ReasonMalformed, "page_size"}},
		{"GET", base + "/workflows/drone-survey?match.=x", ``, 400, []string{operator.ReasonInvalid, `"field":"match."`}},
		{"GET", base + "/nothing/here", ``, 404, []string{operator.ReasonNotFound, "openapi.json"}},
		{"DELETE", path, ``, 405, []string{operator.ReasonNotFound}},
		{"GET", base + "/processes", ``, 501, []string{operator.ReasonNotServed}},
		{"GET", base + "/workers", ``, 501, []string{operator.ReasonNotServed}},
		{"GET", base + "/workflows/unknown", ``, 404, []string{operator.ReasonUnknownType}},
		{"GET", base + "/watch/workflows/unknown", ``, 404, []string{operator.ReasonUnknownType}},
		{"GET", base + "/watch/workflows/drone-survey?ids=m-00000", ``, 400, []string{operator.ReasonMalformed, `"field":"ids"`}},
		{"GET", base + "/watch/workflows/drone-survey?id=a&id=b", ``, 400, []string{operator.ReasonMalformed}},
		{"GET", base + "/watch/workflows/drone-survey?id=%zz", ``, 400, []string{operator.ReasonMalformed}},
		{"GET", base + "/watch/processes?service=x", ``, 400, []string{operator.ReasonMalformed}},
		{"GET", base + "/workflows/%ff/x", ``, 400, nil},
		{"GET", base + "/workflows/drone-survey?phase=%ff", ``, 400, nil},
		{"POST", path + "/transition", "{\"phase\":\"\xff\"}", 400, []string{operator.ReasonMalformed}},
		{"GET", base + "/watch/processes", ``, 501, []string{operator.ReasonNotServed}},
	} {
		code, _, text := request(t, tc.method, tc.url, tc.body)
		if code != tc.code {
			t.Errorf("%s %s %s: %d, want %d: %s", tc.method, tc.url, tc.body, code, tc.code, text)
		}
		wantText(t, tc.method+" "+tc.url+" "+tc.body, text, append(tc.parts, `"code":`, `"reason":`)...)
	}
	code, _, text := request(t, "POST", path+"/transition", `{"phase":"`+strings.Repeat("x", 3<<20)+`"}`)
	if code < 400 || code == 500 {
		t.Errorf("3 MiB: %d %s", code, text)
	}
	code, _, text = request(t, "POST", base+"/lifecycle.operator.v1.WorkflowService/Transition", `{"colour":"red"}`)
	if code != 400 || !strings.Contains(text, "colour") {
		t.Errorf("Connect with an unknown field: %d %s", code, text)
	}
}

// A filter whose values are a fixed set refuses any other value, and names the set.
func TestFiltersKnowTheirValues(t *testing.T) {
	base, _ := serve(t, operator.Config{Processes: &announced{}, Workers: newHosted()})
	for path, want := range map[string]string{
		"/processes?phase=runing":      `is \"runing\", want one of created draining failed`,
		"/workers?state=runing":        `is \"runing\", want one of Deleted Deleting`,
		"/events?kinds=exit&kinds=los": `is \"los\", want one of joined phase`,
	} {
		if code, _, text := request(t, "GET", base+path, ""); code != 400 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	for _, path := range []string{"/processes?phase=Running", "/workers?state=running", "/events?kinds=EXIT"} {
		if code, _, text := request(t, "GET", base+path, ""); code != 200 {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
}

// What the path of REST says is said once: a query or a body that says it too is refused, and
// so is an If-Match that the body contradicts.
func TestRESTRefusesASecondObject(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), LoopbackRole: operator.RoleOperator})
	refused := func(verb, target, body, field, where string, header ...string) {
		t.Helper()
		code, _, text := request(t, verb, target, body, header...)
		if code != 400 || !strings.Contains(text, `"field":"`+field+`"`) || !strings.Contains(text, where) {
			t.Errorf("%s %s %s: %d %s", verb, target, body, code, text)
		}
	}
	fields := 0
	for _, file := range operatorv1.Files() {
		for i := range file.Services().Len() {
			all := file.Services().Get(i).Methods()
			for j := range all.Len() {
				verb, path := restOf(all.Get(j))
				if strings.HasPrefix(path, "/watch/") {
					continue
				}
				target := base + inPath.ReplaceAllString(path, "1")
				for _, found := range inPath.FindAllStringSubmatch(path, -1) {
					fields++
					field := all.Get(j).Input().Fields().ByName(protoreflect.Name(found[1]))
					for _, name := range []string{string(field.Name()), field.JSONName()} {
						body := ""
						if verb == "POST" || verb == "PATCH" {
							body = `{}`
							refused(verb, target, `{"`+name+`":"other"}`, found[1], "is in the path: leave it out of the body")
						}
						refused(verb, target+"?"+name+"=other", body, found[1], "is in the path: leave it out of the query")
					}
				}
			}
		}
	}
	if fields < 30 {
		t.Errorf("%d fields in paths", fields)
	}
	path := base + "/workflows/drone-survey/m-00000"
	refused("POST", path+"/transition", `{"phase":"flying","ifMatch":"*"}`, "if_match", "want one of the two", "If-Match", `"99"`)
	code, _, text := request(t, "PATCH", path, `{"fields":{"priority":5},"ifMatch":"1"}`, "If-Match", `"1"`)
	if code != 200 {
		t.Errorf("the same in both: %d %s", code, text)
	}
}

func TestFailuresOfAnAreaAreNotTold(t *testing.T) {
	m := newMemory(1)
	base, _ := serve(t, operator.Config{Workflows: m})
	m.fail(errors.New("nats://user:secret@host: no route"), false)
	code, _, text := request(t, "GET", base+"/definitions/drone-survey", "")
	if code != 500 || strings.Contains(text, "secret") || !strings.Contains(text, "incident") {
		t.Errorf("%d %s", code, text)
	}
	m.fail(context.DeadlineExceeded, false)
	if code, _, text := request(t, "GET", base+"/definitions/drone-survey", ""); code != 504 {
		t.Errorf("too slow: %d %s", code, text)
	}
	m.fail(nil, true)
	code, _, text = request(t, "GET", base+"/definitions/drone-survey", "")
	if code != 500 || strings.Contains(text, "defect") {
		t.Errorf("a panic: %d %s", code, text)
	}
}

func TestPagesAreCompleteAndDoNotRepeat(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(125)})
	seen := map[string]bool{}
	token := ""
	c := operatorv1connect.NewWorkflowServiceClient(http.DefaultClient, base)
	for pages := 1; ; pages++ {
		r, err := c.ListEntities(t.Context(), &operatorv1.ListEntitiesRequest{Type: "drone-survey", PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range r.GetEntities() {
			if seen[e.GetId()] {
				t.Errorf("%s came twice", e.GetId())
			}
			seen[e.GetId()] = true
		}
		if token = r.GetNextPageToken(); token == "" {
			if pages != 3 || len(seen) != 125 {
				t.Errorf("%d entities on %d pages", len(seen), pages)
			}
			return
		}
	}
}

func TestIdsMayBeAnyText(t *testing.T) {
	m := newMemory(0)
	base, _ := serve(t, operator.Config{Workflows: m})
	for _, id := range []string{"org.platform.domain.system.type.1", "a b", "ä/ö", "<script>alert(1)</script>", "a%2Fb", "history"} {
		m.add(id, mission{})
		code, _, text := request(t, "GET", base+"/workflows/drone-survey/"+url.PathEscape(id), "")
		if code != 200 {
			t.Errorf("%q: %d %s", id, code, text)
		}
		if code, _, text := request(t, "GET", base+"/ui/workflows/drone-survey/"+url.PathEscape(id), ""); code != 200 || strings.Contains(text, "<script>alert") {
			t.Errorf("page of %q: %d", id, code)
		}
	}
}

// Each read has an entity tag. A caller that has the answer already gets 304 and no body, until the
// answer is another one.
func TestReadsHaveEntityTags(t *testing.T) {
	m := newMemory(2)
	base, _ := serve(t, operator.Config{Workflows: m})
	for _, path := range []string{"/definitions", "/workflows/drone-survey", "/workflows/drone-survey/m-00001", "/workflows/drone-survey/m-00001/history", "/whoami", "/openapi.json"} {
		code, h, text := request(t, "GET", base+path, "")
		tag := h.Get("ETag")
		if code != 200 || len(tag) < 3 || text == "" {
			t.Errorf("%s: %d with the tag %q", path, code, tag)
		}
		for _, none := range []string{tag, "W/" + tag, `"x", ` + tag, "*"} {
			if code, h, text := request(t, "GET", base+path, "", "If-None-Match", none); code != 304 || text != "" || h.Get("ETag") != tag {
				t.Errorf("%s, If-None-Match %s: %d %q with the tag %s", path, none, code, text, h.Get("ETag"))
			}
		}
		if code, _, again := request(t, "GET", base+path, "", "If-None-Match", `"x"`); code != 200 || again != text {
			t.Errorf("%s, with another tag: %d %s", path, code, again)
		}
		if code, _, again := request(t, "GET", base+path, "", "Range", "bytes=9999999-"); code != 200 || again != text {
			t.Errorf("%s, a part of it: %d %s", path, code, again)
		}
		if code, _, again := request(t, "GET", base+path, "", "If-Match", `"x"`); code != 200 || again != text {
			t.Errorf("%s, if it is another one: %d %s", path, code, again)
		}
	}
	_, h, _ := request(t, "GET", base+"/workflows/drone-survey", "")
	if code, _, text := request(t, "POST", base+"/workflows/drone-survey/m-00001/transition", `{"phase":"flying"}`, "If-None-Match", "*"); code != 200 {
		t.Fatalf("a write: %d %s", code, text)
	}
	code, _, text := request(t, "GET", base+"/workflows/drone-survey", "", "If-None-Match", h.Get("ETag"))
	if code != 200 || !strings.Contains(text, "flying") {
		t.Errorf("after a change: %d %s", code, text)
	}
	if code, h, _ := request(t, "GET", base+"/workflows/drone-survey/nosuch", "", "If-None-Match", "*"); code != 404 || h.Get("ETag") != "" {
		t.Errorf("an error: %d with the tag %q", code, h.Get("ETag"))
	}
}
