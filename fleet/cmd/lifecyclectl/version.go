package main

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
)

func versionCommand() *cobra.Command {
	return cli.LocalCommand(&cobra.Command{
		Use:   "version",
		Short: "Show which version this is",
		Args:  cli.Words(),
	}, func(c *cli.Call) error {
		version, revision := cli.Built()
		platform := runtime.GOOS + "/" + runtime.GOARCH
		m := &structpb.Struct{Fields: map[string]*structpb.Value{
			"version":  structpb.NewStringValue(version),
			"revision": structpb.NewStringValue(revision),
			"go":       structpb.NewStringValue(runtime.Version()),
			"platform": structpb.NewStringValue(platform),
		}}
		return c.Write(m, func(t *output.Table) {
			t.Row(strings.TrimSpace(fmt.Sprintf("lifecyclectl %s %s", version, revision)))
			t.Row(fmt.Sprintf("%s %s", runtime.Version(), platform))
		})
	})
}
