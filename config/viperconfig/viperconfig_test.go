package viperconfig_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/config/viperconfig"
)

// Config is the configuration of the service.
type Config struct {
	Addr      string
	Poll      time.Duration
	Workers   int
	Tags      []string
	Labels    map[string]string
	Lifecycle lifecycle.Config
}

// WithDefaults returns the defaults.
func (Config) WithDefaults() Config { return Config{Addr: ":8080", Poll: time.Second} }

// filled is a viper with the content of a YAML file.
func filled(t *testing.T, content string) *viper.Viper {
	t.Helper()
	v := viper.New()
	v.SetConfigType("yaml")
	if err := v.ReadConfig(strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	return v
}

// A viper with files, variables, defaults and flags gives its values. The variable of a
// key that no file has counts too, and a flag that was not given does not.
func TestViperDecides(t *testing.T) {
	t.Setenv("SVC_WORKERS", "7")
	t.Setenv("SVC_LIFECYCLE_LINGER", "2s")
	t.Setenv("SVC_TAGS", "a, b")
	v := filled(t, "addr: ':1'\nworkers: 5\nlabels: {x: '1'}\nlifecycle: {drain_interval: 7s, drain_quiet: off, shutdown_grace: 30s}\n")
	v.SetEnvPrefix("svc")
	v.SetEnvKeyReplacer(strings.NewReplacer(".", "_"))
	v.AutomaticEnv()
	v.SetDefault("lifecycle.hook_slice", 3*time.Second)
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.String("poll", "", "")
	flags.Duration("lifecycle.unit_slice", 0, "")
	flags.String("lifecycle.name", "", "")
	flags.Bool("help", false, "")
	if err := v.BindPFlags(flags); err != nil {
		t.Fatal(err)
	}
	if err := flags.Parse([]string{"--lifecycle.unit_slice=4s"}); err != nil {
		t.Fatal(err)
	}
	got, err := config.Load[Config]("", viperconfig.From(v))
	if err != nil {
		t.Fatal(err)
	}
	want := lifecycle.Config{DrainInterval: 7 * time.Second, DrainQuiet: lifecycle.Off, Linger: 2 * time.Second, ShutdownGrace: 30 * time.Second, UnitSlice: 4 * time.Second, HookSlice: 3 * time.Second}
	if got.Addr != ":1" || got.Poll != time.Second || got.Workers != 7 || len(got.Tags) != 2 || got.Labels["x"] != "1" || got.Lifecycle != want {
		t.Errorf("%+v", got)
	}
	if cfg, err := config.Load[lifecycle.Config]("", viperconfig.From(v), config.WithSection("lifecycle")); err != nil || cfg != want {
		t.Errorf("the section alone: %+v, %v", cfg, err)
	}
}

func TestFaultsAreThoseOfConfig(t *testing.T) {
	for content, want := range map[string]string{
		"lifecycle: {drain_intervall: 7s}\n":   "config: viper: lifecycle.drain_intervall: there is no such key: did you mean drain_interval?",
		"lifecycle: {linger: 7}\n":             "config: viper: lifecycle.linger is 7: want a duration with its unit: 7s is that many seconds",
		"lifecycle: {linger: '7'}\n":           "config: viper: lifecycle.linger is \"7\": want a duration with its unit",
		"lifecycle: {linger: ''}\n":            "config: viper: lifecycle.linger is \"\": want a duration with its unit",
		"lifecycle: {admin_token: 12345}\n":    "config: viper: lifecycle.admin_token is [secret]: want text",
		"lifecycle: 5\n":                       "config: viper: lifecycle is [secret]: it is a section",
		"adr: x\n":                             "config: viper: adr: there is no such key: did you mean addr?",
		"addr: 7\n":                            "config: viper: addr is 7: want text",
		"lifecycle: {termination_grace: 5s}\n": "lifecycle.termination_grace is from viper",
	} {
		_, err := config.Load[Config]("", viperconfig.From(filled(t, content)))
		var fault *config.Fault
		if !errors.As(err, &fault) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", content, err, want)
		}
	}
	if _, err := config.Load[Config]("", viperconfig.From(nil)); err == nil || !strings.Contains(err.Error(), "there is no viper") {
		t.Errorf("%v", err)
	}
}

