package cobraconfig_test

import (
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/config/cobraconfig"
)

// Config is the configuration of the service.
type Config struct {
	Addr      string        `usage:"serve HTTP on this address"`
	Poll      time.Duration `usage:"look for work this often"`
	Debug     bool
	Lifecycle lifecycle.Config
}

// WithDefaults returns the defaults.
func (Config) WithDefaults() Config { return Config{Addr: ":8080", Poll: time.Second} }

// command makes "service" with the command "serve", which loads into cfg.
func command(t *testing.T, cfg *Config) *cobra.Command {
	t.Helper()
	root := &cobra.Command{Use: "service", SilenceUsage: true, SilenceErrors: true}
	root.PersistentFlags().BoolP("verbose", "v", false, "")
	root.SetFlagErrorFunc(cobraconfig.FlagError)
	root.AddCommand(&cobra.Command{Use: "serve", RunE: func(cmd *cobra.Command, _ []string) (err error) {
		*cfg, err = config.Load[Config]("", cobraconfig.Flags(cmd), config.WithEnvPrefix("SERVICE"), config.WithEnviron([]string{"SERVICE_ADDR=:2"}))
		return err
	}})
	root.SetOut(io.Discard)
	if err := cobraconfig.Define[Config](root, "service.yaml"); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestFlagsOfACommand(t *testing.T) {
	path := filepath.Join(t.TempDir(), "service.yaml")
	if err := os.WriteFile(path, []byte("addr: ':1'\npoll: 2s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"behind the command": {"serve", "-v", "--config", path, "--debug", "--lifecycle.drain-interval=7s"},
		"before it":          {"--config=" + path, "--debug=true", "--lifecycle.drain-interval", "7s", "serve", "argument"},
	} {
		var cfg Config
		root := command(t, &cfg)
		root.SetArgs(args)
		if err := root.Execute(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if want := (Config{Addr: ":2", Poll: 2 * time.Second, Debug: true, Lifecycle: lifecycle.Config{DrainInterval: 7 * time.Second}}); cfg != want {
			t.Errorf("%s: %+v", name, cfg)
		}
	}
}

func TestFaultsAreThoseOfConfig(t *testing.T) {
	for arg, want := range map[string]string{
		"--poll=5":                "config: flag --poll: poll is \"5\": want a duration with its unit: 5s is that many seconds, 5ms milliseconds",
		"--lifecycle.linger=soon": "config: flag --lifecycle.linger: lifecycle.linger is \"soon\": want a duration",
		"--addr= :7":              "config: flag --addr: addr is \" :7\": white space before or after it",
		"--drain-interval=5s":     "config: flag --drain-interval: there is no such flag: did you mean --lifecycle.drain-interval?",
		"--verbos":                "did you mean --verbose?",
		"-x":                      "unknown shorthand flag: 'x' in -x",
		"--config=none.yaml":      "none.yaml: there is no such file, and flag --config names it",
	} {
		var cfg Config
		root := command(t, &cfg)
		root.SetArgs([]string{"serve", arg})
		err := root.Execute()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", arg, err, want)
		}
		var fault *config.Fault
		if arg != "-x" && !errors.As(err, &fault) {
			t.Errorf("%s: %v is no Fault", arg, err)
		}
	}
}

// A program with pflag alone needs no adapter: pflag takes a set of the standard
// library, and Load sees which of its flags pflag has set.
func TestPflagAlone(t *testing.T) {
	set := flag.NewFlagSet("service", flag.ContinueOnError)
	if err := config.Define[Config](set, "service.yaml"); err != nil {
		t.Fatal(err)
	}
	flags := pflag.NewFlagSet("service", pflag.ContinueOnError)
	flags.AddGoFlagSet(set)
	load := func(args ...string) (Config, error) {
		if err := flags.Parse(args); err != nil {
			return Config{}, err
		}
		return config.Load[Config]("", config.WithFlagSet(set), config.WithEnviron(nil))
	}
	if cfg, err := load(); err != nil || cfg.Poll != time.Second {
		t.Errorf("%+v, %v", cfg, err)
	}
	if cfg, err := load("--debug", "--lifecycle.drain-interval", "7s"); err != nil || !cfg.Debug || cfg.Lifecycle.DrainInterval != 7*time.Second {
		t.Errorf("%+v, %v", cfg, err)
	}
	if _, err := load("--poll=5"); err == nil || !strings.Contains(err.Error(), "config: flag --poll: poll is \"5\": want a duration") {
		t.Errorf("%v", err)
	}
}

func TestNamesThatTheProgramHas(t *testing.T) {
	cmd := &cobra.Command{Use: "service"}
	mine := cmd.Flags().String("config", "mine", "")
	cmd.PersistentFlags().String("poll", "", "")
	err := cobraconfig.Define[Config](cmd, "service.yaml")
	if err == nil || !strings.Contains(err.Error(), "the command service has a flag --poll already") || cmd.Flag("addr") != nil {
		t.Errorf("%v", err)
	}
	if err := cobraconfig.Define[lifecycle.Config](cmd, "", config.WithSection("lifecycle")); err != nil || cmd.Flag("config").DefValue != *mine {
		t.Errorf("the program's own --config: %v", err)
	}
}

func TestHelpAndCompletion(t *testing.T) {
	var out strings.Builder
	root := command(t, new(Config))
	root.SetOut(&out)
	root.SetArgs([]string{"serve", "--help"})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	said := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"--poll duration look for work this often (duration, default 1s, SERVICE_POLL)", "--debug (SERVICE_DEBUG)", "--config file", "--lifecycle.linger duration or off"} {
		if !strings.Contains(said, want) {
			t.Errorf("the help lacks %q:\n%s", want, out.String())
		}
	}
	out.Reset()
	root = command(t, new(Config))
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs([]string{"__complete", "serve", "--lifecycle.drain-readiness", ""})
	if err := root.Execute(); err != nil || !strings.HasPrefix(out.String(), "down\nserving\n") {
		t.Errorf("completion is %q, %v", out.String(), err)
	}
}
