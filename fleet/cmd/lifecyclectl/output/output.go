// Package output writes what commands of lifecyclectl show: a message of the operators'
// contract as a table for people, or in another format of the flag -o for programs.
//
// A command has a [Format] and passes it each message with a function that fills a
// [Table]; begin with [Format.Write]. [Rows] is a table whose rows come one by one. Text
// from other sources never steers the terminal: tables and texts pass through [Printable].
package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Format is the format of a command's output: the value of its flag -o. The zero value is a
// table.
type Format struct{ name string }

// formats are the values of -o.
var formats = []string{"table", "wide", "json", "yaml", "name"}

// AddFlag adds the flag -o to a command.
func AddFlag(cmd *cobra.Command) {
	cmd.Flags().VarP(&Format{name: "table"}, "output", "o", "`format`: "+strings.Join(formats, ", "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}

// FormatOf returns the format that the user wants, a table for a command without the flag.
func FormatOf(cmd *cobra.Command) *Format {
	if flag := cmd.Flags().Lookup("output"); flag != nil {
		if f, ok := flag.Value.(*Format); ok {
			return f
		}
	}
	return new(Format)
}

// Type is the type of the flag.
func (f *Format) Type() string { return "format" }

// String returns the value of the flag.
func (f *Format) String() string { return f.name }

// Set takes a value of the flag, and refuses an unknown format.
func (f *Format) Set(value string) error {
	if !slices.Contains(formats, value) {
		return fmt.Errorf("want one of %s", strings.Join(formats, ", "))
	}
	f.name = value
	return nil
}

// IsTable reports whether the format is a table.
func (f *Format) IsTable() bool { return f.name == "table" || f.name == "wide" || f.name == "" }

// IsNames reports whether the format is names only.
func (f *Format) IsNames() bool { return f.name == "name" }

// Write writes m in the format. fill fills the table.
func (f *Format) Write(w io.Writer, m proto.Message, fill func(*Table)) error {
	if f.IsTable() {
		t := NewTable(w)
		t.wide = f.name == "wide"
		fill(t)
		return Send(w, t.Text())
	}
	text, err := f.encode(m, "  ")
	if err != nil {
		return fmt.Errorf("write as %s: %w", f.name, err)
	}
	return Send(w, text)
}

// Item writes one item of an endless sequence: JSON on one line, YAML as a
// separate document.
func (f *Format) Item(w io.Writer, m proto.Message) error {
	text, err := f.encode(m, "")
	if err != nil {
		return fmt.Errorf("write as %s: %w", f.name, err)
	}
	if f.name == "yaml" {
		text = append([]byte("---\n"), text...)
	}
	return Send(w, text)
}

// encode returns m in any format other than a table.
func (f *Format) encode(m proto.Message, indent string) ([]byte, error) {
	switch f.name {
	case "name":
		return names(m), nil
	case "yaml":
		return YAML(m)
	}
	return JSON(m, indent)
}

// Send writes a text, with an error that says so.
func Send(w io.Writer, text []byte) error {
	if _, err := w.Write(text); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// Rows is a table whose rows are written as they come.
type Rows struct {
	W      io.Writer
	Format *Format
	Head   []string
	Widths []int // the least widths of the columns

	isHeaded bool
}

// Add writes one row, or m in another format.
func (r *Rows) Add(m proto.Message, cells ...any) error {
	if !r.Format.IsTable() {
		return r.Format.Item(r.W, m)
	}
	t := r.table()
	t.Row(cells...)
	return Send(r.W, t.Text())
}

// Begin writes the head, before there is a row.
func (r *Rows) Begin() error {
	if !r.Format.IsTable() {
		return nil
	}
	return Send(r.W, r.table().Text())
}

// table returns a table with the head, unless that has been written.
func (r *Rows) table() *Table {
	t := NewTable(r.W)
	t.least = r.Widths
	if !r.isHeaded {
		r.isHeaded = true
		t.Head(r.Head...)
	}
	return t
}

// JSON encodes a message with the names that REST has, and with fields that
// are empty, so that scripts find them. indent "" keeps it on one line. Characters that
// could control a terminal are escaped.
func JSON(m proto.Message, indent string) ([]byte, error) {
	// protojson varies its spaces on purpose; another pass removes them.
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
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

// names writes the names of what a message has, one a line.
func names(m proto.Message) []byte {
	var b bytes.Buffer
	for _, item := range items(m.ProtoReflect()) {
		for _, name := range []protoreflect.Name{"id", "type", "name", "rule", "seq", "digest", "key"} {
			if f := item.Descriptor().Fields().ByName(name); f != nil && item.Has(f) {
				b.WriteString(Printable(item.Get(f).String()) + "\n")
				break
			}
		}
	}
	return b.Bytes()
}

// items returns what a message has: the elements of its list, which is the first field of an
// answer; the object of a change, or of an answer to a command; or itself.
func items(m protoreflect.Message) (all []protoreflect.Message) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.Message() == nil || f.IsMap():
		case i == 0 && f.IsList():
			for j, list := 0, m.Get(f).List(); j < list.Len(); j++ {
				all = append(all, list.Get(j).Message())
			}
			return all
		case !f.IsList() && (f.Name() == "entity" || f.Name() == "worker" || f.Name() == "process"):
			return []protoreflect.Message{m.Get(f).Message()}
		}
	}
	return []protoreflect.Message{m}
}
