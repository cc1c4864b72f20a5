package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// service is a configuration with one key of each kind.
type service struct {
	Addr      string
	Poll      time.Duration `usage:"look for work this often"`
	Workers   uint8
	Debug     bool
	Ratio     float64
	Token     lifecycle.Secret
	DSN       string `koanf:"dsn" secret:"true"`
	Tags      []string
	Labels    map[string]string
	Since     *time.Time
	Upstreams []upstream
	Cache     struct {
		Size int
		TTL  time.Duration `koanf:"ttl"`
	}
	Lifecycle lifecycle.Config
	Ignored   func() `koanf:"-"`
}

type upstream struct {
	Name string
	Addr string
}

func (service) WithDefaults() service {
	s := service{Addr: ":8080", Poll: 500 * time.Millisecond, Workers: 4}
	s.Cache.Size = 100
	return s
}

var quiet = slog.New(slog.DiscardHandler)

// write puts content into a file of that name and returns its path.
func write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// loadWith loads from the given file, variables and flags, and from nothing
// else.
func loadWith(path string, environ, args []string) (service, error) {
	return Load[service](path, WithEnvPrefix("SERVICE"), WithEnviron(environ), WithArgs(args), WithLogger(quiet), WithOutput(io.Discard))
}

func TestLaterSourcesWin(t *testing.T) {
	for name, content := range map[string]string{
		"service.yaml": "poll: 1s\nworkers: 5\naddr: ':1'\nlifecycle:\n  drain_interval: 10s\n  linger: 2s\n",
		"service.json": `{"poll": "1s", "workers": 5, "addr": ":1", "lifecycle": {"drain_interval": "10s", "linger": "2s"}}`,
		"service.toml": "poll = '1s'\nworkers = 5\naddr = ':1'\n[lifecycle]\ndrain_interval = '10s'\nlinger = '2s'\n",
	} {
		got, err := loadWith(write(t, name, content),
			[]string{"SERVICE_WORKERS=6", "SERVICE_ADDR=:2", "SERVICE_LIFECYCLE_LINGER=3s", "OTHER=x"},
			[]string{"-addr=:3", "-lifecycle.shutdown-grace", "30s", "-debug"})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := service{}.WithDefaults() // only this test changes the cache's size
		want.Poll, want.Workers, want.Addr, want.Debug = time.Second, 6, ":3", true
		want.Lifecycle.DrainInterval, want.Lifecycle.Linger, want.Lifecycle.ShutdownGrace = 10*time.Second, 3*time.Second, 30*time.Second
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v\nwant %+v", name, got, want)
		}
	}
}

