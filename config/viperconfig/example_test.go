package viperconfig_test

import (
	"fmt"
	"strings"

	"github.com/spf13/viper"

	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/config/viperconfig"
)

func ExampleFrom() {
	v := viper.New()
	v.SetConfigType("yaml")
	load := func(content string) {
		if err := v.ReadConfig(strings.NewReader(content)); err != nil {
			fmt.Println(err)
			return
		}
		cfg, err := config.Load[Config]("", viperconfig.From(v))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(cfg.Addr, cfg.Lifecycle.DrainInterval)
	}
	load("lifecycle: {drain_interval: 7s}")
	load("lifecycle: {drain_interval: 7}")
	// Output:
	// :8080 7s
	// config: viper: lifecycle.drain_interval is 7: want a duration with its unit: 7s is that many seconds, 7ms milliseconds
}

func ExampleStrict() {
	v := viper.New()
	v.Set("addr", ":9090")
	v.Set("lifecycle.drain_interval", "7s")
	v.Set("lifecycle.linger", "off")

	var cfg Config
	if err := v.Unmarshal(&cfg, viperconfig.Strict()); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(cfg.Addr, cfg.Lifecycle.DrainInterval)
	// Output: :9090 7s
}
