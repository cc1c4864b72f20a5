package operator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// methods returns all methods of the contract.
func methods() (list []protoreflect.MethodDescriptor) {
	for _, file := range operatorv1.Files() {
		for i := range file.Services().Len() {
			for j := range file.Services().Get(i).Methods().Len() {
				list = append(list, file.Services().Get(i).Methods().Get(j))
			}
		}
	}
	return list
}

// reads reports whether a viewer may call a method. It is the test's own list,
// not the contract's idempotency level, which the server uses.
func reads(m protoreflect.MethodDescriptor) bool {
	name := string(m.Name())
	if name == "ListWorkerTimers" { // shows what a worker has stored, as ReadWorkerState does
		return false
	}
	return !inspects(m) && (strings.HasPrefix(name, "Get") || strings.HasPrefix(name, "List") || strings.HasPrefix(name, "Watch") || name == "WhoAmI" || name == "Diagnose")
}

// inspects reports whether an inspector may call a method, and a viewer may not.
func inspects(m protoreflect.MethodDescriptor) bool {
	return m.Name() == "GetLogs" || m.Name() == "GetStacks" || m.Name() == "GetConfig"
}

// a protocol calls any method with a request that was made at run time.
type protocol struct {
	name string
	call func(t *testing.T, base string, m protoreflect.MethodDescriptor, req proto.Message, token string) error
}

var protocols = []protocol{
	{"gRPC", rpc(connect.WithGRPC())}, {"gRPC-Web", rpc(connect.WithGRPCWeb())}, {"Connect", rpc()}, {"REST", callREST},
}

func rpc(opts ...connect.ClientOption) func(*testing.T, string, protoreflect.MethodDescriptor, proto.Message, string) error {
	return func(t *testing.T, base string, m protoreflect.MethodDescriptor, msg proto.Message, token string) error {
		t.Helper()
		opts := append(slices.Clone(opts), connect.WithSchema(m), connect.WithResponseInitializer(func(_ connect.Spec, msg any) error {
			*msg.(*dynamicpb.Message) = *dynamicpb.NewMessage(m.Output())
			return nil
		}))
		c := connect.NewClient[dynamicpb.Message, dynamicpb.Message](h2c(t), base+"/"+string(m.Parent().FullName())+"/"+string(m.Name()), opts...)
		dynamic := dynamicpb.NewMessage(m.Input())
		proto.Merge(dynamic, msg)
		req := connect.NewRequest(dynamic)
		if token != "" {
			req.Header().Set("Authorization", "Bearer "+token)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if !m.IsStreamingServer() {
			_, err := c.CallUnary(ctx, req)
			return err
		}
		s, err := c.CallServerStream(ctx, req)
		if err != nil {
			return err
		}
		s.Receive()
		err = s.Err()
		cancel()
		s.Close()
		return err
	}
}

var inPath = regexp.MustCompile(`\{(\w+)\}`)

// restOf returns the REST verb and path of a method.
func restOf(m protoreflect.MethodDescriptor) (verb, path string) {
	switch m.Name() {
	case "Watch":
		return "GET", "/watch/workflows/{type}"
	case "WatchProcesses":
		return "GET", "/watch/processes"
	case "FollowWorkerLogs":
		return "GET", "/watch/workers/{id}/logs"
	}
	rule := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
	switch p := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		return "GET", p.Get
	case *annotations.HttpRule_Post:
		return "POST", p.Post
	case *annotations.HttpRule_Patch:
		return "PATCH", p.Patch
	case *annotations.HttpRule_Delete:
		return "DELETE", p.Delete
	}
	return "", ""
}

// callREST makes the path, the query and the body from a message.
func callREST(t *testing.T, base string, m protoreflect.MethodDescriptor, msg proto.Message, token string) error {
	t.Helper()
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(msg)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	verb, path := restOf(m)
	path = inPath.ReplaceAllStringFunc(path, func(name string) string {
		value, ok := fields[name[1:len(name)-1]].(string)
		if !ok {
			value = "x"
		}
		delete(fields, name[1:len(name)-1])
		return url.PathEscape(value)
	})
	body := ""
	if verb == "GET" || verb == "DELETE" {
		query := url.Values{}
		for name, v := range fields {
			if list, ok := v.([]any); ok {
				for _, e := range list {
					query.Add(name, fmt.Sprint(e))
				}
				continue
			}
			query.Set(name, fmt.Sprint(v))
		}
		if len(query) > 0 {
			path += "?" + query.Encode()
		}
	} else {
		rest, _ := json.Marshal(fields)
		body = string(rest)
	}
	return sendREST(t, verb, base+path, body, token)
}

// sendREST returns the error of REST in the form of the other protocols.
func sendREST(t *testing.T, verb, target, body, token string) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, verb, target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := h2c(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var st status.Status
	if err := protojson.Unmarshal(text, &st); err != nil {
		t.Fatalf("%s %.80s: %d %s: %v", verb, target, resp.StatusCode, text, err)
	}
	answer := connect.NewError(connect.Code(st.GetCode()), errors.New(st.GetMessage()))
	for _, d := range st.GetDetails() {
		m, err := d.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		detail, err := connect.NewErrorDetail(m)
		if err != nil {
			t.Fatal(err)
		}
		answer.AddDetail(detail)
	}
	return answer
}