func TestEveryKindOfValue(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	want := service{}.WithDefaults()
	want.Workers, want.Debug, want.Ratio, want.Token, want.DSN = 255, true, 0.5, "hunter22", "db"
	want.Tags, want.Labels, want.Since = []string{"a", "b"}, map[string]string{"x": "1", "y.z": "2"}, &at
	want.Cache.TTL = 90 * time.Second
	want.Lifecycle.DrainQuiet, want.Lifecycle.DrainInterval = lifecycle.Off, lifecycle.Off
	want.Lifecycle.MemoryLimitRatio = 1
	for name, content := range map[string]string{
		"a.yaml": "workers: 255\ndebug: true\nratio: 0.5\ntoken: hunter22\ndsn: db\ntags: [a, b]\nlabels: {x: '1', y.z: '2'}\nsince: 2026-01-02T03:04:05Z\ncache:\n  ttl: 1m30s\nlifecycle: {drain_quiet: off, drain_interval: 0, memory_limit_ratio: 1}\n",
		"a.json": `{"workers":255,"debug":true,"ratio":0.5,"token":"hunter22","dsn":"db","tags":["a","b"],"labels":{"x":"1","y.z":"2"},"since":"2026-01-02T03:04:05Z","cache":{"ttl":"1m30s"},"lifecycle":{"drain_quiet":"off","drain_interval":"0s","memory_limit_ratio":1}}`,
		"a.toml": "workers=255\ndebug=true\nratio=0.5\ntoken='hunter22'\ndsn='db'\ntags=['a','b']\nlabels={x='1','y.z'='2'}\nsince=2026-01-02T03:04:05Z\ncache.ttl='1m30s'\n[lifecycle]\ndrain_quiet='off'\ndrain_interval='0s'\nmemory_limit_ratio=1.0\n",
	} {
		got, err := loadWith(write(t, name, content), nil, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v\nwant %+v", name, got, want)
		}
	}
	got, err := loadWith("", []string{"SERVICE_WORKERS=255", "SERVICE_DEBUG=1", "SERVICE_RATIO=.5", "SERVICE_TOKEN=hunter22", "SERVICE_DSN=db", "SERVICE_TAGS=a, b",
		"SERVICE_LABELS=x=1,y.z=2", "SERVICE_SINCE=2026-01-02T03:04:05Z", "SERVICE_CACHE_TTL=1m30s", "SERVICE_LIFECYCLE_DRAIN_QUIET=off", "SERVICE_LIFECYCLE_DRAIN_INTERVAL=0", "SERVICE_LIFECYCLE_MEMORY_LIMIT_RATIO=1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("environment: got %+v\nwant %+v", got, want)
	}
	got, err = loadWith(write(t, "b.yaml", "upstreams:\n- {name: a, addr: ':1'}\n- {name: b}\nlifecycle:\n"), nil, nil)
	if err != nil || !reflect.DeepEqual(got.Upstreams, []upstream{{"a", ":1"}, {"b", ""}}) {
		t.Errorf("upstreams: %+v, %v", got.Upstreams, err)
	}
}

func TestFaultsNameKeyPlaceValueAndWhatWouldBeRight(t *testing.T) {
	yaml := func(content string) string { return content }
	for want, tt := range map[string]struct {
		name, content string
		env, args     []string
	}{
		`.yaml:2: lifecycle.drain_intervall: there is no such key: did you mean drain_interval?`:                                                     {content: yaml("lifecycle:\n  drain_intervall: 5s\n")},
		`.yaml:1: drain_interval: there is no such key: did you mean lifecycle.drain_interval?`:                                                      {content: yaml("drain_interval: 5s\n")},
		`.yaml:2: lifecycle.drainInterval: there is no such key: did you mean drain_interval?`:                                                       {content: yaml("lifecycle:\n  drainInterval: 5s\n")},
		`lifecycle.linger: there is no such key: the dots are levels`:                                                                                {content: yaml("lifecycle.linger: 5s\n")},
		`.yaml:3: cache.nothing: there is no such key: want one of size, ttl`:                                                                        {content: yaml("\ncache:\n  nothing: 1\n")},
		`.yaml:2: lifecycle.linger is 5: want a duration with its unit: 5s is that many seconds`:                                                     {content: yaml("lifecycle:\n  linger: 5\n")},
		`lifecycle.linger is "5": want a duration with its unit: 5s is that many`:                                                                    {content: yaml("lifecycle:\n  linger: '5'\n")},
		`poll is "often": want a duration with its unit, such as 5s or 1m30s`:                                                                        {content: yaml("poll: often\n")},
		`lifecycle.linger is "-1s": want 0s or more, or off`:                                                                                         {content: yaml("lifecycle: {linger: -1s}\n")},
		`a.json:2: workers is 256: want a whole number from 0 to 255`:                                                                                {name: "a.json", content: "{\n\"workers\": 256}"},
		`a.json:1: workers is 1.5: want a whole number from 0 to 255`:                                                                                {name: "a.json", content: `{"workers": 1.5}`},
		`a.toml:2: cache.size is "x": want a whole number from -9223372036854775808 to`:                                                              {name: "a.toml", content: "[cache]\nsize = 'x'"},
		`addr is 8080: want text: put it in quotes`:                                                                                                  {content: yaml("addr: 8080\n")},
		`debug is "yes": want true or false`:                                                                                                         {content: yaml("debug: 'yes'\n")},
		`ratio is NaN: want a number`:                                                                                                                {content: yaml("ratio: .nan\n")},
		`tags is "a": want a list`:                                                                                                                   {content: yaml("tags: a\n")},
		`labels.x is 1: want text`:                                                                                                                   {content: yaml("labels: {x: 1}\n")},
		`upstreams[1].adr: there is no such key: did you mean addr?`:                                                                                 {content: yaml("upstreams:\n- name: a\n- adr: b\n")},
		`cache is 5: it is a section: want keys below it`:                                                                                            {content: yaml("cache: 5\n")},
		`addr is a section with keys of its own: want text`:                                                                                          {content: yaml("addr: {port: 1}\n")},
		`poll: it has no value: give it one, or leave it out for its default`:                                                                        {content: yaml("poll:\n")},
		`since is "now": want a valid time.Time`:                                                                                                     {content: yaml("since: now\n")},
		`token is [secret]: want text`:                                                                                                               {content: yaml("token: 12345678\n")},
		`environment SERVICE_POLL: poll is "5": want a duration with its unit`:                                                                       {env: []string{"SERVICE_POLL=5"}},
		`.yaml:1: plol: there is no such key: did you mean poll?`:                                                                                    {content: yaml("plol: 5s\n")},
		`environment SERVICE_POL: there is no such key: did you mean SERVICE_POLL?`:                                                                  {env: []string{"SERVICE_POL=5s"}},
		`environment SERVICE_LIFECYCLE_NOTHING: there is no such key below lifecycle`:                                                                {env: []string{"SERVICE_LIFECYCLE_NOTHING=1"}},
		`environment SERVICE_LABELS: labels is "x": want key=value`:                                                                                  {env: []string{"SERVICE_LABELS=x"}},
		`flag -workers: workers is "-1": want a whole number from 0 to 255`:                                                                          {args: []string{"-workers=-1"}},
		`flag -drain-interval: there is no such flag: did you mean -lifecycle.drain-interval?`:                                                       {args: []string{"-drain-interval=5s"}},
		`flag -pol: there is no such flag: did you mean -poll?`:                                                                                      {args: []string{"-pol=5s"}},
		`flags: flag needs an argument: -poll; -h lists them`:                                                                                        {args: []string{"-poll"}},
		`arguments: "now" is unexpected: all arguments are flags`:                                                                                    {args: []string{"now"}},
		`lifecycle.shutdown_grace is off, and has to be more than 0 (lifecycle.shutdown_grace is from environment SERVICE_LIFECYCLE_SHUTDOWN_GRACE)`: {env: []string{"SERVICE_LIFECYCLE_SHUTDOWN_GRACE=0"}},
		`lifecycle.drain_min (6s) is longer than the window, lifecycle.drain_interval (5s) (lifecycle.drain_min is from `:                            {content: yaml("lifecycle: {drain_min: 6s}\n")},
		`and the pod's terminationGracePeriodSeconds (lifecycle.termination_grace) gives 20s: the kubelet would kill the process 7s before it is done; raise that to 27s or more, or lower these (lifecycle.termination`: {content: yaml("lifecycle: {termination_grace: 20s}\n")},
	} {
		path := ""
		if tt.content != "" {
			if tt.name == "" {
				tt.name = "service.yaml"
			}
			path = write(t, tt.name, tt.content)
		}
		_, err := loadWith(path, tt.env, tt.args)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v\nwant one that says %s", err, want)
			continue
		}
		var fault *Fault
		if !errors.As(err, &fault) {
			t.Errorf("%v is not a Fault", err)
		}
		if status := lifecycle.ExitCode(fmt.Errorf("start: %w", err)); status != lifecycle.ExitConfig {
			t.Errorf("the exit status of %q is %d, want %d", err, status, lifecycle.ExitConfig)
		}
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	path := write(t, "service.yaml", "adr: x\npoll: 5\nlifecycle:\n  linger: soon\n")
	_, err := loadWith(path, []string{"SERVICE_WORKERS=many", "SERVICE_POLL=1s"}, []string{"-ratio=x", "-nothing"})
	for _, want := range []string{":1: adr", ":2: poll is 5", ":4: lifecycle.linger", "SERVICE_WORKERS", "flag -ratio", "flag -nothing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
	_, err = loadWith(write(t, "service.yaml", "lifecycle: {drain_min: 6s, accept_quiet: 30s, termination_grace: 5s}\n"), nil, nil)
	for _, want := range []string{"lifecycle.drain_min", "lifecycle.accept_quiet", "lifecycle.termination_grace"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
}

func TestHelp(t *testing.T) {
	var out strings.Builder
	_, err := Load[service]("service.yaml", WithArgs([]string{"-h"}), WithEnviron(nil), WithOutput(&out))
	if !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("error is %v, want flag.ErrHelp", err)
	}
	for _, want := range []string{"-config file", "SERVICE_CONFIG", "-lifecycle.drain-interval duration or off", "SERVICE_LIFECYCLE_DRAIN_INTERVAL", "look for work this often"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the help lacks %q:\n%s", want, out.String())
		}
	}
	said := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"A duration has a unit",
		"-lifecycle.drain-interval duration or off drain_interval is the length of the drain window",
		"default 5s, SERVICE_LIFECYCLE_DRAIN_INTERVAL)",
		"default 20s, SERVICE_LIFECYCLE_SHUTDOWN_GRACE)",
		"-lifecycle.drain-wait auto, always or never drain_wait says whether",
		"SERVICE_LIFECYCLE_TERMINATION_GRACE)",
		"look for work this often (duration, default 500ms, SERVICE_POLL)",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("the help does not say %q:\n%s", want, out.String())
		}
	}
	keys, err := Keys[service]("service.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if strings.HasPrefix(k.Name, "lifecycle.") && (len(k.Doc) < 20 || !strings.Contains(said, k.Doc)) {
			t.Errorf("the help has no words for %s: %q", k.Name, k.Doc)
		}
	}
}

