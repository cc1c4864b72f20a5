package kongconfig_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/config/kongconfig"
)

// Config is the configuration of the service.
type Config struct {
	Addr      string        `usage:"serve HTTP on this address, such as ${host}:80"`
	Poll      time.Duration `usage:"look for \"work\" this often"`
	Debug     bool
	Tags      []string
	Lifecycle lifecycle.Config
}

// WithDefaults returns the defaults.
func (Config) WithDefaults() Config { return Config{Addr: ":8080", Poll: time.Second} }

// CLI is the program's own grammar.
type CLI struct {
	Verbose bool `short:"v"`
	Serve   struct {
		Name string `arg:"" optional:""`
	} `cmd:""`
}

// parse parses args and loads.
func parse(t *testing.T, args []string, more ...kong.Option) (cfg Config, cli CLI, err error) {
	t.Helper()
	flags, err := kongconfig.Define[Config]("service.yaml")
	if err != nil {
		t.Fatal(err)
	}
	k, err := kong.New(&cli, append(more, flags, kong.Writers(io.Discard, io.Discard), kong.Exit(func(int) {}))...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Parse(args); err != nil {
		return cfg, cli, err
	}
	cfg, err = config.Load[Config]("", flags.Given(), config.WithEnvPrefix("SERVICE"), config.WithEnviron([]string{"SERVICE_ADDR=:2"}))
	return cfg, cli, err
}

func TestFlagsBesideThoseOfTheProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "service.yaml")
	if err := os.WriteFile(path, []byte("addr: ':1'\npoll: 2s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"behind the command": {"serve", "a", "-v", "--config", path, "--debug", "--tags=a,b", "--lifecycle.drain-interval=7s"},
		"before it":          {"--config=" + path, "--debug=true", "--tags", "a,b", "--lifecycle.drain-interval", "7s", "-v", "serve", "a"},
	} {
		cfg, cli, err := parse(t, args)
		if err != nil || cfg.Addr != ":2" || cfg.Poll != 2*time.Second || !cfg.Debug || len(cfg.Tags) != 2 || cfg.Lifecycle != (lifecycle.Config{DrainInterval: 7 * time.Second}) {
			t.Errorf("%s: %+v, %v", name, cfg, err)
		}
		if !cli.Verbose || cli.Serve.Name != "a" {
			t.Errorf("%s: %+v", name, cli)
		}
	}
	if cfg, _, err := parse(t, []string{"serve", "--debug=false"}); err != nil || cfg.Debug || cfg.Poll != time.Second {
		t.Errorf("%+v, %v", cfg, err)
	}
}

// The numbers of kong.JSON are floats. A whole one stays whole, however large it is.
func TestResolverWithLargeNumbers(t *testing.T) {
	type T struct {
		MaxBytes int64
		Ratio    float64
		Sizes    []int64
		Limits   map[string]int64
	}
	var cli struct{}
	flags, err := kongconfig.Define[T]("")
	if err != nil {
		t.Fatal(err)
	}
	resolver, err := kong.JSON(strings.NewReader(`{"max_bytes": 1048576, "ratio": 0.25, "sizes": [10000000], "limits": {"a": 100000000}}`))
	if err != nil {
		t.Fatal(err)
	}
	parser, err := kong.New(&cli, flags, kong.Resolvers(resolver))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(nil); err != nil {
		t.Fatal(err)
	}
	got, err := config.Load[T]("", flags.Given(), config.WithEnviron(nil))
	if err != nil || got.MaxBytes != 1<<20 || got.Ratio != 0.25 || len(got.Sizes) != 1 || got.Sizes[0] != 10_000_000 || got.Limits["a"] != 100_000_000 {
		t.Errorf("%+v, %v", got, err)
	}
}

