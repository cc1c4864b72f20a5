// Package contexts has the commands about the configuration file: the operator servers in
// it, and which of them commands ask. Package cli reads the file.
//
// No command here asks a server. Begin at [Command].
package contexts

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
)

// Command returns the command contexts.
func Command() *cobra.Command {
	list := &cobra.Command{
		Use:   "list",
		Short: "List the contexts of the configuration file",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := cli.ReadContexts(cmd.Context())
			if err != nil {
				return err
			}
			t := output.NewTable(cmd.OutOrStdout())
			t.Head("CURRENT", "NAME", "SERVER")
			for _, name := range slices.Sorted(maps.Keys(c.Contexts)) {
				mark := ""
				if name == c.Current {
					mark = "*"
				}
				t.Row(mark, name, c.Contexts[name]["server"])
			}
			return output.Send(cmd.OutOrStdout(), t.Text())
		},
	}
	use := &cobra.Command{
		Use:   "use NAME",
		Short: "Choose the context that commands use without --context",
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := cli.ReadContexts(cmd.Context())
			if err != nil {
				return err
			}
			if _, ok := c.Contexts[args[0]]; !ok {
				return fmt.Errorf("there is no context %q in %s", args[0], c.Path)
			}
			if err := setCurrent(cmd.Context(), c.Path, args[0]); err != nil {
				return fmt.Errorf("configuration file: %w", err)
			}
			return output.Send(cmd.OutOrStdout(), []byte("commands use the context "+output.Printable(args[0])+"\n"))
		},
	}
	return cli.Group(&cobra.Command{
		Use:   "contexts",
		Short: "The operator servers of the configuration file, by name",
		Long: `The operator servers of the configuration file, by name. The file is
lifecyclectl/config.yaml in the user's folder of configurations, or
LIFECYCLECTL_CONFIG:

  current: production
  contexts:
    production:
      server: https://operator.example.com
      token-file: production.token
    local:
      server: http://127.0.0.1:8090

A context has the flags of a connection. A path is relative to the file. A flag of the
command line takes precedence, then its environment variable, then the context. The
token and the client certificate of a context go to its own server only.`,
	}, list, use)
}

// setCurrent changes one value of the file, and keeps its comments.
func setCurrent(ctx context.Context, path, name string) error {
	path, err := filepath.EvalSymlinks(path) // a link stays one
	if err != nil {
		return err
	}
	text, err := cli.ReadFile(ctx, path, nil)
	if err != nil {
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return err
	}
	root := doc.Content[0] // ReadContexts has read a mapping
	value := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: name}
	isSet := false
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == "current" {
			root.Content[i+1], isSet = value, true
		}
	}
	if !isSet {
		key := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: "current"}
		root.Content = append([]*yaml.Node{key, value}, root.Content...)
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return err
	}
	if err := enc.Close(); err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return cli.ReplaceFile(path, b.Bytes(), info.Mode().Perm())
}
