package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const contract = "../../fleet/operator"

func TestCommittedCodeIsWhatTheContractSays(t *testing.T) {
	bin := "../../bin"
	for _, p := range plugins {
		if _, err := os.Stat(filepath.Join(bin, p.name)); err != nil {
			t.Skipf("%s is not built: \"make generate\" builds it (minutes the first time)", p.name)
		}
	}
	files, err := generate(t.Context(), contract, bin)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(contract, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("fleet/operator/%s is stale (%v): run \"make generate\" and commit what it writes", name, err)
		}
	}
}

// Every method has its REST path in the OpenAPI document, and every reference in
// it resolves.
func TestOpenAPIHasEveryPath(t *testing.T) {
	sources, err := compile(t.Context(), filepath.Join(contract, "proto"))
	if err != nil {
		t.Fatal(err)
	}
	request, err := requestFor(sources)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(contract, openAPI))
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		OpenAPI    string
		Paths      map[string]map[string]struct{ Responses map[string]any }
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(doc.OpenAPI, "3.1.") {
		t.Errorf("it is OpenAPI %q", doc.OpenAPI)
	}
	var services []*descriptorpb.ServiceDescriptorProto
	for _, f := range request.ProtoFile {
		if slices.Contains(request.FileToGenerate, f.GetName()) {
			services = append(services, f.GetService()...)
		}
	}
	methods := 0
	for _, s := range services {
		for _, m := range s.GetMethod() {
			rule, ok := proto.GetExtension(m.GetOptions(), annotations.E_Http).(*annotations.HttpRule)
			if !ok || rule == nil {
				if !m.GetServerStreaming() {
					t.Errorf("%s has no REST path", m.GetName())
				}
				continue
			}
			methods++
			for verb, path := range map[string]string{"get": rule.GetGet(), "post": rule.GetPost(), "patch": rule.GetPatch(), "delete": rule.GetDelete()} {
				if path != "" && len(doc.Paths[path][verb].Responses) == 0 {
					t.Errorf("%s %s of %s is not in the document", verb, path, m.GetName())
				}
			}
		}
	}
	if methods == 0 {
		t.Error("no method has a path")
	}
	for _, part := range strings.Split(string(text), `"$ref": "#/components/schemas/`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if _, ok := doc.Components.Schemas[name]; !ok {
			t.Errorf("a reference leads to %s, which does not exist", name)
		}
	}
}
