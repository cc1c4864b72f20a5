package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/vet/command"
)

// vetCommand is the command of the module vet, with the exit statuses of this program.
func vetCommand() *cobra.Command {
	cmd := command.New()
	look := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := look(cmd, args)
		if errors.Is(err, command.ErrFindings) {
			return cli.Exit(cli.ExitFindings)
		}
		return err
	}
	return cmd
}
