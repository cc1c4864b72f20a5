package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// parseYAML reads the one document of a file that has values. Documents before and after it
// that have none, as helm prints them, are skipped.
func parseYAML(content []byte) (document, *Fault) {
	var root *yaml.Node
	in := yaml.NewDecoder(bytes.NewReader(content))
	for {
		var next yaml.Node
		err := in.Decode(&next)
		switch {
		case errors.Is(err, io.EOF):
			if root == nil {
				return document{}, nil // nothing but comments
			}
			return parseNode(root.Content[0])
		case err != nil:
			return document{}, yamlFault(err)
		case next.Content[0].Tag == "!!null":
			continue
		case root != nil:
			return document{}, &Fault{Line: next.Line, Problem: "a second document begins here: a configuration has one"}
		}
		root = &next
	}
}

// parseNode returns the values of a document, with their lines.
func parseNode(root *yaml.Node) (document, *Fault) {
	if root.Kind != yaml.MappingNode {
		return document{}, notSections(root.Line, "YAML")
	}
	doc := document{lines: map[string]int{}}
	if fault := doc.addYAML(root, ""); fault != nil {
		return document{}, fault
	}
	if err := root.Decode(&doc.tree); err != nil {
		return document{}, yamlFault(err)
	}
	return doc, nil
}

// leadingZero matches a number that is octal for some parsers and decimal for others.
var leadingZero = regexp.MustCompile(`^[-+]?0[0-9_]+$`)

// zeroMark begins a number with a leading zero, as a text that the decoder refuses. A file
// cannot have this character.
const zeroMark = "\x00"

// addYAML notes the lines of the keys and items below a node, and marks numbers with a
// leading zero. An alias is not followed: what it stands for has the lines of its own place.
func (d *document) addYAML(n *yaml.Node, path string) *Fault {
	switch n.Kind {
	case yaml.MappingNode:
		seen := map[string]int{}
		for i := 0; i < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			if key.Kind != yaml.ScalarNode {
				return &Fault{Line: key.Line, Problem: "a section stands in place of a key: in a template, put {{…}} in quotes or render it"}
			}
			below := join(path, key.Value)
			if first := seen[key.Value]; first > 0 {
				return &Fault{Line: key.Line, Problem: fmt.Sprintf("the key %q occurs twice, first in line %d", below, first)}
			}
			seen[key.Value], d.lines[below] = key.Line, key.Line
			if fault := d.addYAML(value, below); fault != nil {
				return fault
			}
		}
	case yaml.SequenceNode:
		for i, item := range n.Content {
			below := path + "[" + strconv.Itoa(i) + "]"
			d.lines[below] = item.Line
			if fault := d.addYAML(item, below); fault != nil {
				return fault
			}
		}
	case yaml.ScalarNode:
		isNumber := n.Tag == "!!int" || n.Tag == "!!float"
		if isNumber && leadingZero.MatchString(n.Value) {
			n.Tag, n.Value = "!!str", zeroMark+n.Value
		}
	}
	return nil
}

var (
	yamlLine = regexp.MustCompile(`\bline (\d+): `)
	// yamlQuote matches what an error quotes of the content, which may be a secret. What the
	// parser expected, such as ',' or ']', has no letters.
	yamlQuote = regexp.MustCompile("'[^\\s']*\\w[^\\s']*'|`[^`]*`")
)

// yamlFault returns the fault for an error of the parser. The parser counts lines from 0 in
// some errors and from 1 in others, and names none in place of 0.
func yamlFault(err error) *Fault {
	said := strings.TrimPrefix(err.Error(), "yaml: ")
	fault := &Fault{Problem: "the file is not valid YAML"}
	if m := yamlLine.FindStringSubmatch(said); m != nil {
		fault.Line, _ = strconv.Atoi(m[1])
		fault.Problem += " here or in the next line"
	}
	said = yamlQuote.ReplaceAllString(yamlLine.ReplaceAllString(said, ""), "…")
	fault.Problem += "; it may be truncated: " + strings.Join(strings.Fields(said), " ")
	return fault
}
