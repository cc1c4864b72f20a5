// Package explain has the command that says what the words mean that lists and pages show:
// states, events, rules, columns, and the fields of what -o json prints. words.yaml has the
// words; the contract's own comments explain the fields (fields.go).
//
// Begin at [Command]. It asks no server.
package explain

import (
	_ "embed"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
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
		Args: cli.Words("[WORD]"),
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