// Viper's own Unmarshal decodes a Config by its keys: a duration is never 0 in silence.
func TestUnmarshalOfViper(t *testing.T) {
	var cfg Config
	if err := filled(t, `{"lifecycle": {"drain_interval": "7s"}}`).Unmarshal(&cfg); err != nil || cfg.Lifecycle.DrainInterval != 7*time.Second {
		t.Errorf("%v, %v", cfg.Lifecycle.DrainInterval, err)
	}
	settings := map[string]any{"drain_interval": "7s"}
	if err := mapstructure.Decode(settings, &cfg.Lifecycle); err == nil {
		t.Errorf("mapstructure without hooks makes %v of 7s", cfg.Lifecycle.DrainInterval)
	}
	// With Strict the section is decoded as Load does it, and the rest as before.
	v := filled(t, "addr: ':1'\npoll: 5s\ntags: a,b\nother: 1\nlifecycle: {drain_interval: 7s, drain_quiet: off, linger: 0}\n")
	v.SetDefault("lifecycle.name", "")
	cfg = Config{}
	if err := v.Unmarshal(&cfg, viperconfig.Strict()); err != nil || cfg.Addr != ":1" || cfg.Poll != 5*time.Second || len(cfg.Tags) != 2 ||
		cfg.Lifecycle != (lifecycle.Config{DrainInterval: 7 * time.Second, DrainQuiet: lifecycle.Off, Linger: lifecycle.Off}) {
		t.Errorf("%+v, %v", cfg, err)
	}
	var section lifecycle.Config
	if err := v.UnmarshalKey("lifecycle", &section, viperconfig.Strict()); err != nil || section != cfg.Lifecycle {
		t.Errorf("%+v, %v", section, err)
	}
	for content, want := range map[string]string{
		"lifecycle: {drain_intervall: 7s}\n":   "config: viper: drain_intervall: there is no such key: did you mean drain_interval?",
		"lifecycle: {linger: 7}\n":             "config: viper: linger is 7: want a duration with its unit: 7s is that many seconds",
		"lifecycle: {termination_grace: 5s}\n": "(termination_grace) gives 5s",
		"lifecycle: 5\n":                       "expected a map",
	} {
		if err := filled(t, content).Unmarshal(&cfg, viperconfig.Strict()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", content, err, want)
		}
	}
}

// The values that a program has put into the result stay, as with viper's own Unmarshal,
// where viper has none.
func TestStrictKeepsTheProgramsValues(t *testing.T) {
	preset := lifecycle.Config{
		Name: "svc", DrainInterval: 3 * time.Second, DrainQuiet: lifecycle.Off, DrainReadiness: lifecycle.ReadinessServing,
		AdminToken: "0123456789abcdef", ExitOnSignal: true, MemoryLimitRatio: 0.5,
	}
	want := preset
	want.Linger, want.DrainQuiet = 7*time.Second, time.Second
	for name, result := range map[string]any{
		"a value":   &struct{ Lifecycle lifecycle.Config }{preset},
		"a pointer": &struct{ Lifecycle *lifecycle.Config }{&preset},
	} {
		v := filled(t, "lifecycle: {linger: 7s, drain_quiet: 1s}\n")
		err := v.Unmarshal(result, viperconfig.Strict())
		got := reflect.Indirect(reflect.ValueOf(result).Elem().Field(0)).Interface().(lifecycle.Config)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
	// They count in the sums.
	cfg := Config{Lifecycle: lifecycle.Config{DrainInterval: time.Minute}}
	err := filled(t, "lifecycle: {termination_grace: 30s}\n").Unmarshal(&cfg, viperconfig.Strict())
	if err == nil || !strings.Contains(err.Error(), "1m0s") {
		t.Errorf("a window of a minute in a grace of 30s: %v", err)
	}
}

// Viper writes keys in small letters. A key of the configuration may have capitals.
func TestKeysWithCapitals(t *testing.T) {
	type section struct {
		MaxConns int               `koanf:"maxConns"`
		Headers  map[string]string `koanf:"extraHeaders"`
	}
	type camel struct {
		LogLevel string  `koanf:"logLevel"`
		DB       section `koanf:"dataBase"`
	}
	v := filled(t, "logLevel: info\ndataBase: {maxConns: 5, extraHeaders: {a: b}}\n")
	v.SetDefault("dataBase.extraHeaders.c", "d")
	got, err := config.Load[camel]("", viperconfig.From(v))
	if err != nil || got.LogLevel != "info" || got.DB.MaxConns != 5 || got.DB.Headers["a"] != "b" || got.DB.Headers["c"] != "d" {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = config.Load[camel]("", viperconfig.From(filled(t, "dataBase: {maxCons: 5}\n")))
	if err == nil || !strings.Contains(err.Error(), "dataBase.maxcons: there is no such key: want one of maxConns") {
		t.Errorf("a misspelt key: %v", err)
	}
}
