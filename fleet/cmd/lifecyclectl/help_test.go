package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The help has each command below one heading.
func TestEveryCommandHasAGroup(t *testing.T) {
	root := newRoot()
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		if cmd.GroupID == "" && !cmd.Hidden {
			t.Errorf("%s has no group in the help: add it to groups", cmd.Name())
		}
	}
	for _, g := range groups {
		for _, name := range g.commands {
			exists := slices.ContainsFunc(root.Commands(), func(cmd *cobra.Command) bool { return cmd.Name() == name })
			if !exists && name != "completion" {
				t.Errorf("%s has %q, and no such command exists", g.title, name)
			}
		}
	}
}

// The short flag -f is a file everywhere, and a number of things is --limit everywhere.
func TestFlagsMeanOneThing(t *testing.T) {
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			kind, _ := pflag.UnquoteUsage(f)
			if f.Shorthand == "f" && kind != "file" {
				t.Errorf("%s: -f is a %s: want a file", cmd.CommandPath(), kind)
			}
			if f.Name == "tail" || f.Name == "limit" && kind != "N" {
				t.Errorf("%s: --%s %s: want --limit N", cmd.CommandPath(), f.Name, kind)
			}
		})
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(newRoot())
}

// A wrong value of a flag is told in words of this program, and not in those of Go's parsers.
func TestWrongValuesOfFlags(t *testing.T) {
	for args, want := range map[string]string{
		"list x --limit abc":                  `--limit is "abc": want a whole number`,
		"list x --limit 99999999999999999999": `--limit is "99999999999999999999": want a whole number`,
		"audit --since 5":                     `--since is "5": want a time with its unit`,
		"list x --watch=maybe":                `--watch is "maybe": want true or false`,
	} {
		var out bytes.Buffer
		if code := Run(t.Context(), strings.Fields(args), nil, &out, &out); code != 2 {
			t.Errorf("%s: exit status %d", args, code)
		}
		if !strings.Contains(out.String(), want) || strings.Contains(out.String(), "strconv") {
			t.Errorf("%s: %s, want %s", args, out.String(), want)
		}
	}
}
