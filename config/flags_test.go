package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
)

// host is the set of flags of a program that parses it itself.
func host(t *testing.T) *flag.FlagSet {
	t.Helper()
	set := flag.NewFlagSet("svc serve", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.Bool("verbose", false, "")
	if err := Define[service](set, "service.yaml", WithEnvPrefix("SERVICE")); err != nil {
		t.Fatal(err)
	}
	return set
}

// A program that has its own set of flags and arguments adds the configuration's flags to
// it, and Load takes them with the file and the environment.
func TestFlagsInTheProgramsOwnSet(t *testing.T) {
	path := write(t, "service.yaml", "poll: 2s\nworkers: 5\ncache: {size: 7}\n")
	set := host(t)
	if err := set.Parse([]string{"-verbose", "-poll=3s", "-debug", "--lifecycle.linger", "1s", "-config", path, "serve", "now"}); err != nil {
		t.Fatal(err)
	}
	live, err := Open[service]("missing.yaml", WithFlagSet(set), WithEnvPrefix("SERVICE"), WithEnviron([]string{"SERVICE_WORKERS=6"}), WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	got := live.Get()
	if got.Poll != 3*time.Second || got.Workers != 6 || !got.Debug || got.Lifecycle.Linger != time.Second || got.Cache.Size != 7 || set.Arg(0) != "serve" {
		t.Errorf("%+v, arguments %v", got, set.Args())
	}
	if s := live.Settings(); s[0].Source != "flag -poll" || s[0].Lost[0] != path+":1: 2s" {
		t.Errorf("the settings are %v", s)
	}
	overwrite(t, path, "poll: 9s\ncache: {size: 8}\n")
	if err := live.Reload(t.Context()); err != nil || live.Get().Poll != 3*time.Second || live.Get().Cache.Size != 8 {
		t.Errorf("after a reload: %+v, %v", live.Get(), err)
	}
	var help strings.Builder
	set.SetOutput(&help)
	set.PrintDefaults()
	said := strings.Join(strings.Fields(help.String()), " ")
	for _, want := range []string{"-poll duration look for work this often (duration, default 500ms, SERVICE_POLL)", "-debug (SERVICE_DEBUG)", "-config file", "-lifecycle.linger duration or off linger is the time"} {
		if !strings.Contains(said, want) {
			t.Errorf("the help lacks %q:\n%s", want, help.String())
		}
	}
}

func TestFaultsOfFlagsInTheProgramsOwnSet(t *testing.T) {
	for arg, want := range map[string]string{
		"-poll=5":                 `flag -poll: poll is "5": want a duration with its unit`,
		"-lifecycle.linger=-1s":   `flag -lifecycle.linger: lifecycle.linger is "-1s": want 0s or more, or off`,
		"-debug=maybe":            `flag -debug: debug is "maybe": want true or false`,
		"-config=nowhere.yaml":    "nowhere.yaml: there is no such file, and flag -config names it",
		"-token=hunter2\n":        "flag -token: token is [secret]: white space",
		"-drain-interval=5s":      "flag -drain-interval: there is no such flag: did you mean -lifecycle.drain-interval?",
		"--lifecycle.lingr=5s":    "flag -lifecycle.lingr: there is no such flag: did you mean -lifecycle.linger?",
		"-verbos":                 "flag -verbos: there is no such flag: did you mean -verbose?",
		"-lifecycle.hook-slice=9": `lifecycle.hook_slice is "9": want a duration with its unit`,
	} {
		set := host(t)
		err := FlagError(set, set.Parse([]string{arg}))
		if err == nil {
			_, err = Load[service]("", WithFlagSet(set), WithEnviron(nil))
		}
		var fault *Fault
		if !errors.As(err, &fault) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", arg, err, want)
		}
	}
	if err := FlagError(host(t), fs.ErrNotExist); !errors.Is(err, fs.ErrNotExist) || err.Error() != fs.ErrNotExist.Error() {
		t.Errorf("another error became %v", err)
	}
}

// Mistakes of the program are errors, and no flag is lost.
func TestMistakesWithASetOfFlags(t *testing.T) {
	taken := flag.NewFlagSet("", flag.ContinueOnError)
	taken.String("addr", "", "")
	taken.String("config", "mine", "")
	if err := Define[service](taken, ""); err == nil || !strings.Contains(err.Error(), "has a flag -addr already: rename the key addr") || taken.Lookup("poll") != nil {
		t.Errorf("%v", err)
	}
	own := flag.NewFlagSet("", flag.ContinueOnError)
	own.String("config", "mine", "")
	type named struct {
		Config string `koanf:"config"`
	}
	const says = "the key config has the flag that names the file: rename the key"
	if _, err := Load[named]("", WithArgs([]string{"-config", "a.yaml"})); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("a key of the name of -config: %v", err)
	}
	if err := Define[lifecycle.Config](own, "", WithSection("lifecycle")); err != nil || own.Lookup("config").DefValue != "mine" || own.Lookup("lifecycle.linger") == nil {
		t.Errorf("a flag -config of the program: %v", err)
	}
	parsed := flag.NewFlagSet("", flag.ContinueOnError)
	_ = parsed.Parse(nil)
	other := host(t)
	_ = other.Parse([]string{"-poll=5s"})
	for want, load := range map[string]func() error{
		"call Define before Load":                                func() error { _, err := Load[service]("", WithFlagSet(parsed)); return err },
		"parse it before Load, with set.Parse(nil) when another": func() error { _, err := Load[service]("", WithFlagSet(host(t))); return err },
		"has no set of flags":                                    func() error { _, err := Load[service]("", WithFlagSet(nil)); return err },
		"poll: there is no such key":                             func() error { _, err := Load[struct{ Port int }]("", WithFlagSet(other)); return err },
		"prt: there is no such key": func() error {
			_, err := Load[struct{ Port int }]("", WithFlags(map[string]string{"prt": "5"}))
			return err
		},
		"replaces the file a.yaml": func() error { _, err := Load[service]("a.yaml", FromMap("mine", nil)); return err },
		"needs Name and Read":      func() error { _, err := Load[service]("", From(Source{Name: "x"})); return err },
		"mine, and not from a file": func() error {
			_, err := Load[service]("", FromMap("mine", nil), WithFlags(map[string]string{"config": "a.yaml"}))
			return err
		},
		"there is no koanf": func() error { _, err := Load[service]("", FromKoanf(nil)); return err },
	} {
		if err := load(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one that says %s", err, want)
		}
	}
}

