package operator_test

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// operation is a path of the OpenAPI document with one of its methods.
type operation struct {
	method, path string
	query        []string // the names of its parameters
	body         []byte   // an example of its body, nil when it has none
}

// operations returns everything that the document describes.
func operations(t testing.TB) (list []operation) {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal(operator.OpenAPI, &doc); err != nil {
		t.Fatal(err)
	}
	paths, _ := doc["paths"].(map[string]any)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		methods, _ := paths[path].(map[string]any)
		for _, method := range slices.Sorted(maps.Keys(methods)) {
			op := operation{method: strings.ToUpper(method), path: path}
			described, _ := methods[method].(map[string]any)
			parameters, _ := described["parameters"].([]any)
			for _, p := range parameters {
				if p, _ := p.(map[string]any); p["in"] == "query" {
					name, _ := p["name"].(string)
					op.query = append(op.query, name)
				}
			}
			if schema := at(described, "requestBody", "content", "application/json", "schema"); schema != nil {
				op.body, _ = json.Marshal(exampleOf(doc, schema, 6))
			}
			list = append(list, op)
		}
	}
	return list
}

// at follows names into an object of JSON.
func at(node any, names ...string) map[string]any {
	for _, name := range names {
		object, _ := node.(map[string]any)
		node = object[name]
	}
	object, _ := node.(map[string]any)
	return object
}

// exampleOf returns a value that matches a schema, at most depth objects deep.
func exampleOf(doc, schema map[string]any, depth int) any {
	if ref, ok := schema["$ref"].(string); ok {
		return exampleOf(doc, at(doc, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...), depth)
	}
	if list, _ := schema["examples"].([]any); len(list) > 0 {
		return list[0]
	}
	if list, _ := schema["enum"].([]any); len(list) > 0 {
		return list[0]
	}
	if list, _ := schema["oneOf"].([]any); len(list) > 0 {
		return exampleOf(doc, at(list[len(list)-1]), depth)
	}
	kind := schema["type"]
	if list, ok := kind.([]any); ok {
		kind = list[0]
	}
	switch kind {
	case "object":
		object := map[string]any{}
		if depth > 0 {
			for name, child := range at(schema["properties"]) {
				object[name] = exampleOf(doc, at(child), depth-1)
			}
		}
		return object
	case "array":
		return []any{exampleOf(doc, at(schema["items"]), depth-1)}
	case "integer", "number":
		return 1
	case "boolean":
		return true
	}
	switch schema["format"] {
	case "byte":
		return "AAAA"
	case "duration":
		return "1s"
	}
	return "x"
}

