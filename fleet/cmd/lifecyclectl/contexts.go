package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// contexts is the configuration file: servers by name, and the one that commands ask.
type contexts struct {
	Current  string                       `yaml:"current,omitempty"`
	Contexts map[string]map[string]string `yaml:"contexts"` // the flags of a connection, by name
}

// contextsFile returns the path of the configuration file.
func contextsFile() (string, error) {
	if path := os.Getenv("LIFECYCLECTL_CONFIG"); path != "" {
		return path, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("where is the configuration file? set LIFECYCLECTL_CONFIG: %w", err)
	}
	return filepath.Join(dir, "lifecyclectl", "config.yaml"), nil
}

// readContexts reads the configuration file. A missing file has no contexts.
func readContexts(path string) (c contexts, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("configuration file: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return c, fmt.Errorf("configuration file %s: %w", path, err)
	}
	for name, flags := range c.Contexts {
		for flag := range flags {
			if _, known := variables[flag]; !known || flag == "context" {
				return c, fmt.Errorf("configuration file %s: the context %s has %q, which is no flag of a connection", path, name, flag)
			}
		}
	}
	return c, nil
}

// choose sets the flags of the connection that neither the command line nor the
// environment sets, to those of the context.
func (r *remote) choose() error {
	path, err := contextsFile()
	if err != nil {
		if r.context == "" {
			return nil
		}
		return err
	}
	c, err := readContexts(path)
	if err != nil {
		return err
	}
	name := r.context
	if name == "" {
		name = c.Current
	}
	if name == "" {
		return nil
	}
	flags, ok := c.Contexts[name]
	if !ok {
		if meant := suggest.Nearest(name, slices.Collect(maps.Keys(c.Contexts))); meant != "" {
			return fmt.Errorf("there is no context %q in %s; did you mean %s?", name, path, meant)
		}
		return fmt.Errorf("there is no context %q in %s", name, path)
	}
	elsewhere := flags["server"] != "" && r.flags.Lookup("server").Changed && !sameServer(r.server, flags["server"])
	for flag, value := range flags {
		if f := r.flags.Lookup(flag); f.Changed || elsewhere && credentialFlags[flag] {
			continue
		}
		switch flag {
		case "token-file", "ca-file", "cert-file", "key-file":
			if !filepath.IsAbs(value) { // relative to the file that names it
				value = filepath.Join(filepath.Dir(path), value)
			}
		}
		if err := r.flags.Set(flag, value); err != nil {
			return fmt.Errorf("configuration file %s: the context %s has %s %q: %w", path, name, flag, value, err)
		}
	}
	return nil
}

// credentialFlags are the flags of a context that count for its own server only.
var credentialFlags = map[string]bool{"token-file": true, "cert-file": true, "key-file": true, "plaintext-token": true}

func sameServer(a, b string) bool {
	one, err := parseServer(a)
	if err != nil {
		return false
	}
	other, err := parseServer(b)
	return err == nil && one.Scheme == other.Scheme && strings.EqualFold(one.Host, other.Host)
}

// ownContexts reads the caller's configuration file.
func ownContexts() (path string, c contexts, err error) {
	if path, err = contextsFile(); err != nil {
		return "", c, err
	}
	c, err = readContexts(path)
	return path, c, err
}

func contextsCommand() *cobra.Command {
	list := &cobra.Command{
		Use:   "list",
		Short: "List the contexts of the configuration file",
		Args:  words(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, c, err := ownContexts()
			if err != nil {
				return err
			}
			t := &table{colours: colourful(cmd.OutOrStdout())}
			t.head("CURRENT", "NAME", "SERVER")
			for _, name := range slices.Sorted(maps.Keys(c.Contexts)) {
				mark := ""
				if name == c.Current {
					mark = "*"
				}
				t.row(mark, name, c.Contexts[name]["server"])
			}
			return send(cmd.OutOrStdout(), t.text())
		},
	}
	use := &cobra.Command{
		Use:   "use NAME",
		Short: "Choose the context that commands use without --context",
		Args:  words("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, c, err := ownContexts()
			if err != nil {
				return err
			}
			if _, ok := c.Contexts[args[0]]; !ok {
				return fmt.Errorf("there is no context %q in %s", args[0], path)
			}
			if err := setCurrent(path, args[0]); err != nil {
				return fmt.Errorf("configuration file: %w", err)
			}
			return send(cmd.OutOrStdout(), []byte("commands use the context "+printable(args[0])+"\n"))
		},
	}
	return group(&cobra.Command{
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
func setCurrent(path, name string) error {
	path, err := filepath.EvalSymlinks(path) // a link stays one
	if err != nil {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return err
	}
	root := doc.Content[0] // readContexts has read a mapping
	value := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: name}
	set := false
	for i := 0; i+1 < len(root.Content); i += 2 {
		if root.Content[i].Value == "current" {
			root.Content[i+1], set = value, true
		}
	}
	if !set {
		root.Content = append([]*yaml.Node{{Kind: yaml.ScalarNode, Tag: "!!str", Value: "current"}, value}, root.Content...)
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
	// Another command that reads the file sees the old one or the new one.
	if err := os.WriteFile(path+".new", b.Bytes(), info.Mode().Perm()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
