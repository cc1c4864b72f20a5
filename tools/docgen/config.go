package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/internal/pages"
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

// keys returns a part of the reference of keys: their table, or a section for each.
func (d docs) keys(what string) (string, error) {
	keys, err := config.Keys[section]("service.yaml")
	if err != nil {
		return "", err
	}
	texts, err := d.fieldDocs()
	if err != nil {
		return "", err
	}
	var rows [][]string
	var sections strings.Builder
	for _, k := range keys {
		name, def, live := strings.TrimPrefix(k.Name, "lifecycle."), "", ""
		if k.Default != "" && k.Field != "Name" { // the name of this program would be wrong
			def = "`" + strings.Trim(k.Default, `"`) + "`"
		}
		if k.Live {
			live = "live"
		}
		rows = append(rows, []string{fmt.Sprintf("[`%s`](#%s)", name, name), k.Type, def, live})
		fmt.Fprintf(&sections, "## %s\n\n%s\n\n`%s`, `%s`\n\n", name, asMarkdown(texts[k.Field], keys), k.Env, k.Flag)
	}
	switch what {
	case "keys":
		return pages.Table([]string{"key", "takes", "default", "live"}, rows), nil
	case "texts of keys":
		return sections.String(), nil
	}
	return "", fmt.Errorf("there is no part %q", what)
}

// configSchema returns the JSON Schema of a file with the section. It allows the
// service's own keys beside it.
func (d docs) configSchema() (string, error) {
	keys, texts, err := d.plainTexts()
	if err != nil {
		return "", err
	}
	closed, err := config.Schema[section](func(key string) string {
		for _, k := range keys {
			if k.Name == key {
				return texts[k.Field]
			}
		}
		if key == "lifecycle" {
			return "How the process starts, drains and stops."
		}
		return ""
	})
	if err != nil {
		return "", err
	}
	var schema map[string]any
	if err := json.Unmarshal(closed, &schema); err != nil {
		return "", err
	}
	delete(schema, "additionalProperties")
	delete(schema, "patternProperties")
	schema["title"] = "The section lifecycle of a configuration file"
	schema["$id"] = "https://raw.githubusercontent.com/pleme-io/lifecycle-go/main/docs/reference/config.schema.json"
	text, err := json.MarshalIndent(schema, "", "  ")
	return string(text) + "\n", err
}

// configTexts returns the Go source of the texts that -h shows for the keys of
// lifecycle. They are the texts of the page, without Markdown.
func (d docs) configTexts() (string, error) {
	keys, texts, err := d.plainTexts()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(`// Code generated from the comments of lifecycle.Config by "make docs"; DO NOT EDIT.

package config

// keyText describes the key of a field of lifecycle.Config, as docs/reference/config.md does.
func keyText(field string) string {
	switch field {
`)
	for _, k := range keys {
		fmt.Fprintf(&b, "\tcase %q:\n\t\treturn %q\n", k.Field, texts[k.Field])
	}
	b.WriteString("\t}\n\treturn \"\"\n}\n")
	return b.String(), nil
}

// plainTexts returns the keys, and their texts by field, without Markdown.
func (d docs) plainTexts() ([]config.Key, map[string]string, error) {
	keys, err := config.Keys[section]("")
	if err != nil {
		return nil, nil, err
	}
	texts, err := d.fieldDocs()
	for field, text := range texts {
		texts[field] = strings.ReplaceAll(asMarkdown(text, keys), "`", "")
	}
	return keys, texts, err
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
func (d docs) fieldDocs() (map[string]string, error) {
	name := filepath.Join(d.root, "config.go")
	source, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
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
				texts[name.Name] = shared
			}
		}
		return false
	})
	if len(texts) == 0 {
		return nil, fmt.Errorf("%s: there is no struct Config", name)
	}
	return texts, nil
}
