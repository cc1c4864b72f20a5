// Command lifecycle-vet checks Kubernetes manifests against the configuration of a
// service that lifecycle runs.
//
//	kustomize build overlays/production | lifecycle-vet -
//	kubectl lifecycle-vet deployment.yaml --config service.yaml
//
// It is "lifecyclectl vet" as a program of its own, which CI builds in seconds. kubectl
// finds it as a plugin under the name kubectl-lifecycle_vet. docs/reference/vet.md has the rules,
// and the ways to install it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/vet/command"
)

// The exit statuses.
const (
	exitOK          = 0
	exitFindings    = 1
	exitUsage       = 2
	exitInterrupted = 130 // 128 and SIGINT, as in shells
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := Run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Run runs the command line, whose first word is the program's name, and returns the exit
// status.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	name := "lifecycle-vet"
	if strings.HasPrefix(filepath.Base(args[0]), "kubectl-") {
		name = "kubectl lifecycle-vet"
	}
	cmd := command.New()
	cmd.Use = "lifecycle-" + cmd.Use
	cmd.Example = command.Examples(name)
	cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: name}
	cmd.Version = version()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(args[1:])
	cmd.SetIn(stdin)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, command.ErrFindings):
		return exitFindings
	case errors.Is(err, syscall.EPIPE): // the reader has closed the pipe
		return exitUsage
	case ctx.Err() != nil:
		fmt.Fprintf(stderr, "%s: interrupted\n", name)
		return exitInterrupted
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	return exitUsage
}

// version is the version at which the module was installed.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
