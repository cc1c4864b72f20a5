package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
)

// section is the library's part of a service's configuration.
type section struct {
	Lifecycle lifecycle.Config
}

// WithDefaults returns the defaults.
func (section) WithDefaults() section {
	s := section{Lifecycle: lifecycle.Config{}.WithDefaults()}
	s.Lifecycle.Name = "" // the default is the program's name, here the wrong one
	return s
}

// configPage returns the reference of all keys.
func configPage() ([]byte, error) {
	keys, err := config.Keys[section]("service.yaml")
	if err != nil {
		return nil, err
	}
	docs, err := fieldDocs()
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString(`# Every key of lifecycle

This page is made from lifecycle.Config by "make docs". The keys belong to the section ` + "`lifecycle`" + ` of a service's own file, of the environment and of flags. A later row of this table wins over an earlier one:

| where | how |
| --- | --- |
| file (YAML, JSON, TOML) | ` + "`lifecycle: {drain_interval: 10s}`" + ` |
| environment | ` + "`SERVICE_LIFECYCLE_DRAIN_INTERVAL=10s`" + ` |
| flag | ` + "`-lifecycle.drain-interval=10s`" + ` |

` + "`SERVICE`" + ` is the file's name in the program, here service.yaml, or the prefix given to ` + "`config.WithEnvPrefix`" + `. A duration has a unit (` + "`5s`, `1m30s`, `250ms`" + `). 0 and ` + "`off`" + ` switch a duration off. Leaving the key out is different: the default then holds. [config.schema.json](config.schema.json) gives an editor the same information; put ` + "`# yaml-language-server: $schema=…`" + ` at the top of the file. A program with cobra, viper, kong or koanf keeps it: [I already use X](config-guest.md).

A stop takes at most ` + "`pre_stop + drain_interval + shutdown_grace` + " + lifecycle.Margin.String() + `, and that must fit into ` + "`termination_grace`" + `, the pod's terminationGracePeriodSeconds. ` + "`linger + unit_slice + hook_slice`" + ` must fit into ` + "`shutdown_grace`" + `.

**Live** keys change in a running process when its file changes (` + "`config.Open`, `Live.Attach`" + `), until a stop begins. The log names a change of any other key, which takes effect at the next start. A pod's grace and its preStop hook cannot change while the pod lives, so a change that makes a stop longer than the grace of the start is refused as a whole, and the log says why. Without a declared grace, a pod keeps to the time that a stop took at the start. Give ` + "`termination_grace`, `pre_stop`, `drain_interval` and `shutdown_grace`" + ` as environment in the pod template: a change of them then replaces the pods. A key that is removed from the file returns to its default, and a warning says so. Write a new file and rename it over the old one, as Kubernetes does, because half of a file can be a valid configuration. The watch waits 5 s for a file that has become shorter.

| key | takes | default | live |
| --- | --- | --- | --- |
`)
	for _, k := range keys {
		def, live := "", ""
		if k.Default != "" && k.Field != "Name" { // this program's name would be wrong
			def = "`" + strings.Trim(k.Default, `"`) + "`"
		}
		if k.Live {
			live = "live"
		}
		name := strings.TrimPrefix(k.Name, "lifecycle.")
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s | %s | %s |\n", name, name, k.Type, def, live)
	}
	b.WriteString("\n")
	for _, k := range keys {
		fmt.Fprintf(&b, "## %s\n\n%s\n\n", strings.TrimPrefix(k.Name, "lifecycle."), asMarkdown(docs[k.Field], keys))
		fmt.Fprintf(&b, "`%s`, `%s`\n\n", k.Env, k.Flag)
	}
	return []byte(strings.TrimSuffix(b.String(), "\n")), nil
}

// configSchema returns the JSON Schema of a file with the section. It allows the
// service's own keys beside it.
func configSchema() ([]byte, error) {
	docs, err := fieldDocs()
	if err != nil {
		return nil, err
	}
	keys, err := config.Keys[section]("")
	if err != nil {
		return nil, err
	}
	closed, err := config.Schema[section](func(key string) string {
		for _, k := range keys {
			if k.Name == key {
				return strings.ReplaceAll(asMarkdown(docs[k.Field], keys), "`", "")
			}
		}
		if key == "lifecycle" {
			return "How the process starts, drains and stops."
		}
		return ""
	})
	if err != nil {
		return nil, err
	}
	var schema map[string]any
	if err := json.Unmarshal(closed, &schema); err != nil {
		return nil, err
	}
	delete(schema, "additionalProperties")
	delete(schema, "patternProperties")
	schema["title"] = "The section lifecycle of a configuration file"
	schema["$id"] = "https://raw.githubusercontent.com/pleme-io/lifecycle-go/main/docs/config.schema.json"
	text, err := json.MarshalIndent(schema, "", "  ")
	return append(text, '\n'), err
}

// configWords returns the Go source of the texts that -h shows for the keys of
// lifecycle. They are the texts of the page, without Markdown.
func configWords() ([]byte, error) {
	docs, err := fieldDocs()
	if err != nil {
		return nil, err
	}
	keys, err := config.Keys[section]("")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString("// Code generated from the comments of lifecycle.Config by \"make docs\"; DO NOT EDIT.\n\npackage config\n\n" +
		"// lifecycleWords describes a field of lifecycle.Config, as docs/config.md\n// does.\nfunc lifecycleWords(field string) string {\n\tswitch field {\n")
	for _, k := range keys {
		fmt.Fprintf(&b, "\tcase %q:\n\t\treturn %q\n", k.Field, strings.ReplaceAll(asMarkdown(docs[k.Field], keys), "`", ""))
	}
	b.WriteString("\t}\n\treturn \"\"\n}\n")
	return format.Source(b.Bytes())
}

var (
	docLink = regexp.MustCompile(`\[([A-Za-z.]+)\]`)
	goWord  = regexp.MustCompile(`\b[A-Z][A-Za-z]+\b`)
)

// asMarkdown turns a field's comment into a text for the author of a file: it
// has keys instead of the names of fields.
func asMarkdown(doc string, keys []config.Key) string {
	byField := map[string]string{"Off": "off"}
	for _, k := range keys {
		if k.Field != "Name" { // a word, too
			byField[k.Field] = strings.TrimPrefix(k.Name, "lifecycle.")
		}
	}
	doc = strings.ReplaceAll(doc, " ([HealthOff])", "")
	doc = docLink.ReplaceAllString(doc, "$1")
	return goWord.ReplaceAllStringFunc(strings.Join(strings.Fields(doc), " "), func(word string) string {
		if key, ok := byField[word]; ok {
			return "`" + key + "`"
		}
		return word
	})
}

// fieldDocs returns the comments of the fields of lifecycle.Config. A comment for two
// fields belongs to both.
func fieldDocs() (map[string]string, error) {
	name, err := inRepository("config.go")
	if err != nil {
		return nil, err
	}
	source, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	docs := map[string]string{}
	ast.Inspect(source, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != "Config" {
			return true
		}
		fields, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		shared := ""
		for _, f := range fields.Fields.List {
			if f.Doc != nil {
				shared = f.Doc.Text()
			}
			for _, name := range f.Names {
				docs[name.Name] = shared
			}
		}
		return false
	})
	if len(docs) == 0 {
		return nil, fmt.Errorf("%s: there is no struct Config", name)
	}
	return docs, nil
}

// inRepository finds a file of the root module from any folder of the repository.
func inRepository(name string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.work")); err == nil {
			return filepath.Join(dir, name), nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("this folder is not in the repository: there is no go.work above it")
		}
		dir = up
	}
}
