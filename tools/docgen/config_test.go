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
	page, err := repository.keys("texts of keys")
	if err != nil {
		t.Fatal(err)
	}
	docs, err := repository.fieldDocs()
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
		if !strings.Contains("\n"+page, "\n## "+strings.TrimPrefix(k.Name, "lifecycle.")+"\n\n") {
			t.Errorf("the page lacks %s", k.Name)
		}
		if f, _ := reflect.TypeFor[lifecycle.Config]().FieldByName(k.Field); k.Live != (f.Tag.Get("reload") == "live") {
			t.Errorf("%s: live is %v", k.Name, k.Live)
		}
	}
}

func long(n int) string { return strings.Repeat("a", n) }

// The schema of a service's own type has a name, and lets keys for YAML anchors through
// at its top only.
func TestSchemaOfAService(t *testing.T) {
	text, err := config.Schema[section](nil)
	if err != nil {
		t.Fatal(err)
	}
	schema := compiled(t, text)
	if !strings.HasSuffix(schema.ID, ".section") || schema.Title != "main.section" {
		t.Errorf("$id is %q, title is %q", schema.ID, schema.Title)
	}
	for content, want := range map[string]bool{`{"x-any": 1}`: true, `{"y-any": 1}`: false, `{"lifecycle": {"x-any": 1}}`: false} {
		var value any
		if err := json.Unmarshal([]byte(content), &value); err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(value); (err == nil) != want {
			t.Errorf("%s: %v", content, err)
		}
	}
	var committed struct {
		ID    string `json:"$id"`
		Title string `json:"title"`
	}
	made, err := repository.configSchema()
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(made), &committed); err != nil || !strings.HasSuffix(committed.ID, "/docs/reference/config.schema.json") || committed.Title == "" {
		t.Errorf("%+v, %v", committed, err)
	}
}

// compiled returns the schema for a real validator, which checks it against draft 2020-12.
func compiled(t *testing.T, text []byte) *jsonschema.Schema {
	t.Helper()
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	if err := c.AddResource("schema.json", parsed); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// A real validator with the schema and Load accept the same files, except for sums of
// several keys and durations of more than a year.
func TestSchemaAgreesWithLoad(t *testing.T) {
	text, err := repository.configSchema()
	if err != nil {
		t.Fatal(err)
	}
	schema := compiled(t, []byte(text))
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

		`{"lifecycle": {"memory_limit_ratio": 2}}`:                                     false,
		`{"lifecycle": {"memory_limit_ratio": -0.1}}`:                                  false,
		`{"lifecycle": {"memory_limit_ratio": 0}}`:                                     true,
		`{"lifecycle": {"memory_limit_ratio": 1}}`:                                     true,
		`{"lifecycle": {"admin_token": "short"}}`:                                      false,
		`{"lifecycle": {"admin_token": "0123456789abcdef"}}`:                           true,
		`{"lifecycle": {"admin_token": "0123456789 abcdef"}}`:                          false,
		`{"lifecycle": {"admin_token": "0123456789abcdéf"}}`:                           false,
		`{"lifecycle": {"admin_token": ""}}`:                                           true,
		`{"lifecycle": {"admin_token": "` + long(1024) + `"}}`:                         true,
		`{"lifecycle": {"admin_token": "` + long(1025) + `"}}`:                         false,
		`{"lifecycle": {"admin_token": "0123456789abcdef", "admin_token_file": "/f"}}`: false,
		`{"lifecycle": {"admin_token": "0123456789abcdef", "admin_token_file": ""}}`:   true,
		`{"lifecycle": {"shutdown_grace": "off"}}`:                                     false,
		`{"lifecycle": {"shutdown_grace": 0}}`:                                         false,
		`{"lifecycle": {"shutdown_grace": "0s"}}`:                                      false,
		`{"lifecycle": {"shutdown_grace": "+0.0h0m"}}`:                                 false,
		`{"lifecycle": {"shutdown_grace": "0h20s"}}`:                                   true,
		`{"lifecycle": {"probe_timeout": "off"}}`:                                      false,
		`{"lifecycle": {"leader_retry": false}}`:                                       false,
		`{"lifecycle": {"upgrade_timeout": "off"}}`:                                    false,
		`{"lifecycle": {"upgrade_signal": "SIGUSR2"}}`:                                 true,
		`{"lifecycle": {"upgrade_signal": "SIGHUP"}}`:                                  false,
		`{"lifecycle": {"linger": "0s"}}`:                                              true,
		`{"lifecycle": {"health_addr": "8081"}}`:                                       false,
		`{"lifecycle": {"health_addr": "a:b:c"}}`:                                      false,
		`{"lifecycle": {"health_addr": ":8081"}}`:                                      true,
		`{"lifecycle": {"health_addr": "[::1]:8081"}}`:                                 true,
		`{"lifecycle": {"health_addr": "fd://health"}}`:                                true,
		`{"lifecycle": {"health_addr": "off"}}`:                                        true,
		`{"x-times": {"linger": 5}}`:                                                   true,
		`{"lifecycle": {"x-linger": "5s"}}`:                                            false,
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

// items has lists and maps of sections.
type items struct {
	List     []backend
	Pointers []*backend
	Map      map[string]backend
	Section  *backend
	Signed   int64
	Unsigned uint64
}

type backend struct{ Host string }

// An item of a list or a map has a value, for the schema as for Load. A section may have
// none: all its keys may be commented out. A whole number fits into its type.
func TestSchemaOfItemsAgreesWithLoad(t *testing.T) {
	text, err := config.Schema[items](nil)
	if err != nil {
		t.Fatal(err)
	}
	schema := compiled(t, text)
	for content, want := range map[string]bool{
		`{"list": [{}, {"host": "a"}], "pointers": [{}], "map": {"a": {}}, "section": null}`: true,
		`{"list": [null]}`:          false,
		`{"pointers": [null]}`:      false,
		`{"map": {"a": null}}`:      false,
		`{"map": {"a": {"b": ""}}}`: false,
		`{"list": null}`:            false,

		`{"signed": -9223372036854775808, "unsigned": 18446744073709551615}`: true,
		`{"signed": 9223372036854775808}`:                                    false,
		`{"signed": -9223372036854775809}`:                                   false,
		`{"unsigned": 18446744073709551616}`:                                 false,
		`{"unsigned": -1}`:                                                   false,
	} {
		value, err := jsonschema.UnmarshalJSON(strings.NewReader(content)) // with all digits
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(value); (err == nil) != want {
			t.Errorf("the schema for %s: %v", content, err)
		}
		if _, err := config.Load[items]("a.json", config.WithContent([]byte(content)), config.WithArgs(nil), config.WithEnviron(nil)); (err == nil) != want {
			t.Errorf("Load of %s: %v", content, err)
		}
	}
}
