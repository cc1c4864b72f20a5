package workers

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// specFile reads specs of hosted workers from YAML or JSON. Fields have
// the JSON names of the contract's WorkerSpec. A code may be a file beside the spec, or a text.
type specFile struct {
	name   string
	dir    string // where the files of code are
	faults []error
}

// readSpecs returns the specs of a file, in order. The error names the line of each
// fault, and what would be right.
func readSpecs(file string, stdin io.Reader) ([]*operatorv1.WorkerSpec, error) {
	text, err := cli.ReadFile(file, stdin)
	if err != nil {
		return nil, fmt.Errorf("--file: %w", err)
	}
	f := &specFile{name: file, dir: filepath.Dir(file)}
	if start := bytes.TrimSpace(text); len(start) > 0 && (start[0] == '{' || start[0] == '[') {
		// A tab in JSON is only ever white space, and YAML does not take all of them.
		text = bytes.ReplaceAll(text, []byte("\t"), []byte(" "))
	}
	var specs []*operatorv1.WorkerSpec
	lines := map[string]int{}
	for dec := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var doc yaml.Node
		if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			f.faults = append(f.faults, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: ")))
			break // the decoder does not find the next document
		}
		at := target(doc.Content[0])
		if at.Kind == yaml.ScalarNode && at.Tag == "!!null" {
			continue // an empty document
		}
		s := &operatorv1.WorkerSpec{}
		f.message(s.ProtoReflect(), at, "")
		f.required(s, at)
		if first := lines[s.GetId()]; first > 0 && s.GetId() != "" {
			f.wrong(at, "the spec in line %[2]d has the id %[1]s too", s.GetId(), first)
		}
		lines[s.GetId()] = at.Line
		specs = append(specs, s)
	}
	if len(specs) == 0 && len(f.faults) == 0 {
		f.faults = append(f.faults, fmt.Errorf("%s has no spec of a worker", file))
	}
	return specs, errors.Join(f.faults...)
}

func (f *specFile) wrong(n *yaml.Node, format string, args ...any) {
	f.faults = append(f.faults, fmt.Errorf("%s:%d: %s", f.name, n.Line, fmt.Sprintf(format, args...)))
}

func (f *specFile) required(s *operatorv1.WorkerSpec, n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		return
	}
	for _, field := range []struct {
		name, example string
		is            bool
	}{
		{"id", "thumbs", s.GetId() != ""}, {"mimeType", "text/javascript", s.GetMimeType() != ""},
		{"topic", "images.new", s.GetTopic() != ""}, {"code", "{file: thumbs.js}", s.GetCode() != nil},
	} {
		given := slices.ContainsFunc(n.Content, func(c *yaml.Node) bool { return c.Value == field.name })
		if !field.is && !given {
			f.wrong(n, "the spec has no %s: want %s: %s", field.name, field.name, field.example)
		}
	}
}

// target returns the node that an alias stands for.
func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// kindOf names the kind of a node for people.
func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!null":
		return "empty"
	case n.Tag == "!!str":
		return fmt.Sprintf("the text %q", n.Value)
	}
	return n.Value
}

// each calls value for each key of a mapping, and notes keys that are unknown or twice.
func (f *specFile) each(n *yaml.Node, path string, names []string, value func(name, path string, v *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		f.wrong(n, "%s is %s, want a mapping with the keys %s", strings.TrimSuffix("spec."+path, "."), kindOf(n), strings.Join(names, ", "))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, v := n.Content[i], target(n.Content[i+1])
		name := key.Value
		switch meant := suggest.Nearest(name, names); {
		case seen[name] > 0:
			f.wrong(key, "%s%s is there twice: the first is in line %d", path, name, seen[name])
		case slices.Contains(names, name):
			value(name, path+name, v)
		case meant != "":
			f.wrong(key, "there is no field %s%s: did you mean %s?", path, name, meant)
		default:
			f.wrong(key, "there is no field %s%s: want %s", path, name, strings.Join(names, ", "))
		}
		seen[name] = key.Line
	}
}

