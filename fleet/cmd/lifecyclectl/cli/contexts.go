package cli

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

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// Contexts is the configuration file: servers by name, and the one that commands ask.
type Contexts struct {
	Path     string                       `yaml:"-"`
	Current  string                       `yaml:"current,omitempty"`
	Contexts map[string]map[string]string `yaml:"contexts"` // the flags of a connection, by name
}

// configFile returns the path of the configuration file.
func configFile() (string, error) {
	if path := os.Getenv("LIFECYCLECTL_CONFIG"); path != "" {
		return path, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("where is the configuration file? set LIFECYCLECTL_CONFIG: %w", err)
	}
	return filepath.Join(dir, "lifecyclectl", "config.yaml"), nil
}

// ReadContexts reads the configuration file. A missing file has no contexts.
func ReadContexts() (c Contexts, err error) {
	if c.Path, err = configFile(); err != nil {
		return c, err
	}
	text, err := os.ReadFile(c.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("configuration file: %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return c, fmt.Errorf("configuration file %s: %w", c.Path, err)
	}
	known := ConnectionFlags()
	for name, flags := range c.Contexts {
		for flag := range flags {
			if known.Lookup(flag) == nil || flag == "context" {
				return c, fmt.Errorf("configuration file %s: the context %s has %q, which is no flag of a connection", c.Path, name, flag)
			}
		}
	}
	return c, nil
}

// chooseContext sets the flags of a connection that neither the command line nor the
// environment sets, from the context.
func chooseContext(given *pflag.FlagSet) error {
	c, err := ReadContexts()
	name, _ := given.GetString("context")
	if c.Path == "" && name == "" {
		return nil // a user without a folder of configurations has no contexts
	}
	if err != nil {
		return err
	}
	if name == "" {
		name = c.Current
	}
	if name == "" {
		return nil
	}
	flags, ok := c.Contexts[name]
	if !ok {
		if meant := suggest.Nearest(name, slices.Collect(maps.Keys(c.Contexts))); meant != "" {
			return fmt.Errorf("there is no context %q in %s; did you mean %s?", name, c.Path, meant)
		}
		return fmt.Errorf("there is no context %q in %s", name, c.Path)
	}
	server := given.Lookup("server")
	isOtherServer := flags["server"] != "" && server.Changed && !isSameServer(server.Value.String(), flags["server"])
	for flag, value := range flags {
		if given.Changed(flag) || isOtherServer && slices.Contains(credentialFlags, flag) {
			continue
		}
		if strings.HasSuffix(flag, "-file") && !filepath.IsAbs(value) { // relative to the file that names it
			value = filepath.Join(filepath.Dir(c.Path), value)
		}
		if err := given.Set(flag, value); err != nil {
			return fmt.Errorf("configuration file %s: the context %s has %s %q: %w", c.Path, name, flag, value, err)
		}
	}
	return nil
}

// credentialFlags are the flags of a context that count for its own server only.
var credentialFlags = []string{"token-file", "cert-file", "key-file", "plaintext-token"}

func isSameServer(a, b string) bool {
	one, err := parseServer(a)
	if err != nil {
		return false
	}
	other, err := parseServer(b)
	return err == nil && one.Scheme == other.Scheme && strings.EqualFold(one.Host, other.Host)
}
