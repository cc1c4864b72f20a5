package kongconfig_test

import (
	"fmt"

	"github.com/alecthomas/kong"

	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/config/kongconfig"
)

func Example() {
	var cli struct {
		Serve struct{} `cmd:"" help:"Serve until a signal comes."`
	}
	flags, err := kongconfig.Define[Config]("service.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	parser, err := kong.New(&cli, flags) // or kong.Parse, which takes os.Args
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, drain := range []string{"7s", "7"} {
		if _, err := parser.Parse([]string{"serve", "--config=", "--lifecycle.drain-interval=" + drain}); err != nil {
			fmt.Println(err)
			return
		}
		cfg, err := config.Load[Config]("service.yaml", flags.Given())
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
