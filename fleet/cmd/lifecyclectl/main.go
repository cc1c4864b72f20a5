// Command lifecyclectl is the operators' command line. It shows the workflows, workers
// and processes of a fleet, their states, and acts on them.
//
//	lifecyclectl list drone-survey --active
//	lifecyclectl transition drone-survey m-17 landing --note "wind from the east"
//	lifecyclectl watch drone-survey -o json | jq .entity.phase
//	lifecyclectl processes drain web-7f9c --reason "new node"
//	lifecyclectl top
//	lifecyclectl vet deployment.yaml --config service.yaml
//	lifecyclectl run -- ./server
//
// Workflows, hosted workers and processes come from an operator server (package
// fleet/operator), set by --server or LIFECYCLECTL_SERVER. docs/reference/lifecyclectl.md
// is the reference; the exit statuses are in lifecyclectl --help.
//
// The commands are in packages below, one for each noun; main.go puts them together. Begin
// with package cli for what they share.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/dev"
)

func main() {
	dev.Main() // a child of "workers dev" runs code and does not return
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
