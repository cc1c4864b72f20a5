package cobraconfig_test

import (
	"flag"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
	run("serve", "--config=", "--lifecycle.drain-interval=7s")
	run("serve", "--config=", "--lifecycle.drain-interval=7")
	run("serve", "--drain-interval=7s")
	// Output:
	// :8080 7s
	// config: flag --lifecycle.drain-interval: lifecycle.drain_interval is "7": want a duration with its unit: 7s is that many seconds, 7ms milliseconds
	// config: flag --drain-interval: there is no such flag: did you mean --lifecycle.drain-interval?
}

// A program with pflag alone needs no adapter.
func Example_pflag() {
	set := flag.NewFlagSet("service", flag.ContinueOnError)
	if err := config.Define[Config](set, "service.yaml"); err != nil {
		fmt.Println(err)
		return
	}
	flags := pflag.NewFlagSet("service", pflag.ContinueOnError)
	flags.AddGoFlagSet(set)
	for _, drain := range []string{"7s", "7"} {
		if err := flags.Parse([]string{"--config=", "--lifecycle.drain-interval=" + drain}); err != nil {
			fmt.Println(err)
			return
		}
		cfg, err := config.Load[Config]("service.yaml", config.WithFlagSet(set))
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(cfg.Addr, cfg.Lifecycle.DrainInterval)
	}
	// Output:
	// :8080 7s
	// config: flag --lifecycle.drain-interval: lifecycle.drain_interval is "7": want a duration with its unit: 7s is that many seconds, 7ms milliseconds
}
