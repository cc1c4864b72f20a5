package operator_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/pleme-io/lifecycle-go/fleet/operator"
)

// The document has exactly the paths that REST serves.
func TestOpenAPIIsWhatIsServed(t *testing.T) {
	base, _ := serve(t, operator.Config{Workflows: newMemory(1), Rate: 1e6})
	code, h, text := request(t, "GET", base+"/openapi.json", "")
	if code != 200 || h.Get("Content-Type") != "application/json" || text != string(operator.OpenAPI) {
		t.Fatalf("the document: %d %v", code, h)
	}
	var doc struct {
		Paths map[string]map[string]struct {
			Parameters []struct {
				Name, In string
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, m := range methods() {
		verb, path := restOf(m)
		served[verb+" "+path] = true
	}
	documented := map[string]bool{}
	for path, verbs := range doc.Paths {
		for verb, op := range verbs {
			verb = strings.ToUpper(verb)
			documented[verb+" "+path] = true
			if !served[verb+" "+path] {
				t.Errorf("%s %s is documented, but belongs to no method", verb, path)
			}
			inPathParameters := 0
			for _, p := range op.Parameters {
				if p.In == "path" {
					inPathParameters++
					if !strings.Contains(path, "{"+p.Name+"}") {
						t.Errorf("%s %s has the parameter %s, which is not in it", verb, path, p.Name)
					}
				}
			}
			if inPathParameters != strings.Count(path, "{") {
				t.Errorf("%s %s documents %d parameters of its path", verb, path, inPathParameters)
			}
			// An unserved path is 404 or 405; for areas that this server lacks it answers otherwise.
			err := sendREST(t, verb, base+inPath.ReplaceAllString(path, "x")+map[bool]string{true: "?colour=red"}[verb == "GET"], map[bool]string{true: `{"colour":"red"}`}[verb == "POST" || verb == "PATCH"], "")
			if reason, fields := said(err); reason != operator.ReasonMalformed || len(fields) == 0 || fields[0] != "colour" {
				if verb != http.MethodDelete {
					t.Errorf("%s %s: %v", verb, path, err)
				}
			}
		}
	}
	for route := range served {
		if !documented[route] {
			t.Errorf("%s is served, but not documented", route)
		}
	}
	for _, route := range []string{"DELETE /workflows/x/x", "PUT /workers/x", "GET /workers:recover", "GET /nothing"} {
		verb, path, _ := strings.Cut(route, " ")
		if reason, _ := said(sendREST(t, verb, base+path, "", "")); reason != operator.ReasonNotFound && reason != operator.ReasonNotServed {
			t.Errorf("%s is served: %q", route, reason)
		}
	}
}

// The server's answers match the document, and the
// document's examples match their schemas.
func TestAnswersAreThoseOfTheDocument(t *testing.T) {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(operator.OpenAPI))
	if err != nil {
		t.Fatal(err)
	}
	schemas := jsonschema.NewCompiler()
	schemas.AssertFormat()
	if err := schemas.AddResource("openapi.json", doc); err != nil {
		t.Fatal(err)
	}
	pointer := strings.NewReplacer("~", "~0", "/", "~1")
	validate := func(what string, value any, at ...string) {
		t.Helper()
		fragment := ""
		for _, part := range at {
			fragment += "/" + pointer.Replace(part)
		}
		schema, err := schemas.Compile("openapi.json#" + fragment)
		if err == nil {
			err = schema.Validate(value)
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	base, mgr, _ := realServer(t)
	if err := mgr.Create(t.Context(), &survey{ID: "a", State: "planning", Org: "acme"}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ verb, path, route, body, answer string }{
		{"get", "/definitions", "/definitions", "", "200"},
		{"get", "/definitions/drone-survey", "/definitions/{type}", "", "200"},
		{"get", "/workflows/drone-survey", "/workflows/{type}", "", "200"},
		{"get", "/workflows/drone-survey/a", "/workflows/{type}/{id}", "", "200"},
		{"post", "/workflows/drone-survey/a/transition", "/workflows/{type}/{id}/transition", `{"phase":"flying","note":"go","dryRun":true}`, "200"},
		{"post", "/workflows/drone-survey/a/transition", "/workflows/{type}/{id}/transition", `{"phase":"flying"}`, "200"},
		{"post", "/workflows/drone-survey/a/transition", "/workflows/{type}/{id}/transition", `{"phase":"nowhere"}`, "default"},
		{"patch", "/workflows/drone-survey/a", "/workflows/{type}/{id}", `{"fields":{"priority":4}}`, "200"},
		{"get", "/workflows/drone-survey/a/history", "/workflows/{type}/{id}/history", "", "200"},
		{"get", "/processes", "/processes", "", "200"},
		{"get", "/processes/unknown", "/processes/{id}", "", "default"},
		{"get", "/workers", "/workers", "", "default"},
		{"get", "/whoami", "/whoami", "", "200"},
		{"get", "/audit", "/audit", "", "200"},
		{"get", "/watch/workflows/unknown", "/watch/workflows/{type}", "", "default"},
	} {
		what := tc.verb + " " + tc.path + " " + tc.body
		code, _, text := request(t, strings.ToUpper(tc.verb), base+tc.path, tc.body)
		if (code == 200) != (tc.answer == "200") {
			t.Errorf("%s: %d %s", what, code, text)
			continue
		}
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		validate(what, value, "paths", tc.route, tc.verb, "responses", tc.answer, "content", "application/json", "schema")
		if tc.body != "" {
			sent, _ := jsonschema.UnmarshalJSON(strings.NewReader(tc.body))
			validate("what was sent by "+what, sent, "paths", tc.route, tc.verb, "requestBody", "content", "application/json", "schema")
		}
	}
	examples := 0
	var walk func(node any, at []string)
	walk = func(node any, at []string) {
		switch node := node.(type) {
		case map[string]any:
			list, _ := node["examples"].([]any)
			for _, example := range list {
				examples++
				validate(fmt.Sprintf("example %v", example), example, at...)
			}
			for name, child := range node {
				walk(child, append(at[:len(at):len(at)], name))
			}
		case []any:
			for i, child := range node {
				walk(child, append(at[:len(at):len(at)], fmt.Sprint(i)))
			}
		}
	}
	walk(doc, nil)
	if examples == 0 {
		t.Error("the document has no examples")
	}
}
