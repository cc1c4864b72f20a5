package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func TestEveryFieldIsOnThePageWithItsWords(t *testing.T) {
	page, err := configPage()
	if err != nil {
		t.Fatal(err)
	}
	docs, err := fieldDocs()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := config.Keys[section]("")
	if err != nil {
		t.Fatal(err)
	}
	if want := reflect.TypeFor[lifecycle.Config]().NumField(); len(keys) != want {
		t.Errorf("%d keys, and Config has %d fields", len(keys), want)
	}
	for _, k := range keys {
		if len(docs[k.Field]) < 20 {
			t.Errorf("%s has no useful comment: %q", k.Field, docs[k.Field])
		}
		if !bytes.Contains(page, []byte("\n## "+strings.TrimPrefix(k.Name, "lifecycle.")+"\n\n")) {
			t.Errorf("the page lacks %s", k.Name)
		}
		if f, _ := reflect.TypeFor[lifecycle.Config]().FieldByName(k.Field); k.Live != (f.Tag.Get("reload") == "live") {
			t.Errorf("%s: live is %v", k.Name, k.Live)
		}
	}
}

// A real validator with the schema and Load accept the same files,
// except for budgets, which a schema cannot add up.
func TestSchemaAgreesWithLoad(t *testing.T) {
	text, err := configSchema()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource("config.schema.json", parsed); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("config.schema.json") // checks it against draft 2020-12 itself
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(map[string]any{"addr": ":80"}); err != nil {
		t.Errorf("the schema does not allow a service's own keys: %v", err)
	}
	path := filepath.Join(t.TempDir(), "service.json")
	for content, want := range map[string]bool{
		`{}`:                  true,
		`{"lifecycle": {}}`:   true,
		`{"lifecycle": null}`: true,
		`{"lifecycle": {"drain_interval": "10s", "drain_quiet": "off", "linger": 0, "drain_wait": "never", "exit_on_signal": true, "memory_limit_ratio": 0.9}}`: true,
		`{"lifecycle": {"drain_interval": "1m30.5s", "shutdown_grace": "20s"}}`:                                                                                 true,
		`{"lifecycle": {"drain_interval": 5}}`:       false,
		`{"lifecycle": {"drain_interval": "5"}}`:     false,
		`{"lifecycle": {"drain_interval": "-5s"}}`:   false,
		`{"lifecycle": {"drain_interval": "soon"}}`:  false,
		`{"lifecycle": {"drain_intervall": "5s"}}`:   false,
		`{"lifecycle": {"drain_interval": null}}`:    false,
		`{"lifecycle": {"drain_wait": "sometimes"}}`: false,
		`{"lifecycle": {"exit_on_signal": "true"}}`:  false,
		`{"lifecycle": {"name": 5}}`:                 false,
		`{"lifecycle": {"admin_token": ["x"]}}`:      false,
		`{"lifecycle": []}`:                          false,
	} {
		var value any
		if err := json.Unmarshal([]byte(content), &value); err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(value); (err == nil) != want {
			t.Errorf("the schema says of %s: %v, want ok %v", content, err, want)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := config.Load[struct{ Lifecycle lifecycle.Config }](path, config.WithEnviron(nil), config.WithArgs(nil)); (err == nil) != want {
			t.Errorf("Load says of %s: %v, want ok %v", content, err, want)
		}
	}
}
