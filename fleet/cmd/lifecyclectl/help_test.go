package main

import (
	"slices"
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