// A resolver of kong, such as its JSON file, gives values for the flags too.
func TestResolver(t *testing.T) {
	resolver, err := kong.JSON(strings.NewReader(`{"tags": ["a", "b"], "debug": true, "poll": "3s", "lifecycle": {"drain_interval": "7s", "memory_limit_ratio": 0.5}}`))
	if err != nil {
		t.Fatal(err)
	}
	cfg, _, err := parse(t, []string{"serve", "--poll=2s"}, kong.Resolvers(resolver))
	if err != nil || cfg.Poll != 2*time.Second || !cfg.Debug || len(cfg.Tags) != 2 || cfg.Lifecycle != (lifecycle.Config{DrainInterval: 7 * time.Second, MemoryLimitRatio: 0.5}) {
		t.Errorf("%+v, %v", cfg, err)
	}
	if resolver, err = kong.JSON(strings.NewReader(`{"poll": 3}`)); err != nil {
		t.Fatal(err)
	}
	if _, _, err = parse(t, []string{"serve"}, kong.Resolvers(resolver)); err == nil || !strings.Contains(err.Error(), `flag --poll: poll is "3": want a duration with its unit`) {
		t.Errorf("%v", err)
	}
}

func TestFaultsAreThoseOfConfig(t *testing.T) {
	for arg, want := range map[string]string{
		"--poll=5":                "config: flag --poll: poll is \"5\": want a duration with its unit: 5s is that many seconds, 5ms milliseconds",
		"--lifecycle.linger=soon": "config: flag --lifecycle.linger: lifecycle.linger is \"soon\": want a duration",
		"--debug=maybe":           "config: flag --debug: debug is \"maybe\": want true or false",
		"--addr= :7":              "config: flag --addr: addr is \" :7\": white space before or after it",
		"--config=none.yaml":      "none.yaml: there is no such file, and flag --config names it",
	} {
		_, _, err := parse(t, []string{"serve", arg})
		var fault *config.Fault
		if !errors.As(err, &fault) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", arg, err, want)
		}
	}
	if _, _, err := parse(t, []string{"serve", "--lifecycle.lingr=5s"}); err == nil || !strings.Contains(err.Error(), `--lifecycle.linger`) {
		t.Errorf("kong suggests no flag: %v", err)
	}
}

// A flag of the program with the name of a key is an error: only one of the two would get
// the value.
func TestNameThatIsTaken(t *testing.T) {
	for name, cli := range map[string]any{
		"--poll already": &struct{ Poll string }{},
		"--addr already": &struct {
			Serve struct {
				Addr string
			} `cmd:""`
		}{},
		"--config already": &struct {
			File string `name:"config"`
		}{},
		"--debug already": &struct {
			Verbose bool `aliases:"debug"`
		}{},
	} {
		flags, err := kongconfig.Define[Config]("service.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kong.New(cli, flags); err == nil || !strings.Contains(err.Error(), "the program has a flag "+name) {
			t.Errorf("error is %v, want one that says %s", err, name)
		}
	}
	flags, err := kongconfig.Define[Config]("") // for a program that has --config
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kong.New(&struct{ Config string }{}, flags); err != nil {
		t.Error(err)
	}
}

func TestHelp(t *testing.T) {
	flags, err := kongconfig.Define[Config]("service.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	k, err := kong.New(&CLI{}, flags, kong.Writers(&out, &out), kong.Exit(func(int) {}))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = k.Parse([]string{"--help"})
	said := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"--config=FILE", "--poll=duration", `look for "work" this often (duration, default 1s, SERVICE_POLL)`, "such as ${host}:80", "--debug", "(SERVICE_DEBUG)", "--lifecycle.linger=duration or off"} {
		if !strings.Contains(said, want) {
			t.Errorf("the help lacks %q:\n%s", want, out.String())
		}
	}
}

// A program with a flag --config of its own defines none here.
func TestConfigFlagOfTheProgram(t *testing.T) {
	var cli struct{ Config string }
	flags, err := kongconfig.Define[Config]("")
	if err != nil {
		t.Fatal(err)
	}
	k, err := kong.New(&cli, flags)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Parse([]string{"--config=mine"}); err != nil || cli.Config != "mine" {
		t.Errorf("%+v, %v", cli, err)
	}
}