// With Unchecked, a program gets the contradictory values that Load refuses.
func TestUncheckedTakesContradictions(t *testing.T) {
	path := write(t, "service.yaml", "lifecycle:\n  termination_grace: 20s\n")
	opts := []Option{WithSection("lifecycle"), WithEnviron(nil), WithArgs(nil), WithLogger(quiet)}
	if _, err := Load[lifecycle.Config](path, opts...); err == nil {
		t.Error("without the option it is taken too")
	}
	live, err := Open[lifecycle.Config](path, append(opts, WithoutValidation())...)
	if err != nil {
		t.Fatal(err)
	}
	if got := live.Get().TerminationGrace; got != 20*time.Second {
		t.Errorf("termination_grace is %v, want 20s", got)
	}
	if s := live.Settings(); len(s) != 1 || s[0].Source != path+":2" {
		t.Errorf("the settings are %v, want the one with its line", s)
	}
	overwrite(t, path, "lifecycle:\n  termination_grace: 20\n")
	if _, err := Open[lifecycle.Config](path, append(opts, WithoutValidation())...); err == nil {
		t.Error("a duration without a unit is taken")
	}
}

// demanding is a configuration with a Validate of its own.
type demanding struct {
	Poll      time.Duration
	DSN       string `koanf:"dsn"`
	Lifecycle lifecycle.Config
}