// Flags that another library has parsed are given by key.
func TestFlagsOfAnotherLibrary(t *testing.T) {
	path := write(t, "service.yaml", "poll: 2s\n")
	got, err := Load[service]("", WithFlags(map[string]string{"config": path, "lifecycle.linger": "1s", "debug": "true"}), WithEnviron(nil))
	if err != nil || got.Poll != 2*time.Second || !got.Debug || got.Lifecycle.Linger != time.Second {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = Load[service]("", WithFlags(map[string]string{"lifecycle.linger": "1"}), WithEnviron(nil))
	if want := `flag --lifecycle.linger: lifecycle.linger is "1": want a duration`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error is %v, want %s", err, want)
	}
	if _, err := Load[service]("", WithFlags(nil), WithEnviron(nil)); err != nil {
		t.Error(err)
	}
	unknown := map[string]string{}
	for key := 'a'; key <= 'z'; key++ {
		unknown[string(key)] = ""
	}
	_, err = Load[service]("", WithFlags(unknown), WithEnviron(nil))
	if lines := strings.Split(fmt.Sprint(err), "\n"); len(lines) != len(unknown) || !slices.IsSorted(lines) {
		t.Errorf("the errors are not in the order of the keys:\n%v", err)
	}
}

// Load reads the values of a foreign koanf as strictly as it reads a store of texts. Without
// WithEnviron and flags, Load reads nothing else.
func TestForeignKoanf(t *testing.T) {
	t.Setenv("CONFIG_TEST_POLL", "9s") // the prefix is the name of this program
	k := koanf.New("/")
	if err := k.Load(confmap.Provider(map[string]any{"x-a": 1, "poll": "2s", "workers": 5, "lifecycle/drain_interval": "7s", "lifecycle/drain_quiet": "off", "lifecycle/linger": 2 * time.Second, "tags": []string{"a", "b"}}, "/"), nil); err != nil {
		t.Fatal(err)
	}
	live, err := Open[service]("", FromKoanf(k))
	if err != nil {
		t.Fatal(err)
	}
	got := live.Get()
	if got.Poll != 2*time.Second || got.Workers != 5 || got.Addr != ":8080" || !reflect.DeepEqual(got.Tags, []string{"a", "b"}) ||
		got.Lifecycle != (lifecycle.Config{DrainInterval: 7 * time.Second, DrainQuiet: lifecycle.Off, Linger: 2 * time.Second}) {
		t.Errorf("%+v", got)
	}
	if s := live.Settings(); s[0].Source != "koanf" {
		t.Errorf("the settings are %v", s)
	}
	if err := k.Load(confmap.Provider(map[string]any{"poll": "3s"}, "/"), nil); err != nil {
		t.Fatal(err)
	}
	if err := live.Reload(t.Context()); err != nil || live.Get().Poll != 3*time.Second {
		t.Errorf("after a reload: %v, %v", live.Get().Poll, err)
	}
	if cfg, err := Load[lifecycle.Config]("", FromKoanf(k), WithSection("lifecycle"), WithEnvPrefix("X"), WithEnviron([]string{"X_LIFECYCLE_LINGER=3s"})); err != nil || cfg.Linger != 3*time.Second {
		t.Errorf("with the environment: %+v, %v", cfg, err)
	}
}

