package vet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
	kyaml "sigs.k8s.io/yaml"
)

// MaxSize is the largest size of a file, in bytes.
const MaxSize = 16 << 20

// File is one manifest or one Dockerfile. A file is a Dockerfile when one of the
// dot-separated parts of its name is "Dockerfile" or "Containerfile", in any case:
// "Dockerfile.web" and "web.Dockerfile" are.
type File struct {
	// Name is the name of the file in findings: a path, or "-" for standard input.
	Name string
	Data []byte
}

func (f File) isDockerfile() bool {
	for part := range strings.SplitSeq(strings.ToLower(filepath.Base(f.Name)), ".") {
		if part == "dockerfile" || part == "containerfile" {
			return true
		}
	}
	return false
}

// fault adds a finding about a line of a file.
func (r *run) fault(file, rule string, line int, reason, fix string) {
	r.add(rule, Finding{File: file, Line: line, Column: 1, Reason: reason, Fix: fix})
}

// isText reports whether vet can read the file as text. If not, it adds a finding.
func (r *run) isText(f File) bool {
	switch {
	case len(f.Data) > MaxSize:
		r.fault(f.Name, "too-large", 1, fmt.Sprintf("the file has %d bytes, and vet reads at most %d", len(f.Data), MaxSize),
			"give only the manifests of the service")
	case bytes.IndexByte(f.Data, 0) >= 0 || !utf8.Valid(f.Data):
		r.fault(f.Name, "not-text", 1, "the file is not UTF-8 text: is it a packed chart, an image, or UTF-16?",
			"give the rendered manifest, as `helm template` or `kustomize build` write it")
	case len(bytes.TrimSpace(f.Data)) == 0:
		r.fault(f.Name, "empty", 1, "the file is empty", "look at the command that should have written it")
	default:
		return true
	}
	return false
}

// read splits a file into documents and reads their objects. A fault in one document does
// not hide the others.
func (r *run) read(f File) {
	if !r.isText(f) {
		return
	}
	empty := true
	for _, part := range split(string(f.Data)) {
		value, err := part.value()
		if value == nil && err == nil {
			continue
		}
		empty = false
		d := &document{file: f.Name, source: sourceOf(part.text), line: part.line}
		if i := strings.Index(part.text, "{{"); i >= 0 {
			d.braces = part.line + 1 + strings.Count(part.text[:i], "\n")
		}
		if err != nil {
			r.unreadable(d, part.line+errorLine(err), "not-yaml", fmt.Sprintf("not YAML: %v", err), "correct the file; the rest of it was checked")
			continue
		}
		// Values are read as kubectl reads them. This second parser knows the lines. It
		// refuses some texts that are JSON and not YAML: they have no lines then.
		var places yaml.Node
		if yaml.Unmarshal([]byte(part.text), &places) == nil && len(places.Content) > 0 {
			d.root = places.Content[0]
		}
		object, ok := value.(map[string]any)
		if !ok {
			line, _ := d.place(nil)
			r.fault(f.Name, "not-an-object", line, "this is not a Kubernetes object: it is not a mapping", "an object has apiVersion, kind, metadata and spec")
			continue
		}
		d.value = object
		r.objects(d)
	}
	if empty {
		r.fault(f.Name, "empty", 1, "the file has comments and no object", "look at the command that should have written it")
	}
}

// unreadable adds a finding about a document that vet cannot read. One with braces is
// probably the template of a chart.
func (r *run) unreadable(d *document, line int, rule, reason, fix string) {
	r.unsure = true
	if d.braces > 0 {
		rule, line = "not-rendered", d.braces
		reason, fix = "this is a template that was not rendered: it has braces {{ }}", "render it first: helm template CHART | lifecyclectl vet -"
	}
	r.add(rule, Finding{File: d.file, Source: d.source, Line: line, Column: 1, Reason: reason, Fix: fix})
}

// objects reads an object, or each object of a List.
func (r *run) objects(d *document) {
	kind, _ := d.value["kind"].(string)
	items, isList := d.value["items"].([]any)
	if !isList || !strings.HasSuffix(kind, "List") {
		r.object(d)
		return
	}
	for i, item := range items {
		value, ok := item.(map[string]any)
		if !ok {
			continue
		}
		one := *d
		one.value = value
		if place := find(d.root, fieldPath{"items", i}); place.whole {
			one.root = place.node
		}
		r.objects(&one)
	}
}

// document is one of the objects of a file.
type document struct {
	file   string
	source string // the chart's template from which helm rendered it
	line   int    // lines of the file before it
	braces int    // the first line with the braces of a template, 0 for none
	root   *yaml.Node
	value  map[string]any
}

