package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/run"
)

func runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run [FLAGS] -- PROGRAM [ARG...]",
		Short: "Run any program with health planes, a drain before its end, and PID 1's work",
		// Its flags are the keys of its configuration, which package config parses.
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			// Not the context of main, which ends with the first signal: the App
			// handles and counts the signals.
			code := run.Run(context.WithoutCancel(cmd.Context()), args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			if code != cli.ExitOK {
				return cli.Exit(code)
			}
			return nil
		},
	}
}