// A reload of a running App reads the store again and hands the section to the App.
func TestReloadFromAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		section := map[string]any{"drain_interval": "7s", "health_addr": "off"}
		live, err := Open[lifecycle.Config]("", FromMap("store", map[string]any{"lifecycle": section}), WithSection("lifecycle"), WithLogger(quiet))
		if err != nil {
			t.Fatal(err)
		}
		app := lifecycletest.New(t, live.Get())
		live.Attach(app.App)
		app.Start()
		section["drain_interval"] = "9s"
		if err := app.Reload(t.Context()); err != nil {
			t.Error(err)
		}
		section["drain_interval"] = "soon"
		if err := app.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "store: lifecycle.drain_interval is ") {
			t.Errorf("%v", err)
		}
		if got := app.Config().DrainInterval; got != 9*time.Second {
			t.Errorf("the drain is %v, want 9s", got)
		}
		app.Stop(nil)
		app.WantClean()
	})
}

// level is a text of a program's own type.
type level string

// colour is a number whose text cannot be made.
type colour int

func (colour) MarshalText() ([]byte, error) { return nil, errors.New("no such colour") }

// The section lifecycle of any map is loaded, with the faults of a file, and the map
// stays as it is.
func TestAnyMap(t *testing.T) {
	load := func(section any) (lifecycle.Config, error) {
		return Load[lifecycle.Config]("", FromMap("settings", map[string]any{"other": func() {}, "lifecycle": section}), WithSection("lifecycle"))
	}
	for name, section := range map[string]any{
		"map":       map[string]any{"drain_interval": "7s", "name": level("a"), "memory_limit_ratio": float32(0.5), "linger": 0},
		"any keys":  map[any]any{"drain_interval": "7s", "name": "a", level("memory_limit_ratio"): 0.5, "linger": int8(0)},
		"durations": map[string]any{"drain_interval": 7 * time.Second, "name": "a", "memory_limit_ratio": 0.5, "linger": lifecycle.Off, "drain_quiet": time.Duration(0)},
	} {
		cfg, err := load(section)
		if want := (lifecycle.Config{DrainInterval: 7 * time.Second, Name: "a", MemoryLimitRatio: 0.5, Linger: lifecycle.Off}); err != nil || cfg != want {
			t.Errorf("%s: %+v, %v", name, cfg, err)
		}
	}
	if cfg, err := load(nil); err != nil || cfg != (lifecycle.Config{}) {
		t.Errorf("no section: %+v, %v", cfg, err)
	}
	endless := map[string]any{}
	endless["linger"] = endless
	for want, section := range map[string]any{
		"settings: lifecycle.lingr: there is no such key: did you mean linger?":                   map[string]any{"lingr": "5s"},
		"settings: lifecycle.linger is 5: want a duration with its unit: 5s is that many seconds": map[string]uint16{"linger": 5},
		`settings: lifecycle.linger is "5": want a duration with its unit`:                        map[string]string{"linger": "5"},
		"settings: lifecycle.linger is -2ns: want 0s or more, or off":                             map[string]time.Duration{"linger": -2},
		"settings: lifecycle.linger: it has no value":                                             map[string]any{"linger": nil},
		"settings: lifecycle.linger is a section with keys of its own: want a duration":           endless,
		"settings: lifecycle.name is 5: want text":                                                map[string]any{"name": 5},
		`settings: lifecycle.memory_limit_ratio is "0.5": want a number`:                          map[string]any{"memory_limit_ratio": "0.5"},
		"settings: lifecycle is [secret]: it is a section":                                        5,
		"settings: lifecycle.admin_token is [secret]: want text":                                  map[string]any{"admin_token": 12345678},
		"lifecycle.drain_min (6s) is longer than the window, lifecycle.drain_interval (5s)":       map[string]any{"drain_min": "6s"},
		"lifecycle.min_slice is from settings":                                                    map[string]any{"min_slice": "1h"},
	} {
		if _, err := load(section); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error is %v, want one that says %s", section, err, want)
		}
	}
	_, err := Load[service]("", FromMap("settings", map[string]any{"workers": colour(5)}))
	if want := "settings: workers is no such colour: want a whole number"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error is %v, want one that says %s", err, want)
	}
	settings := map[string]any{"tags": []string{"a"}, "labels": map[any]any{"a": "b"}}
	if got, err := Load[service]("", FromMap("settings", settings)); err != nil || got.Labels["a"] != "b" {
		t.Errorf("%+v, %v", got, err)
	}
	if !reflect.DeepEqual(settings, map[string]any{"tags": []string{"a"}, "labels": map[any]any{"a": "b"}}) {
		t.Errorf("the map is now %v", settings)
	}
}

