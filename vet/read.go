package vet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pleme-io/lifecycle-go/internal/call"
	"go.yaml.in/yaml/v3"
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

// document is one of the objects of a file.
type document struct {
	file   string
	source string // the chart's template from which helm rendered it
	line   int    // lines of the file before it
	root   *yaml.Node
	value  map[string]any
}

// place returns the place of a field of the document in the file.
func (d *document) place(p fieldPath) (line, column int) {
	line, column = find(d.root, p)
	return d.line + line, column
}

// literal reports whether the field is a text of whole lines, which begins in the line
// below its key.
func (d *document) literal(p fieldPath) bool {
	n := d.root
	for _, step := range p {
		if name, ok := step.(string); ok && n != nil {
			n = child(n, name)
		}
	}
	return n != nil && n.Kind == yaml.ScalarNode && n.Style&yaml.LiteralStyle != 0
}

// read splits a file into documents and decodes them. A fault is a finding.
func (r *run) read(f File) {
	fault := func(rule string, line int, reason, fix string) {
		r.add(rule, Finding{File: f.Name, Line: line, Column: 1, Reason: reason, Fix: fix})
	}
	switch {
	case len(f.Data) > MaxSize:
		fault("too-large", 1, fmt.Sprintf("the file has %d bytes, and vet reads at most %d", len(f.Data), MaxSize), "give only the manifests of the service")
		return
	case bytes.IndexByte(f.Data, 0) >= 0 || !utf8.Valid(f.Data):
		fault("not-text", 1, "the file is not UTF-8 text: is it a packed chart, an image, or UTF-16?", "give the rendered manifest, as `helm template` or `kustomize build` write it")
		return
	case len(bytes.TrimSpace(f.Data)) == 0:
		fault("empty", 1, "the file is empty", "look at the command that should have written it")
		return
	}
	documents := 0
	for _, part := range split(string(f.Data)) {
		root, err := parse(part.text)
		if err != nil && part.json {
			root, err = parse(jsonAsYAML(part.text))
		}
		switch {
		case err != nil && strings.Contains(part.text, "{{"):
			line := part.line + 1 + strings.Count(part.text[:strings.Index(part.text, "{{")], "\n")
			r.notRendered(f.Name, line)
			documents++
		case err != nil:
			var p *placed
			line := part.line + 1
			if errors.As(err, &p) {
				line = part.line + p.line
			}
			r.unread = true
			fault("not-yaml", line, fmt.Sprintf("not YAML: %v", err), "correct the file; the rest of it was checked")
			documents++
		case root != nil:
			documents++
			d := &document{file: f.Name, source: sourceOf(part.text), line: part.line, root: root}
			r.expand(d)
		}
	}
	if documents == 0 {
		fault("empty", 1, "the file has comments and no object", "look at the command that should have written it")
	}
}

func (r *run) notRendered(file string, line int) {
	r.add("not-rendered", Finding{File: file, Line: line, Column: 1,
		Reason: "this is a template that was not rendered: it has braces {{ }}",
		Fix:    "render it first: helm template CHART | lifecyclectl vet -"})
}

// expand reads the values of the document, and decodes its objects.
func (r *run) expand(d *document) {
	var c converter
	v, err := c.value(d.root, 0)
	fault := func(rule string, err error, fix string) {
		line, column := d.line+d.root.Line, d.root.Column
		var p *placed
		if errors.As(err, &p) {
			line, column = d.line+p.line, p.column
		}
		r.add(rule, Finding{File: d.file, Source: d.source, Line: line, Column: column, Reason: err.Error(), Fix: fix})
	}
	for _, twice := range c.duplicates {
		fault("duplicate-field", twice, "keep one of them; the API server refuses the object, and other parsers take the last one")
	}
	switch {
	case errors.Is(err, errBraces):
		var p *placed
		errors.As(err, &p)
		r.notRendered(d.file, d.line+p.line)
		return
	case errors.Is(err, errBomb), errors.Is(err, errDeep):
		fault("too-large", err, "write it without aliases that refer to each other")
		return
	case err != nil:
		r.unread = true
		fault("not-yaml", fmt.Errorf("not YAML: %w", err), "correct the file; the rest of it was checked")
		return
	}
	m, ok := v.(map[string]any)
	if !ok {
		fault("not-an-object", errors.New("this is not a Kubernetes object: it is not a mapping"), "an object has apiVersion, kind, metadata and spec")
		return
	}
	d.value = m
	r.objects(d)
}

// objects decodes an object, or each object of a List.
func (r *run) objects(d *document) {
	kind, _ := d.value["kind"].(string)
	items, isList := d.value["items"].([]any)
	if !isList || !strings.HasSuffix(kind, "List") {
		r.decode(d)
		return
	}
	nodes := child(d.root, "items")
	for i, item := range items {
		m, ok := item.(map[string]any)
		if !ok || nodes == nil || i >= len(nodes.Content) {
			continue
		}
		n := nodes.Content[i]
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		r.objects(&document{file: d.file, source: d.source, line: d.line, root: n, value: m})
	}
}

func child(n *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			n = n.Content[i+1]
			for n.Kind == yaml.AliasNode {
				n = n.Alias
			}
			return n
		}
	}
	return nil
}

// part is the text of one document, and the number of lines before it.
type part struct {
	text string
	line int
	json bool
}

// split cuts the text into documents, so that a fault in one does not hide the others.
// JSON objects may stand one after the other, as kubectl takes them.
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

// notInYAML are the parts of JSON texts that the YAML parser refuses, and the escapes that
// have to be told from them.
var notInYAML = regexp.MustCompile(`\\u[dD][89abAB][[:xdigit:]]{2}\\u[dD][c-fC-F][[:xdigit:]]{2}|\\u[[:xdigit:]]{4}|\\.|[\x7f-\x{9f}\x{feff}\x{fffe}\x{ffff}]`)

// jsonAsYAML returns JSON in the form in which the YAML parser takes it too.
func jsonAsYAML(text string) string {
	return notInYAML.ReplaceAllStringFunc(text, func(s string) string {
		var unescaped string
		switch {
		case s == `\/`:
			return "/"
		case s[0] != '\\':
			return fmt.Sprintf(`\u%04x`, []rune(s)[0])
		case s[1] == 'u' && strings.EqualFold(s[2:3], "d") && json.Unmarshal([]byte(`"`+s+`"`), &unescaped) == nil && unescaped[0] > 0xed:
			return unescaped // a pair, or U+FFFD for a half of one
		}
		return s
	})
}

var lineOf = regexp.MustCompile(`line (\d+): `)

// parse returns the root node of a document, or nil when the document is empty.
func parse(text string) (root *yaml.Node, err error) {
	var doc yaml.Node
	// The parser may panic on hostile input.
	err = call.Do("yaml", func() error { return yaml.Unmarshal([]byte(text), &doc) })
	if err != nil {
		reason := strings.TrimPrefix(err.Error(), "yaml: ")
		if m := lineOf.FindStringSubmatch(reason); m != nil {
			line, _ := strconv.Atoi(m[1])
			return nil, &placed{line, 1, errors.New(strings.Replace(reason, m[0], "", 1))}
		}
		return nil, errors.New(reason)
	}
	if doc.Kind == 0 || len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
		return nil, nil
	}
	root = doc.Content[0]
	return root, nil
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