func (demanding) WithDefaults() demanding { return demanding{Poll: time.Second} }

func (d demanding) Validate() error {
	var errs []error
	if d.DSN == "" {
		errs = append(errs, errors.New("dsn is empty"))
	}
	if d.Poll <= 0 {
		errs = append(errs, errors.New("poll is not more than 0"))
	}
	return errors.Join(errs...)
}

// What Validate finds is told beside the other faults, unless a source could not be read.
// It says nothing of a key whose value was refused, nor of the sums of a section with one.
func TestValidateIsToldBesideTheOtherFaults(t *testing.T) {
	for name, c := range map[string]struct {
		content  string
		want     []string
		wantNone string
	}{
		"beside":            {"pol: 5s\n", []string{":1: pol: there is no such key", "dsn is empty"}, "poll is not"},
		"a refused value":   {"poll: soon\n", []string{`poll is "soon"`, "dsn is empty"}, "poll is not more"},
		"of lifecycle":      {"poll: 5\nlifecycle: {drain_min: 6s}\n", []string{":1: poll is 5", "lifecycle.drain_min (6s) is longer", "dsn is empty"}, "poll is not"},
		"a sum of unknowns": {"lifecycle: {drain_min: 6s, drain_interval: 9}\n", []string{"drain_interval is 9", "dsn is empty"}, "is longer"},
		"no file to read":   {"poll: [\n", []string{"not valid YAML"}, "dsn is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			path := write(t, "service.yaml", c.content)
			_, err := Load[demanding](path, WithEnvPrefix("SERVICE"), WithEnviron(nil), WithArgs(nil), WithLogger(quiet))
			for _, want := range c.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error lacks %q: %v", want, err)
				}
			}
			if err != nil && strings.Contains(err.Error(), c.wantNone) {
				t.Errorf("error has %q: %v", c.wantNone, err)
			}
		})
	}
}

// A variable from the manifest of another service is named at the start.
func TestVariableWithAnotherPrefixIsAWarning(t *testing.T) {
	log := new(strings.Builder)
	load := func(environ ...string) string {
		log.Reset()
		_, err := Load[service]("", WithEnvPrefix("ORDERS"), WithEnviron(environ), WithArgs(nil), WithLogger(slog.New(slog.NewTextHandler(log, nil))))
		if err != nil {
			t.Fatal(err)
		}
		return log.String()
	}
	for _, name := range []string{"SERVICE_LIFECYCLE_DRAIN_INTERVAL", "LIFECYCLE_DRAIN_INTERVAL", "A_LIFECYCLE_B_LIFECYCLE_DRAIN_INTERVAL"} {
		got := load(name + "=8s")
		if !strings.Contains(got, "variable="+name+" would_be=ORDERS_LIFECYCLE_DRAIN_INTERVAL") || !strings.Contains(got, "level=WARN") {
			t.Errorf("%s: the log is %q", name, got)
		}
	}
	// These are not keys of lifecycle.
	if got := load("ORDERS_LIFECYCLE_DRAIN_INTERVAL=8s", "SERVICE_ADDR=:1", "WEB_LIFECYCLE_PORT=tcp://10.0.0.1:80", "LIFECYCLE_TEST=1"); got != "" {
		t.Errorf("the log is %q", got)
	}
}
