// Package explain has the command that says what the words mean that lists and pages show:
// states, events, rules, columns, and the fields of what -o json prints. words.yaml has the
// words; the contract's own comments explain the fields.
//
// Begin at [Command]. It asks no server.
package explain

import (
	_ "embed"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// meaning is what a word means that lists and pages show.
type meaning struct{ kind, name, means string }

//go:embed words.yaml
var wordsFile []byte

// words is the content of words.yaml.
type words struct {
	Words []struct {
		Kind  string
		Means []map[string]string // one word each
	}
	Columns map[string][]string // the fields that a column of a table shows, as paths
}

var file = func() (w words) {
	if err := yaml.Unmarshal(wordsFile, &w); err != nil {
		panic(err) // the file is part of the program
	}
	return w
}()

// meanings returns all words but fields, with the rules of the diagnosis.
func meanings() (list []meaning) {
	for _, group := range file.Words {
		for _, one := range group.Means {
			for name, means := range one {
				list = append(list, meaning{group.Kind, name, means})
			}
		}
	}
	for _, r := range diagnosis.Rules {
		list = append(list, meaning{"rule", r.Name, r.Means})
	}
	return list
}

// names returns every word that the command explains.
func names() (all []string) {
	for _, m := range meanings() {
		all = append(all, m.name)
	}
	for _, object := range objectNames() {
		all = append(all, object)
		for _, m := range explainFields(object)[1:] {
			all = append(all, m.name)
		}
	}
	for name := range file.Columns {
		all = append(all, name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Command returns the command explain.
func Command() *cobra.Command {
	return &cobra.Command{
		Use:   "explain [WORD]",
		Short: "Say what a state, an event, a rule, a column or a field means",
		Long: `Say what a state, an event, a rule, a column or a field means, as lists and pages show
it. A field belongs to an object that -o json prints: process.ready, or over several
objects process.units.restarts. The name of an object explains all of its fields. Without
a word it explains all states, events and rules. It asks no server.`,
		Example: `  lifecyclectl explain Pending
  lifecyclectl explain out-of-memory
  lifecyclectl explain process.ready
  lifecyclectl explain dead-letter`,
		RunE: func(cmd *cobra.Command, args []string) error {
			found := meanings()
			if len(args) > 0 {
				found = slices.DeleteFunc(found, func(m meaning) bool { return !strings.EqualFold(args[0], m.name) })
				found = slices.Concat(found, explainColumn(args[0]), explainFields(args[0]))
			}
			if len(found) == 0 {
				if meant := suggest.Nearest(args[0], names()); meant != "" {
					return cli.Fail(cli.ExitNotFound, "there is no word %q; did you mean %s?", args[0], meant)
				}
				return cli.Fail(cli.ExitNotFound, "there is no word %q: lifecyclectl explain lists all", args[0])
			}
			t := output.NewTable(cmd.OutOrStdout())
			t.Head("KIND", "WORD", "MEANS")
			for _, m := range found {
				t.Row(m.kind, m.name, m.means)
			}
			return output.Send(cmd.OutOrStdout(), t.Text())
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return names(), cobra.ShellCompDirectiveNoFileComp
		},
	}
}

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

// objects are the messages that -o json prints, by the first part of a path: all messages
// except requests, also messages inside others.
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
