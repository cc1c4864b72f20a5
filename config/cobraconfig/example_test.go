package cobraconfig_test

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/config/cobraconfig"
)

func Example() {
	root := &cobra.Command{Use: "service", SilenceErrors: true, SilenceUsage: true}
	root.SetFlagErrorFunc(cobraconfig.FlagError)
	if err := cobraconfig.Define[Config](root, "service.yaml"); err != nil {
		fmt.Println(err)
		return
	}
	root.AddCommand(&cobra.Command{Use: "serve", RunE: func(cmd *cobra.Command, _ []string) error {
		cfg, err := config.Load[Config]("service.yaml", cobraconfig.Flags(cmd))
		if err != nil {
			return err
		}
		fmt.Println(cfg.Addr, cfg.Lifecycle.DrainInterval)
		return nil
	}})

	run := func(args ...string) {
		root.SetArgs(args) // a program leaves this out
		if err := root.Execute(); err != nil {
			fmt.Println(err)
		}
	}
	_ = os.Unsetenv("SERVICE_ADDR")
	run("serve", "--config=", "--lifecycle.drain-interval=7s")
	run("serve", "--config=", "--lifecycle.drain-interval=7")
	run("serve", "--drain-interval=7s")
	// Output:
	// :8080 7s
	// config: flag --lifecycle.drain-interval: lifecycle.drain_interval is "7": want a duration with its unit: 7s is that many seconds, 7ms milliseconds
	// config: flag --drain-interval: there is no such flag: did you mean --lifecycle.drain-interval?
}