// said returns the reason and the fields in an error's details.
func said(err error) (reason string, fields []string) {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return "", nil
	}
	for _, d := range ce.Details() {
		v, err := d.Value()
		if err != nil {
			continue
		}
		switch v := v.(type) {
		case *errdetails.ErrorInfo:
			reason = v.GetReason()
		case *errdetails.BadRequest:
			for _, f := range v.GetFieldViolations() {
				fields = append(fields, f.GetField())
			}
		}
	}
	return reason, fields
}

// Every method, in every protocol, for every role: without credentials a caller gets nothing,
// a viewer reads, an operator acts, and every attempt of a known caller to act
// is in the audit.
func TestRolesAreEnforcedInEveryProtocol(t *testing.T) {
	_, auth := tokenFile(t)
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Auth: auth, Rate: 1e6})
	attempts := map[string]int{}
	for _, p := range protocols {
		for _, m := range methods() {
			what := p.name + " " + string(m.Name())
			req := dynamicpb.NewMessage(m.Input())
			if m.IsStreamingServer() {
				req.Set(m.Input().Fields().ByNumber(1), protoreflect.ValueOfString(strings.Repeat("x", 3000))) // invalid, so refused after the role check
			}
			for _, token := range []string{adaToken, ivyToken, vicToken} {
				err := p.call(t, base, m, req, token)
				code := connect.CodeOf(err)
				reason, _ := said(err)
				if token == vicToken && !reads(m) || token == ivyToken && !reads(m) && !inspects(m) {
					if code != connect.CodePermissionDenied || reason != operator.ReasonForbidden {
						t.Errorf("%s by a caller without the role: %v", what, err)
					}
				} else if err != nil && (code == connect.CodePermissionDenied || code == connect.CodeUnauthenticated || code == connect.CodeInternal || code == connect.CodeUnknown) {
					t.Errorf("%s by a permitted caller: %v", what, err)
				}
				if !reads(m) {
					attempts[string(m.Parent().Name())+"."+string(m.Name())]++
				}
			}
			for who, token := range map[string]string{"missing": "", "forged": "eve-0123456789-0123456789", "expired": oldToken} {
				// After twenty attempts the address has to wait; that answer
				// reveals nothing either.
				if code := connect.CodeOf(p.call(t, base, m, req, token)); code != connect.CodeUnauthenticated && code != connect.CodeResourceExhausted {
					t.Errorf("%s with credentials that are %s: %v", what, who, code)
				}
			}
		}
	}
	_, _, text := request(t, "GET", base+"/audit?page_size=1000", "", bearer(vicToken)...)
	var audit struct {
		Entries []struct{ Who, Action, Outcome string }
	}
	if err := json.Unmarshal([]byte(text), &audit); err != nil {
		t.Fatal(err)
	}
	if len(attempts) < 13 {
		t.Errorf("only %d methods act", len(attempts))
	}
	for _, e := range audit.Entries {
		attempts[e.Action]--
		if e.Outcome == "ok" && e.Who != "ada" && (e.Who != "ivy" || !strings.HasPrefix(e.Action, "ProcessService.Get")) {
			t.Errorf("%s was allowed to do %s", e.Who, e.Action)
		}
	}
	for action, n := range attempts {
		if n != 0 {
			t.Errorf("%d attempts at %s are not in the audit", n, action)
		}
	}
}

// A text field that is too long or has control characters is
// refused by name, in every protocol.
func TestEveryTextOfEveryRequestIsLookedAt(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Workers: noWorkers{}, Rate: 1e6})
	texts := 0
	for _, m := range methods() {
		var each func(at protoreflect.MessageDescriptor, path string, set func(*dynamicpb.Message, func(protoreflect.Message)))
		each = func(at protoreflect.MessageDescriptor, path string, set func(*dynamicpb.Message, func(protoreflect.Message))) {
			for i := range at.Fields().Len() {
				f := at.Fields().Get(i)
				name := path + string(f.Name())
				if f.Kind() == protoreflect.MessageKind && f.Message().ParentFile() == m.ParentFile() && !f.IsList() {
					each(f.Message(), name+".", func(req *dynamicpb.Message, do func(protoreflect.Message)) {
						set(req, func(in protoreflect.Message) { do(in.Mutable(f).Message()) })
					})
				}
				if f.Kind() != protoreflect.StringKind {
					continue
				}
				texts++
				for _, text := range []string{strings.Repeat("x", 2049), "a\x01b"} {
					req := dynamicpb.NewMessage(m.Input())
					set(req, func(in protoreflect.Message) {
						if f.IsList() {
							in.Mutable(f).List().Append(protoreflect.ValueOfString(text))
							return
						}
						in.Set(f, protoreflect.ValueOfString(text))
					})
					for _, p := range protocols {
						err := p.call(t, base, m, req, "")
						reason, fields := said(err)
						if connect.CodeOf(err) != connect.CodeInvalidArgument || reason != operator.ReasonInvalid || !slices.ContainsFunc(fields, func(f string) bool { return strings.HasPrefix(f, name) }) {
							t.Errorf("%s %s: %s of %d bytes: reason %q, fields %.200q: %.200v", p.name, m.Name(), name, len(text), reason, fields, err)
						}
					}
				}
			}
		}
		each(m.Input(), "", func(req *dynamicpb.Message, do func(protoreflect.Message)) { do(req) })
	}
	if texts < 40 {
		t.Errorf("only %d texts", texts)
	}
}