// bomb is the gzip of 64 MiB of spaces. It may follow the gzip of another text (RFC 1952,
// section 2.2).
func bomb(t testing.TB) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	for range 64 {
		_, _ = z.Write(bytes.Repeat([]byte(" "), 1<<20))
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// encodings are the ways in which a body is sent: the header Content-Encoding and what it
// makes of a text.
func encodings(t testing.TB) []func(text []byte) (header string, body []byte) {
	large := bomb(t)
	packed := func(text []byte) []byte {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		_, _ = z.Write(text)
		_ = z.Close() // a Buffer never fails
		return out.Bytes()
	}
	return []func([]byte) (string, []byte){
		func(text []byte) (string, []byte) { return "", text },
		func(text []byte) (string, []byte) { return "identity", text },
		func(text []byte) (string, []byte) { return "gzip", packed(text) },
		func(text []byte) (string, []byte) { return "GZip ", packed(text) },
		func(text []byte) (string, []byte) { return "gzip", text },
		func(text []byte) (string, []byte) {
			out := packed(text)
			out[len(out)/2] ^= 0x55
			return "gzip", out
		},
		func(text []byte) (string, []byte) { out := packed(text); return "gzip", out[:len(out)*2/3] },
		func(text []byte) (string, []byte) { return "gzip", append(packed(text), large...) },
		func(text []byte) (string, []byte) { return "gzip", append(packed(text), "more"...) },
		func(text []byte) (string, []byte) { return "gzip, gzip", packed(packed(text)) },
		func(text []byte) (string, []byte) {
			var out bytes.Buffer
			z, err := flate.NewWriter(&out, flate.BestSpeed)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = z.Write(text)
			_ = z.Close() // a Buffer never fails
			return "deflate", out.Bytes()
		},
		func(text []byte) (string, []byte) { return "br", text },
		func(text []byte) (string, []byte) { return strings.Repeat("x", 300), text },
	}
}

// FuzzREST sends requests of the OpenAPI document, with bodies in every encoding, in one
// piece and in chunks, as a viewer and as an operator, and without a limit of their rate.
// The server never answers with 500, an error says its reason, and the memory of one
// request is bounded.
func FuzzREST(f *testing.F) {
	ops, ways := operations(f), encodings(f)
	handlers := map[bool]http.Handler{}
	for viewer, role := range map[bool]operator.Role{true: operator.RoleViewer, false: operator.RoleOperator} {
		plain := newScene(func(what string) string { return what })
		s, err := operator.New(operator.Config{
			Workflows: newMemory(3), Workers: willing{sceneWorkers{s: plain}}, Processes: eager{sceneProcesses{s: plain}},
			Auth: roled(role), Rate: 1e9, Logger: quiet,
		})
		if err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() { s.Close(context.Background()) })
		handlers[viewer] = s.Handler()
	}
	for i, op := range ops {
		for way := range ways {
			f.Add(uint8(i), uint8(way), way%2 == 0, false, "m-00000", "", op.body)
			if op.body != nil {
				f.Add(uint8(i), uint8(way), way%2 == 1, way%3 == 0, "drone-survey", "", op.body)
			}
		}
		for _, body := range []string{"{", "[]", "null", `{"fields":{"a":[[[[[[{}]]]]]]},"code":{"content":"="}}`, "\xff", strings.Repeat("[", 20_000)} {
			f.Add(uint8(i), uint8(0), false, false, "drone-survey", "", []byte(body))
		}
		for _, name := range op.query {
			f.Add(uint8(i), uint8(0), false, true, "drone-survey", name+"=1", []byte(nil))
			f.Add(uint8(i), uint8(0), false, true, "drone-survey", name+"=x&"+name+"=%00", []byte(nil))
		}
		f.Add(uint8(i), uint8(0), false, false, "../%2f\x00\xff", "%zz;&=", op.body)
	}
	f.Fuzz(func(t *testing.T, i, way uint8, chunked, viewer bool, word, query string, text []byte) {
		op := ops[int(i)%len(ops)]
		header, body := ways[int(way)%len(ways)](text)
		target := inPath.ReplaceAllString(op.path, strings.ReplaceAll(url.PathEscape(word), "$", "$$"))
		if query != "" {
			target += "?" + query
		}
		var in io.Reader = bytes.NewReader(body)
		if chunked {
			in = iotest.HalfReader(in)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := http.NewRequestWithContext(context.WithValue(ctx, http.LocalAddrContextKey, net.Addr(local)), op.method, "http://localhost"+target, in)
		if err != nil {
			return // not a URL
		}
		r.RemoteAddr, r.RequestURI = local.String(), target
		if chunked {
			r.ContentLength, r.TransferEncoding = -1, []string{"chunked"}
		}
		r.Header.Set("Content-Type", "application/json")
		if header != "" {
			r.Header.Set("Content-Encoding", header)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		w := &sink{header: http.Header{}}
		handlers[viewer].ServeHTTP(&once{w, cancel}, r)
		runtime.ReadMemStats(&after)
		if used, most := after.TotalAlloc-before.TotalAlloc, uint64(96<<20+300*len(text)); used > most {
			t.Errorf("%s %s: %d bytes as %q: allocated %d MiB", op.method, target, len(body), header, used>>20)
		}
		judge(t, op.method+" "+target+" as "+header, w.code, w.text)
	})
}

// judge checks an answer of REST: no defect of the server, and an error says why.
func judge(t *testing.T, what string, code int, text string) {
	t.Helper()
	if code == http.StatusInternalServerError || code == 0 {
		t.Errorf("%s: %d %.500s", what, code, text)
	}
	if code < 400 {
		return
	}
	var status struct {
		Code    int
		Message string
		Details []struct{ Reason string }
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil || status.Code == 0 || status.Message == "" || len(status.Details) == 0 || status.Details[0].Reason == "" {
		t.Errorf("%s: the error has no reason: %d %.500s", what, code, text)
	}
}

// once is the connection of a caller that goes when the answer begins, because a watch
// does not end.
type once struct {
	*sink
	leave func()
}

func (o *once) Flush() { o.leave() }

// Over a connection too, and with workflows and processes on a real NATS, every path takes
// a body in every encoding, with a length and in chunks.
func TestEveryPathTakesEveryEncoding(t *testing.T) {
	_, mgr, js := realServer(t)
	if err := mgr.Create(t.Context(), &survey{ID: "m-1", State: "planning"}); err != nil {
		t.Fatal(err)
	}
	f, err := presence.Open(t.Context(), js, presence.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	plain := newScene(func(what string) string { return what })
	base, _ := serve(t, operator.Config{Workflows: operator.FromManager(mgr), Processes: operator.FromPresence(f), Workers: willing{sceneWorkers{s: plain}}, Rate: 1e9})
	names := strings.NewReplacer("{type}", "drone-survey", "{id}", "m-1", "{worker_id}", "w-1")
	sent, ways := 0, encodings(t)
	for _, op := range operations(t) {
		for _, encode := range ways {
			header, body := encode(op.body)
			var in io.Reader = bytes.NewReader(body)
			if sent%2 == 1 {
				in = io.MultiReader(in) // of an unknown length: it goes in chunks
			}
			ctx, cancel := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, op.method, base+names.Replace(op.path), in)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if header != "" {
				req.Header.Set("Content-Encoding", header)
			}
			what := op.method + " " + op.path + " as " + header
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			text := []byte{}
			if !strings.HasPrefix(op.path, "/watch/") || resp.StatusCode >= 400 {
				if text, err = io.ReadAll(resp.Body); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			cancel()
			resp.Body.Close()
			judge(t, what, resp.StatusCode, string(text))
			sent++
		}
	}
	if sent < 400 {
		t.Errorf("only %d requests", sent)
	}
}

// willing is a host of workers that does what it is asked to.
type willing struct{ sceneWorkers }

func (w willing) Create(ctx context.Context, req *operatorv1.CreateWorkerRequest, _ string) (*operatorv1.Worker, error) {
	return w.Get(ctx, req.GetId())
}
func (w willing) Start(ctx context.Context, id, _ string) (*operatorv1.Worker, error) {
	return w.Get(ctx, id)
}
func (w willing) Stop(ctx context.Context, id, _ string) (*operatorv1.Worker, error) {
	return w.Get(ctx, id)
}
func (w willing) LoadCode(ctx context.Context, id string, _ *operatorv1.Code, _ string) (*operatorv1.Worker, error) {
	return w.Get(ctx, id)
}
func (w willing) Rollback(ctx context.Context, id, digest, _ string) (*operatorv1.Worker, error) {
	if digest == "" {
		return nil, operator.Errorf(connect.CodeFailedPrecondition, operator.ReasonInvalid, "digest", "there is no earlier code")
	}
	return w.Get(ctx, id)
}
func (w willing) Promote(ctx context.Context, id, _ string) (*operatorv1.Worker, error) {
	return w.Get(ctx, id)
}
func (w willing) Delete(context.Context, string, string) error { return nil }
func (w willing) History(ctx context.Context, id string) ([]*operatorv1.CodeVersion, error) {
	x, err := w.Get(ctx, id)
	return x.GetVersions(), err
}
func (w willing) Recover(context.Context, string) (*operatorv1.RecoverWorkersResponse, error) {
	return &operatorv1.RecoverWorkersResponse{}, nil
}
func (w willing) Redrive(_ context.Context, _ string, letters []uint64) (int, error) {
	return len(letters), nil
}
func (w willing) RedriveEdited(context.Context, string, uint64, []byte) ([]byte, error) {
	return []byte(w.s.text("data")), nil
}
func (w willing) Apply(ctx context.Context, spec *operatorv1.WorkerSpec, _ bool, _ string) (*operatorv1.ApplyWorkerResponse, error) {
	x, err := w.Get(ctx, spec.GetId())
	return &operatorv1.ApplyWorkerResponse{Worker: x}, err
}
func (w willing) Logs(context.Context, string, int64, int) ([]*operatorv1.WorkerLogLine, error) {
	return []*operatorv1.WorkerLogLine{{Number: 7, Text: w.s.text("line")}}, nil
}
func (w willing) FollowLogs(ctx context.Context, _ string, _ int64, send func(*operatorv1.WorkerLogLine) error) error {
	if err := send(&operatorv1.WorkerLogLine{Number: 7, Text: w.s.text("line")}); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}
func (w willing) State(context.Context, string, uint64, int) ([]*operatorv1.StateEntry, uint64, error) {
	return []*operatorv1.StateEntry{{Key: "k", Value: []byte(w.s.text("value"))}}, 0, nil
}
func (w willing) Value(_ context.Context, _, key string) (*operatorv1.StateEntry, error) {
	return &operatorv1.StateEntry{Key: key, Value: []byte(w.s.text("value"))}, nil
}
func (w willing) Timers(context.Context, string, uint64, int) ([]*operatorv1.WorkerTimer, uint64, error) {
	return []*operatorv1.WorkerTimer{{Name: "t", Key: w.s.text("key")}}, 0, nil
}
func (w willing) CancelTimer(context.Context, string, string, string, string) error { return nil }
func (w willing) Test(context.Context, *operatorv1.TestWorkerRequest) (*operatorv1.TestWorkerResponse, error) {
	return &operatorv1.TestWorkerResponse{Logs: []string{w.s.text("line")}}, nil
}

// eager are processes that obey.
type eager struct{ sceneProcesses }

func (eager) Drain(context.Context, string, string, string) (string, error) { return "running", nil }
func (eager) Suspend(context.Context, string, string, string) (string, error) {
	return "running", nil
}
func (eager) RestartUnit(context.Context, string, string, string, string) (*operatorv1.RestartUnitResponse, error) {
	return &operatorv1.RestartUnitResponse{}, nil
}
func (eager) Resume(context.Context, string, string) (string, error) { return "running", nil }
