// Package cobraconfig gives the flags of a configuration to a command of cobra:
//
//	root := &cobra.Command{Use: "service", RunE: func(cmd *cobra.Command, args []string) error {
//		cfg, err := config.Load[Config]("service.yaml", cobraconfig.Flags(cmd))
//		…
//	}}
//	err := cobraconfig.Define[Config](root, "service.yaml")
//
// cobra parses the flags, and keeps the commands, the arguments and all other flags. The
// file and the environment are read as by any other program. Package config says what
// the flags take.
package cobraconfig

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pleme-io/lifecycle-go/config"
)

// Define adds a persistent flag for each key of T to cmd, so that cmd and the commands
// below it have them. path and the options mean what they mean for config.Load. A shell completes
// the keys that have a few words for values.
//
// Define also adds --config, which names the file, unless the command has a flag of that
// name. A program that gives the value of its own --config to config.Load needs
// config.WithEnvPrefix in both calls, because the prefix follows the name of the file. Any
// other name that the command already has is an error, and Define then adds nothing. Call it
// once for a tree of commands, before Execute.
func Define[T any](cmd *cobra.Command, path string, opts ...config.Option) error {
	keys, err := config.Keys[T](path, opts...)
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range keys {
		if name := flagName(k); cmd.Flag(name) != nil {
			errs = append(errs, fmt.Errorf("config: the command %s has a flag --%s already: rename the key %s or that flag", cmd.Name(), name, k.Name))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	flags := cmd.PersistentFlags()
	if cmd.Flag("config") == nil {
		flags.Var(&value{key: "config", kind: "file"}, "config", "read the `file` in place of the program's, none when it is empty")
		if err := cmd.MarkPersistentFlagFilename("config", "yaml", "yml", "json", "toml"); err != nil {
			return err
		}
	}
	for _, k := range keys {
		v := &value{key: k.Name, kind: k.Type}
		flag := flags.VarPF(v, flagName(k), "", k.Usage())
		if k.Type == "true or false" {
			v.kind, flag.NoOptDefVal = "bool", "true" // the flag needs no value
		}
		if k.Words != nil {
			if err := cmd.RegisterFlagCompletionFunc(flag.Name, cobra.FixedCompletions(k.Words, cobra.ShellCompDirectiveNoFileComp)); err != nil {
				return err
			}
		}
	}
	return nil
}

func flagName(k config.Key) string { return strings.TrimPrefix(k.Flag, "-") }

// Flags is the option of config.Load for a command that runs: it has the values of the
// flags that [Define] has added to cmd or to a command above it.
func Flags(cmd *cobra.Command) config.Option {
	texts := map[string]string{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if v, ok := f.Value.(*value); ok && f.Changed {
			texts[v.key] = v.text
		}
	})
	return config.WithFlags(texts)
}

// FlagError explains an unknown flag: the error names the flag that was probably meant.
// It returns every other error as it is. Give it to the root command:
//
//	root.SetFlagErrorFunc(cobraconfig.FlagError)
func FlagError(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: ")
	if !ok {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	fault := config.UnknownFlag(name, names)
	fault.Err = err
	return fault
}

// value is the text of a flag. Load reads it.
type value struct{ key, kind, text string }

func (v *value) String() string     { return v.text }
func (v *value) Set(s string) error { v.text = s; return nil }
func (v *value) Type() string       { return v.kind }
