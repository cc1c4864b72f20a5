package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// output is the format of a command's output: the value of -o.
type output struct {
	format string
	text   *template.Template // of -o template=…, set by check
	path   jsonPath           // of -o jsonpath=…, set by check

	columns []customColumn // of -o custom-columns=…, set by check
	headed  bool           // their head was written
}

// formats are the values of -o.
const formats = "table, wide, json, yaml, name, jsonpath={.a.b}, custom-columns=HEAD:.a.b,…, or template={{.a}}"

func (o *output) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", "table", "`format`: "+formats)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "wide", "json", "yaml", "name", "jsonpath=", "custom-columns=", "template="}, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}

// check refuses an unknown format, before the server is asked.
func (o *output) check() (err error) {
	kind, text, has := strings.Cut(o.format, "=")
	switch {
	case has && kind == "jsonpath":
		o.path, err = parsePath(text)
	case has && kind == "custom-columns":
		o.columns, err = parseColumns(text)
	case has && kind == "template":
		o.text, err = template.New("-o template").Option("missingkey=zero").Parse(text)
	case has || !slices.Contains([]string{"table", "wide", "json", "yaml", "name"}, kind):
		err = fmt.Errorf("-o is %q, want %s", o.format, formats)
	}
	return err
}

// encode returns m in any format other than a table.
func (o *output) encode(m proto.Message, indent string) ([]byte, error) {
	switch {
	case o.columns != nil:
		return o.inColumns(m)
	case o.path != nil || o.text != nil:
		return o.extract(m)
	case o.format == "name":
		return names(m), nil
	case o.format == "yaml":
		return asYAML(m)
	}
	return asJSON(m, indent)
}

// tabular reports whether the format is a table.
func (o *output) tabular() bool { return o.format == "table" || o.format == "wide" || o.format == "" }

// write writes m in the format. fill fills the table.
func (o *output) write(w io.Writer, m proto.Message, fill func(*table)) error {
	if o.tabular() {
		t := &table{colours: colourful(w), wide: o.format == "wide"}
		fill(t)
		return send(w, t.text())
	}
	text, err := o.encode(m, "  ")
	if err != nil {
		return fmt.Errorf("write as %s: %w", o.format, err)
	}
	return send(w, text)
}

// item writes one item of an endless sequence: JSON on one line, YAML as a
// separate document.
func (o *output) item(w io.Writer, m proto.Message) error {
	text, err := o.encode(m, "")
	if o.format == "yaml" {
		text = append([]byte("---\n"), text...)
	}
	if err != nil {
		return fmt.Errorf("write as %s: %w", o.format, err)
	}
	return send(w, text)
}

func send(w io.Writer, text []byte) error {
	if _, err := w.Write(text); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// asJSON encodes a message with the contract's own names and with fields that
// are empty, so that scripts find them. indent "" keeps it on one line.
func asJSON(m proto.Message, indent string) ([]byte, error) {
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
	return escaped(b.Bytes()), nil
}

// escaped escapes characters that could control a terminal, and that JSON and YAML
// also allow unescaped in quotes.
func escaped(text []byte) []byte {
	if !bytes.ContainsFunc(text, unprintable) {
		return text
	}
	var b bytes.Buffer
	for _, r := range string(text) {
		if r != '\n' && unprintable(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}

// asYAML encodes the same as asJSON.
func asYAML(m proto.Message) ([]byte, error) {
	text, err := asJSON(m, "  ")
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	node, err := yamlNode(dec)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(node); err != nil {
		return nil, err
	}
	if err := enc.Close(); err != nil {
		return nil, err
	}
	return escaped(b.Bytes()), nil
}

// yamlNode reads one value. Names keep their order. Text with characters to
// escape gets its quotes here, other text from the encoder where it needs them.
func yamlNode(dec *json.Decoder) (*yaml.Node, error) {
	token, err := dec.Token()
	if err != nil {
		return nil, err
	}
	scalar := func(tag, value string) (*yaml.Node, error) {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value}, nil
	}
	switch v := token.(type) {
	case json.Delim:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		if v == '{' {
			n.Kind = yaml.MappingNode
		}
		for dec.More() { // names and values are both tokens
			child, err := yamlNode(dec)
			if err != nil {
				return nil, err
			}
			n.Content = append(n.Content, child)
		}
		_, err := dec.Token() // the end of the object
		return n, err
	case string:
		n, err := scalar("!!str", v)
		if strings.ContainsFunc(v, unprintable) {
			n.Style = yaml.DoubleQuotedStyle
		}
		return n, err
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			return scalar("!!float", v.String())
		}
		return scalar("!!int", v.String())
	case bool:
		return scalar("!!bool", strconv.FormatBool(v))
	}
	return scalar("!!null", "null")
}

// unprintable reports characters that do not belong on a terminal: controls
// (C0, C1, delete), those that change the direction of text, and those that YAML
// treats as line ends or does not accept.
func unprintable(r rune) bool {
	return r < ' ' || r >= 0x7f && r <= 0x9f || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0xfeff || r == 0xfffe || r == 0xffff
}

// printable makes foreign text safe for a terminal: it shows control characters
// as escapes.
func printable(text string) string {
	if !strings.ContainsFunc(text, unprintable) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unprintable(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// printableLines applies printable to each line.
func printableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = printable(l)
	}
	return strings.Join(lines, "\n")
}

// terminal reports whether w, a writer or a reader, is a terminal.
func terminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colourful reports whether to write to w in colours: to a terminal that
// supports them, unless NO_COLOR is set (no-color.org).
func colourful(w any) bool {
	return terminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
