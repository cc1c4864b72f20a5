package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// JSON encodes a message with the contract's own names and with fields that
// are empty, so that scripts find them. indent "" keeps it on one line. Characters that
// could control a terminal are escaped.
func JSON(m proto.Message, indent string) ([]byte, error) {
	// protojson varies its spaces on purpose; another pass removes them.
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if indent == "" {
		err = json.Compact(&b, text)
	} else {
		err = json.Indent(&b, text, "", indent)
	}
	if err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return []byte(PrintableLines(b.String())), nil
}

// YAML encodes the same as JSON.
func YAML(m proto.Message) ([]byte, error) {
	text, err := JSON(m, "")
	if err != nil {
		return nil, err
	}
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil { // JSON is YAML
		return nil, err
	}
	inBlocks(&root)
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&root); err != nil {
		return nil, err
	}
	if err := enc.Close(); err != nil {
		return nil, err
	}
	return []byte(PrintableLines(b.String())), nil
}

// inBlocks takes the braces and quotes of JSON away. Text with characters to escape keeps
// its quotes, and other text gets them from the encoder where it needs them.
func inBlocks(n *yaml.Node) {
	if !strings.ContainsFunc(n.Value, unprintable) {
		n.Style = 0
	}
	for _, child := range n.Content {
		inBlocks(child)
	}
}

// items returns what a message has: the elements of its list, the object of a change, or
// itself.
func items(m proto.Message) ([]any, error) {
	text, err := JSON(m, "")
	if err != nil {
		return nil, err
	}
	var object map[string]any
	if err := json.Unmarshal(text, &object); err != nil {
		return nil, err
	}
	d := m.ProtoReflect().Descriptor()
	if item, ok := object["item"]; ok && d.FullName() == "google.protobuf.Struct" {
		return []any{item}, nil
	}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if i == 0 && f.IsList() && f.Message() != nil { // the list of an answer is its first field
			list, _ := object[string(f.Name())].([]any)
			return list, nil
		}
		if isSubject(f) {
			return []any{object[string(f.Name())]}, nil
		}
	}
	return []any{object}, nil
}

// isSubject reports whether the field has the object of an answer to a command, or of a
// change.
func isSubject(f protoreflect.FieldDescriptor) bool {
	isObject := f.Message() != nil && !f.IsList() && !f.IsMap()
	return isObject && (f.Name() == "entity" || f.Name() == "worker" || f.Name() == "process")
}

// names writes the names of what a message has, one a line.
func names(m proto.Message) ([]byte, error) {
	list, err := items(m)
	var b bytes.Buffer
	for _, item := range list {
		object, _ := item.(map[string]any)
		for _, name := range []string{"id", "type", "name", "rule", "seq", "digest", "key"} {
			if v := object[name]; v != nil && v != "" && !(name == "seq" && v == "0") {
				b.WriteString(Printable(fmt.Sprint(v)) + "\n")
				break
			}
		}
	}
	return b.Bytes(), err
}
