// Package explain has the command that says what the words mean that lists and pages show:
// states, events, rules and columns. words.yaml has the words.
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
)

// meaning is what a word means that lists and pages show.
type meaning struct{ kind, name, means string }

//go:embed words.yaml
var wordsFile []byte

// meanings returns all words: those of words.yaml, and the rules of the diagnosis.
func meanings() (list []meaning) {
	var groups []struct {
		Kind  string
		Means []map[string]string // one word each
	}
	if err := yaml.Unmarshal(wordsFile, &groups); err != nil {
		panic(err) // the file is part of the program
	}
	for _, group := range groups {
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

// Command returns the command explain.
func Command() *cobra.Command {
	return &cobra.Command{
		Use:   "explain [WORD]",
		Short: "Say what a state, an event, a rule or a column means",
		Long: `Say what a state, an event, a rule or a column means, as lists and pages show it; of the
columns, those whose names do not say it. Without a word it explains all of them. It asks
no server. The document /openapi.json of the server explains the fields of -o json.`,
		Example: `  lifecyclectl explain Pending
  lifecyclectl explain out-of-memory`,
		RunE: func(cmd *cobra.Command, args []string) error {
			found := meanings()
			if len(args) > 0 {
				found = slices.DeleteFunc(found, func(m meaning) bool { return !strings.EqualFold(args[0], m.name) })
			}
			if len(found) == 0 {
				return cli.Fail(cli.ExitNotFound, "there is no word %q: lifecyclectl explain lists all", args[0])
			}
			t := output.NewTable(cmd.OutOrStdout())
			t.Head("KIND", "WORD", "MEANS")
			for _, m := range found {
				t.Row(m.kind, m.name, m.means)
			}
			return output.Send(cmd.OutOrStdout(), t.Text())
		},
	}
}