// message reads a mapping into a message of the contract.
func (f *specFile) message(m protoreflect.Message, n *yaml.Node, path string) {
	var names []string
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		names = append(names, fields.Get(i).JSONName())
	}
	f.each(n, path, names, func(name, path string, v *yaml.Node) {
		field := fields.ByJSONName(name)
		switch {
		case field.IsList():
			for _, text := range f.list(v, path) {
				m.Mutable(field).List().Append(protoreflect.ValueOfString(text))
			}
		case field.Kind() == protoreflect.StringKind:
			m.Set(field, protoreflect.ValueOfString(f.text(v, path)))
		case field.Kind() == protoreflect.Int64Kind:
			m.Set(field, protoreflect.ValueOfInt64(f.number(v, path, 1<<62)))
		case field.Kind() == protoreflect.Int32Kind:
			m.Set(field, protoreflect.ValueOfInt32(int32(f.number(v, path, 1<<31-1))))
		case field.Message().FullName() == (&durationpb.Duration{}).ProtoReflect().Descriptor().FullName():
			m.Set(field, protoreflect.ValueOfMessage(durationpb.New(f.duration(v, path)).ProtoReflect()))
		case field.Message().FullName() == (&operatorv1.Code{}).ProtoReflect().Descriptor().FullName():
			if c := f.code(v, path+"."); c != nil {
				m.Set(field, protoreflect.ValueOfMessage(c.ProtoReflect()))
			}
		default:
			f.message(m.Mutable(field).Message(), v, path+".")
		}
	})
}

func (f *specFile) text(n *yaml.Node, path string) string {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		advice := ""
		if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
			advice = ": put it in quotes"
		}
		f.wrong(n, "%s is %s, want text%s", path, kindOf(n), advice)
		return ""
	}
	return n.Value
}

func (f *specFile) list(n *yaml.Node, path string) (texts []string) {
	if n.Kind != yaml.SequenceNode {
		f.wrong(n, "%s is %s, want a list of names, such as [GREETING]", path, kindOf(n))
		return nil
	}
	for i, e := range n.Content {
		texts = append(texts, f.text(target(e), fmt.Sprintf("%s[%d]", path, i)))
	}
	return texts
}

// sizeUnits are the units of bytes.
var sizeUnits = []struct {
	name string
	size int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}

// number reads a number, which may have a unit of bytes.
func (f *specFile) number(n *yaml.Node, path string, most int64) int64 {
	digits, unit := n.Value, int64(1)
	if strings.HasPrefix(path, "rollout.") { // percentages
		digits = strings.TrimSuffix(digits, "%")
	}
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(digits, u.name); ok {
			digits, unit = strings.TrimSpace(rest), u.size
		}
	}
	v, err := strconv.ParseInt(digits, 10, 64)
	if n.Kind != yaml.ScalarNode || err != nil || v <= 0 || v > most/unit {
		f.wrong(n, "%s is %s, want a positive number, such as 1000 or 64MiB", path, kindOf(n))
		return 0
	}
	return v * unit
}

func (f *specFile) duration(n *yaml.Node, path string) time.Duration {
	d, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || d <= 0 {
		f.wrong(n, "%s is %s, want a duration with its unit, such as 5s or 500ms", path, kindOf(n))
		return 0
	}
	return d
}

// code reads a code: a file, a text, base64 as in REST, or a URL.
func (f *specFile) code(n *yaml.Node, path string) *operatorv1.Code {
	c := &operatorv1.Code{}
	sources := 0
	f.each(n, path, []string{"file", "text", "content", "url", "digest", "signature"}, func(name, path string, v *yaml.Node) {
		text := f.text(v, path)
		switch name {
		case "digest":
			c.Digest = text
			return
		case "signature":
			c.Signature = f.base64(v, path, text)
			return
		}
		if sources++; text == "" {
			return // a fault, which is noted
		}
		switch name {
		case "file":
			c.Source = &operatorv1.Code_Content{Content: f.content(v, path, text)}
		case "text":
			c.Source = &operatorv1.Code_Content{Content: []byte(text)}
		case "content":
			c.Source = &operatorv1.Code_Content{Content: f.base64(v, path, text)}
		case "url":
			c.Source = &operatorv1.Code_Url{Url: text}
		}
	})
	if n.Kind == yaml.MappingNode && sources != 1 {
		f.wrong(n, "%s has %d sources, want one of file, text, content and url", strings.TrimSuffix(path, "."), sources)
	}
	return c
}

// content reads a file of code.
func (f *specFile) content(n *yaml.Node, path, name string) []byte {
	if !filepath.IsAbs(name) {
		name = filepath.Join(f.dir, name)
	}
	info, err := os.Stat(name)
	if err == nil && (!info.Mode().IsRegular() || info.Size() > cli.MaxFile || info.Size() == 0) {
		err = fmt.Errorf("%s is not a file of 1 byte to %d MiB", name, cli.MaxFile>>20)
	}
	var text []byte
	if err == nil {
		text, err = os.ReadFile(name)
	}
	if err != nil {
		f.wrong(n, "%s: %v", path, err)
	}
	return text
}

func (f *specFile) base64(n *yaml.Node, path, text string) []byte {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		advice := ""
		if strings.HasSuffix(path, "content") {
			advice = ": use text for the code as it is"
		}
		f.wrong(n, "%s is not base64%s", path, advice)
	}
	return b
}
