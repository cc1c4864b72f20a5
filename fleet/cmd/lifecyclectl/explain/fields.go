package explain

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// snake turns the name of a message into the first part of a path: DeadLetter is
// dead_letter.
func snake(name protoreflect.Name) string {
	var b strings.Builder
	for i, r := range string(name) {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteString(strings.ToLower(string(r)))
	}
	return b.String()
}

// plain makes spellings of a path equal: deadletter, dead-letter and dead_letter.
func plain(path string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(path))
}

// objects are the messages that -o json prints, by the first part of a path: all but
// requests, with those inside others.
var objects = func() map[string]protoreflect.MessageDescriptor {
	all := map[string]protoreflect.MessageDescriptor{}
	var add func(list protoreflect.MessageDescriptors)
	add = func(list protoreflect.MessageDescriptors) {
		for i := range list.Len() {
			m := list.Get(i)
			_, isInner := m.Parent().(protoreflect.MessageDescriptor)
			isPrinted := !m.IsMapEntry() && !strings.HasSuffix(string(m.Name()), "Request")
			if isPrinted && (!isInner || all[snake(m.Name())] == nil) {
				all[snake(m.Name())] = m
			}
			add(m.Messages())
		}
	}
	for _, f := range operatorv1.Files() {
		add(f.Messages())
		for i := range f.Imports().Len() {
			if f := f.Imports().Get(i); f.Package() == "lifecycle.operator.v1" {
				add(f.Messages())
			}
		}
	}
	return all
}()

func objectNames() []string { return slices.Sorted(maps.Keys(objects)) }

// explainFields explains the field at a path such as "process.ready" or
// "process.units.restarts", or when the path leads to a message, that and its fields.
func explainFields(path string) (list []meaning) {
	steps := strings.Split(path, ".")
	names := objectNames()
	i := slices.IndexFunc(names, func(name string) bool { return plain(name) == plain(steps[0]) })
	if i < 0 {
		return nil
	}
	m, at := objects[names[i]], names[i]
	kind, means := "object", operatorv1.Comment(m)
	for _, step := range steps[1:] {
		if m == nil || m.FullName().Parent() == "google.protobuf" {
			return nil
		}
		f := fieldOf(m, step)
		if f == nil {
			return nil
		}
		m, at = f.Message(), at+"."+string(f.Name())
		kind, means = "field", operatorv1.Comment(f)
	}
	list = append(list, meaning{kind, at, means})
	if m == nil || m.FullName().Parent() == "google.protobuf" {
		return list
	}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		list = append(list, meaning{"field", at + "." + string(f.Name()), operatorv1.Comment(f)})
	}
	return list
}

func fieldOf(m protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	for i := range m.Fields().Len() {
		if f := m.Fields().Get(i); plain(string(f.Name())) == plain(name) {
			return f
		}
	}
	return nil
}

// explainColumn explains the fields that a column shows.
func explainColumn(name string) (list []meaning) {
	for _, path := range file.Columns[strings.ToUpper(name)] {
		for _, m := range explainFields(path)[:1] {
			list = append(list, meaning{"column", strings.ToUpper(name), m.means + " (" + m.name + ")"})
		}
	}
	return list
}
