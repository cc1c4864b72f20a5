// Command lifecyclectl is the operators' command line.
//
//	lifecyclectl vet deployment.yaml --config service.yaml
//	helm template web chart | lifecyclectl vet - --config service.yaml -o sarif
//
// Exit status: 0 when there is nothing to say, 1 when there is, 2 when it could
// not be asked: an unknown flag, a file that cannot be read, a configuration
// that is none.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
