package config_test

import (
	"flag"
	"fmt"

	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
)

// A program that has a set of flags and commands of its own.
func ExampleDefine() {
	set := flag.NewFlagSet("service", flag.ContinueOnError)
	verbose := set.Bool("verbose", false, "log more")
	if err := config.Define[Config](set, "service.yaml"); err != nil {
		fmt.Println(err)
		return
	}
	args := []string{"-verbose", "-config=", "-lifecycle.drain-interval=7s", "serve"} // os.Args[1:]
	if err := config.FlagError(set, set.Parse(args)); err != nil {
		fmt.Println(err)
		return
	}
	cfg, err := config.Load[Config]("service.yaml", config.WithFlagSet(set))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(*verbose, set.Arg(0), cfg.Addr, cfg.Lifecycle.DrainInterval)
	// Output: true serve :8080 7s
}

// A program whose flags a library parses for which there is no adapter.
func ExampleWithFlags() {
	keys, err := config.Keys[Config]("service.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, k := range keys[:2] {
		fmt.Println("-"+k.Flag, k.Type, k.Default, k.Env) // define such a flag
	}
	given := map[string]string{"config": "", "lifecycle.drain_interval": "7s"} // by k.Name, after the parse
	cfg, err := config.Load[Config]("service.yaml", config.WithFlags(given))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(cfg.Lifecycle.DrainInterval)
	// Output:
	// --addr text ":8080" SERVICE_ADDR
	// --poll duration 1s SERVICE_POLL
	// 7s
}

// A program that fills a koanf itself.
func ExampleFromKoanf() {
	k := koanf.New(".")
	if err := k.Load(confmap.Provider(map[string]any{"addr": ":9090", "lifecycle.drain_interval": "7s"}, "."), nil); err != nil {
		fmt.Println(err)
		return
	}
	cfg, err := config.Load[Config]("", config.FromKoanf(k))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(cfg.Addr, cfg.Lifecycle.DrainInterval)
	// Output: :9090 7s
}

// A program with settings of any kind takes the section lifecycle alone.
func ExampleFromMap() {
	load := func(settings map[string]any) {
		cfg, err := config.Load[lifecycle.Config]("", config.FromMap("settings", settings), config.WithSection("lifecycle"))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(cfg.DrainInterval)
	}
	load(map[string]any{"database": "…", "lifecycle": map[string]any{"drain_interval": "7s"}})
	load(map[string]any{"database": "…", "lifecycle": map[string]any{"drain_intervall": "7s"}})
	// Output:
	// 7s
	// config: settings: lifecycle.drain_intervall: there is no such key: did you mean drain_interval?
}