// A field of another type, an unknown field, and a body that is
// not valid are reported as the caller's fault.
func TestEveryRequestRefusesOtherTypes(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Workers: noWorkers{}, Rate: 1e6})
	malformed := func(what string, err error) {
		t.Helper()
		if code := connect.CodeOf(err); err == nil || code != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, m := range methods() {
		rpcPath := base + "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
		verb, path := restOf(m)
		path = base + inPath.ReplaceAllString(path, "x")
		bodies := []string{`{"colour":"red"}`, `[]`, `"x"`, `{`, "\xff\xfe"}
		for i := range m.Input().Fields().Len() {
			f := m.Input().Fields().Get(i)
			bodies = append(bodies, fmt.Sprintf(`{%q:[[1]]}`, f.Name()), fmt.Sprintf(`{%q:{"colour":[{}]}}`, f.JSONName()))
			if verb == "GET" && f.Kind() != protoreflect.StringKind && !f.IsList() {
				malformed("REST "+path+" with "+string(f.Name())+"=several", sendREST(t, verb, path+"?"+string(f.Name())+"=several", "", ""))
			}
		}
		if verb == "GET" || verb == "DELETE" {
			malformed("REST "+path+" with colour=red", sendREST(t, verb, path+"?colour=red", "", ""))
		}
		for _, body := range bodies {
			if m.Name() == "Patch" && strings.HasPrefix(body, `{"fields":{`) {
				continue // the field accepts any value
			}
			if verb == "POST" || verb == "PATCH" {
				malformed("REST "+path+" with "+body, sendREST(t, verb, path, body, ""))
			}
			if m.IsStreamingServer() {
				continue // enveloped: FuzzAPI covers it
			}
			code, _, text := request(t, "POST", rpcPath, body)
			if code != 400 || !strings.Contains(text, `"code":"invalid_argument"`) {
				t.Errorf("Connect %s with %s: %d %s", m.Name(), body, code, text)
			}
		}
		// A truncated gRPC message: a text of five bytes with one of them.
		garbage := []byte{0, 0, 0, 0, 3, 0x0a, 5, 'x'}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, rpcPath, bytes.NewReader(garbage))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/grpc+proto")
		req.Header.Set("Te", "trailers")
		resp, err := h2c(t).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if got := resp.Trailer.Get("Grpc-Status") + resp.Header.Get("Grpc-Status"); got != "3" {
			t.Errorf("gRPC %s with a message that is cut off: status %q %s", m.Name(), got, resp.Trailer.Get("Grpc-Message"))
		}
	}
}

// An error quotes only a part of what a caller sent: it is in the
// header of an answer, which cannot have megabytes.
func TestErrorsStaySmall(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Workers: noWorkers{}, Rate: 1e6})
	long := strings.Repeat("x", 1<<20)
	m := operatorv1.File_lifecycle_operator_v1_workflow_proto.Services().ByName("WorkflowService").Methods()
	fields := func(name string) proto.Message {
		req := &operatorv1.PatchRequest{Type: "drone-survey", Id: "m-00000"}
		if err := protojson.Unmarshal([]byte(`{"fields":{"`+name+`":"`+long+`"}}`), req); err != nil {
			t.Fatal(err)
		}
		return req
	}
	for what, call := range map[string]struct {
		method protoreflect.MethodDescriptor
		req    proto.Message
	}{
		"the name of a field":  {m.ByName("Patch"), fields(long)},
		"the value of a field": {m.ByName("Patch"), fields("priority")},
		"a filter":             {m.ByName("ListEntities"), &operatorv1.ListEntitiesRequest{Type: "drone-survey", Match: []string{long, "a=" + long, long + "=a", "priority=" + long}}},
		"an etag":              {m.ByName("Transition"), &operatorv1.TransitionRequest{Type: "drone-survey", Id: "m-00000", Phase: "flying", IfMatch: long}},
	} {
		err := protocols[0].call(t, base, call.method, call.req, "")
		var ce *connect.Error
		if !errors.As(err, &ce) || ce.Code() != connect.CodeInvalidArgument {
			t.Errorf("%s: %.200v", what, err)
			continue
		}
		n := len(ce.Message())
		for _, d := range ce.Details() {
			n += len(d.Bytes())
		}
		if n > 4<<10 {
			t.Errorf("%s: the error has %d bytes", what, n)
		}
	}
}
