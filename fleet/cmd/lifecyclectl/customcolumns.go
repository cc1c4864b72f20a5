package main

import (
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// customColumn is a column of -o custom-columns=HEAD:PATH,…, in kubectl's syntax. The path
// is that of an item of a list, as -o json names its fields.
type customColumn struct {
	head  string
	steps []step
}

// noValue is what a column shows of an item without the field.
const noValue = "<none>"

func parseColumns(text string) (columns []customColumn, err error) {
	for one := range strings.SplitSeq(text, ",") {
		head, path, ok := strings.Cut(one, ":")
		path = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(path), "{"), "}")
		if !ok || strings.TrimSpace(head) == "" || path == "" {
			return nil, fmt.Errorf("-o custom-columns has %q: want HEAD:PATH, with commas between them, such as ID:.id,WHERE:.host", clipped(one))
		}
		steps, err := parseSteps(path)
		if err != nil {
			return nil, fmt.Errorf("%s", strings.Replace(err.Error(), "-o jsonpath", "-o custom-columns", 1))
		}
		columns = append(columns, customColumn{strings.TrimSpace(head), steps})
	}
	return columns, nil
}

// inColumns returns the items of a message as a table. Only the first table has a head.
func (o *output) inColumns(m proto.Message) ([]byte, error) {
	v, err := value(m)
	if err != nil {
		return nil, err
	}
	t := &table{}
	for range o.columns { // the rows of a watch come one by one
		t.least = append(t.least, 12)
	}
	if !o.headed {
		o.headed = true
		var cells []any
		for _, c := range o.columns {
			cells = append(cells, c.head)
		}
		t.row(cells...)
	}
	for _, item := range items(m.ProtoReflect().Descriptor(), v) {
		var cells []any
		for _, c := range o.columns {
			cells = append(cells, cellOf(selected(item, c.steps)))
		}
		t.row(cells...)
	}
	return t.text(), nil
}

// cellOf returns the values of one cell.
func cellOf(found []any) string {
	var all []string
	for _, one := range found {
		switch one := one.(type) {
		case nil:
		case string:
			all = append(all, one)
		default:
			if text, err := json.Marshal(one); err == nil { // it was JSON
				all = append(all, string(text))
			}
		}
	}
	if len(all) == 0 {
		return noValue
	}
	return strings.Join(all, ",")
}

// items returns what a message has: the elements of its list, the object of a change, or
// itself.
func items(d protoreflect.MessageDescriptor, v any) []any {
	object, _ := v.(map[string]any)
	if item, ok := object["item"]; ok && d.FullName() == "google.protobuf.Struct" {
		return []any{item}
	}
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		if i == 0 && f.IsList() && f.Message() != nil { // the list of an answer is its first field
			list, _ := object[string(f.Name())].([]any)
			return list
		}
		if f.Message() != nil && !f.IsList() && !f.IsMap() && (f.Name() == "entity" || f.Name() == "worker" || f.Name() == "process") {
			return []any{object[string(f.Name())]} // of an answer to a transition, and of a watch
		}
	}
	return []any{v}
}