// place returns the place of a field of the document in the file, or the place of its
// deepest parent that exists.
func (d *document) place(p fieldPath) (line, column int) {
	if d.root == nil {
		return d.line + 1, 1
	}
	at := find(d.root, p)
	return d.line + at.line, at.column
}

// isLiteral reports whether the field is a text of whole lines, which begins in the line
// below its key.
func (d *document) isLiteral(p fieldPath) bool {
	at := find(d.root, p)
	return at.whole && at.node.Style&yaml.LiteralStyle != 0
}

// fieldPath is the way from an object's root to a field: names and indices.
type fieldPath []any

func (p fieldPath) with(more ...any) fieldPath { return append(p[:len(p):len(p)], more...) }

// String returns the path in the form spec.containers[0].name.
func (p fieldPath) String() string {
	var b strings.Builder
	for _, step := range p {
		switch s := step.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", s)
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s)
		}
	}
	return b.String()
}

// found is the place of a field's key, or of an item of a list.
type found struct {
	line, column int
	node         *yaml.Node // the value
	whole        bool       // all of the path exists; if not, this is its deepest parent
}

func find(n *yaml.Node, p fieldPath) found {
	if n == nil {
		return found{}
	}
	at := found{n.Line, n.Column, n, len(p) == 0}
	for i, step := range p {
		for at.node.Kind == yaml.AliasNode {
			at.node = at.node.Alias
		}
		next := at
		switch s := step.(type) {
		case int:
			if at.node.Kind == yaml.SequenceNode && s < len(at.node.Content) {
				item := at.node.Content[s]
				next = found{item.Line, item.Column, item, i == len(p)-1}
			}
		case string:
			for j := 0; at.node.Kind == yaml.MappingNode && j+1 < len(at.node.Content); j += 2 {
				if key := at.node.Content[j]; key.Value == s {
					next = found{key.Line, key.Column, at.node.Content[j+1], i == len(p)-1}
				}
			}
		}
		if next == at {
			return at
		}
		at = next
	}
	return at
}

// part is the text of one document, and the number of lines before it.
type part struct {
	text string
	line int
	json bool
}

// value reads the document as kubectl does.
func (p part) value() (v any, err error) {
	data := []byte(p.text)
	if !p.json {
		if data, err = kyaml.YAMLToJSON(data); err != nil {
			return nil, err
		}
	}
	return v, kjson.UnmarshalCaseSensitivePreserveInts(data, &v)
}

var lineOf = regexp.MustCompile(`line (\d+):`)

// errorLine returns the line that an error of the parser names, and otherwise the first.
func errorLine(err error) int {
	if m := lineOf.FindStringSubmatch(err.Error()); m != nil {
		if line, err := strconv.Atoi(m[1]); err == nil {
			return line
		}
	}
	return 1
}

// split cuts the text into documents. JSON objects may stand one after the other, as
// kubectl takes them.
func split(text string) (parts []part) {
	objects := json.NewDecoder(strings.NewReader(text))
	begin, first := 0, 0
	for strings.HasPrefix(strings.TrimLeft(text[begin:], " \t\r\n"), "{") {
		var object json.RawMessage
		if objects.Decode(&object) != nil {
			break // YAML in flow style, or a fault that the parser names
		}
		end := int(objects.InputOffset())
		parts = append(parts, part{text[begin:end], first, true})
		first += strings.Count(text[begin:end], "\n")
		begin = end
	}
	if len(parts) > 0 && strings.TrimSpace(text[begin:]) == "" {
		return parts
	}
	return append(parts, splitLines(text[begin:], first)...)
}

// splitLines cuts the text at the lines that begin with "---". Such a line ends a
// document everywhere, even in a block of text. first is the number of lines before the
// text.
func splitLines(text string, first int) (parts []part) {
	begin, at, number := 0, 0, first
	for line := range strings.Lines(text) {
		bare := strings.TrimRight(line, " \t\r\n")
		if bare == "---" || strings.HasPrefix(line, "--- ") || strings.HasPrefix(line, "---\t") {
			// The line itself stays: an object may begin after the dashes.
			parts = append(parts, part{text: text[begin:at], line: first})
			begin, first = at, number
		}
		at += len(line)
		number++
	}
	return append(parts, part{text: text[begin:], line: first})
}

// sourceOf returns the template that helm names in the comment of a document.
func sourceOf(text string) string {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if source, ok := strings.CutPrefix(line, "# Source: "); ok {
			return source
		}
		if line != "" && line != "---" && !strings.HasPrefix(line, "#") {
			break
		}
	}
	return ""
}