// With Text, a text counts as what the key takes. Each call of Read gets the keys.
func TestStoreOfTexts(t *testing.T) {
	load := func(tree map[string]any) (service, error) {
		return Load[service]("", From(Source{Name: "store", Text: true, Read: func(keys []string) (map[string]any, error) {
			if len(keys) < 40 || keys[0] != "addr" {
				t.Errorf("the keys are %v", keys)
			}
			return tree, nil
		}}))
	}
	got, err := load(map[string]any{"workers": "5", "debug": "true", "ratio": "0.5", "tags": "a, b", "labels": map[string]string{"x": " 1 "}, "addr": " :7 ", "cache": map[string]any{"size": "7", "ttl": "1m"}})
	if err != nil || got.Workers != 5 || !got.Debug || got.Ratio != 0.5 || len(got.Tags) != 2 || got.Labels["x"] != " 1 " || got.Addr != " :7 " || got.Cache.Size != 7 || got.Cache.TTL != time.Minute {
		t.Errorf("%+v, %v", got, err)
	}
	for want, tree := range map[string]map[string]any{
		`store: workers is "05": a number with a leading zero`: {"workers": "05"},
		`store: poll is "5": want a duration with its unit`:    {"poll": "5"},
		`store: cache is "x": it is a section`:                 {"cache": "x"},
		`store: addr is 5: want text`:                          {"addr": 5},
	} {
		if _, err := load(tree); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one that says %s", err, want)
		}
	}
	_, err = Load[service]("", From(Source{Name: "store", Read: func([]string) (map[string]any, error) { return nil, fs.ErrPermission }}))
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "store: it cannot be read: ") {
		t.Errorf("%v", err)
	}
}
