package config

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

func TestInvalidFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ content, want string }{
		"folder.yaml":  {"", "it is a directory: want a file in it"},
		"missing.yaml": {"", "there is no such file; -config or SERVICE_CONFIG name another"},
		"empty.yaml":   {" \n", "the file is empty: for all defaults write a comment"},
		"empty.json":   {"\n", "the file is empty"},
		"half.yaml":    {"addr: x\nlabels: {x: ", "half.yaml:2: the file is not valid YAML here or in the next line; it may be truncated"},
		"half.json":    {"{\"addr\": \"x\",\n\"poll\"", "half.json:2: the file is not valid JSON; it may be truncated"},
		"half.toml":    {"addr = 'x'\n[cache", "half.toml:2: the file is not valid TOML; it may be truncated"},
		"twice.yaml":   {"addr: x\npoll: 1s\naddr: y\n", `twice.yaml:3: the key "addr" occurs twice, first in line 1`},
		"twice.json":   {"{\"cache\": {\"size\": 1,\n\"size\": 2}}", `twice.json:2: the key "cache.size" occurs twice`},
		"twice.toml":   {"addr = 'x'\naddr = 'y'\n", "twice.toml: the file is not valid TOML; it may be truncated: key addr is already defined"},
		"list.yaml":    {"- a\n", "the file is not YAML with keys and values"},
		"list.json":    {"[]", "the file is not JSON with keys and values"},
		"more.json":    {"{}\n{}", "more.json:2: the file is not valid JSON"},
		"more.yaml":    {"addr: x\n---\naddr: y\n", "more.yaml:2: a second document begins here"},
		"ended.yaml":   {"addr: x\n...\naddr: y\n", "ended.yaml:2: the file is not valid YAML here or in the next line"},
		"large.json":   {"{\n\"ratio\": 1e400}", `large.json:2: ratio is "1e400": want a number`},
		"binary.yaml":  {"addr: x\n\x7fELF\x00\x01", "binary.yaml:2: byte 8 is 0x7f: want UTF-8 text without control characters"},
		"latin.toml":   {"addr = '\xe9'", "latin.toml:1: byte 8 is 0xe9"},
		"utf16.json":   {"\xff\xfe{\x00}\x00", "utf16.json:1: byte 0 is 0xff"},
		"huge.json":    {strings.Repeat(" ", MaxFileSize) + "{}", "it has more than 1048576 bytes"},
		"service.ini":  {"[x]", "the extension .ini is not known: want .yaml, .yml, .json or .toml"},
		"service":      {"addr: x", "the name has no extension"},
	} {
		path := filepath.Join(dir, name)
		if tt.content != "" {
			if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_, err := loadWith(path, nil, nil)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("error is %v\nwant one that names the file and says %s", err, tt.want)
		}
		if name == "missing.yaml" && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v is not fs.ErrNotExist", err)
		}
	}
	device := filepath.Join(dir, "device.yaml")
	if err := os.Symlink(os.DevNull, device); err != nil {
		t.Fatal(err)
	}
	if _, err := loadWith(device, nil, nil); err == nil || !strings.Contains(err.Error(), "device.yaml: it is not a regular file") {
		t.Errorf("a device: %v", err)
	}
}

// An error of the YAML parser names the line or the one before, and quotes nothing of the
// file.
func TestLinesOfInvalidYAML(t *testing.T) {
	for content, want := range map[string]string{
		"addr: x\nlabels: {x: \ntags: y}\n":             ":1: the file is not valid YAML here or in the next line; it may be truncated: did not find expected ',' or '}'",
		"addr: x\nlabels:\n  a: b\n c: d\npoll: 1s\n":   ":3: the file is not valid YAML here or in the next line; it may be truncated: did not find expected key",
		"addr: x\ntags:\n  - a\n  c: d\n":               ":2: the file is not valid YAML here or in the next line; it may be truncated: did not find expected '-' indicator",
		"addr: x\ntags: [a, b\npoll: 1s\ndebug: true\n": ":1: the file is not valid YAML here or in the next line; it may be truncated: did not find expected ',' or ']'",
		"addr: x\npoll: @1\n":                           ":2: the file is not valid YAML here or in the next line; it may be truncated: found character that cannot start any token",
		"addr: @1\n":                                    ": the file is not valid YAML; it may be truncated: found character that cannot start any token",
		"addr: x\ndsn: a: b\n":                          ":2: the file is not valid YAML here or in the next line; it may be truncated: mapping values are not allowed",
		"addr: x\ndsn: *hunter2\n":                      ": the file is not valid YAML; it may be truncated: unknown anchor … referenced",
		"addr: x\ndsn: a\x01b\n":                        ":2: byte 14 is 0x01: want UTF-8 text without control characters",
		"addr: x\ndsn: {{ .hunter2 }}\n":                ":2: a section stands in place of a key: in a template, put {{…}} in quotes or render it",
		"addr: x\nlabels:\n  a: 1\n  a: 2\n":            `:4: the key "labels.a" occurs twice, first in line 3`,
		"dsn: !!int hunter2\n":                          ": the file is not valid YAML; it may be truncated: cannot decode !!str … as a !!int",
	} {
		_, err := loadWith(write(t, "service.yaml", content), nil, nil)
		if err == nil || !strings.Contains(err.Error(), "service.yaml"+want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: error is %v\nwant %s", content, err, want)
		}
	}
}

func TestFilesThatAreFine(t *testing.T) {
	for name, content := range map[string]string{
		"bom.yaml":     "\uFEFFaddr: x\n",
		"first.yaml":   "# a comment\n---\naddr: x\n",
		"version.yml":  "%YAML 1.1\n---\naddr: x\n...\n# the end\n",
		"crlf.toml":    "addr = 'x'\r\n",
		"anchors.yaml": "labels: &a {k: v}\naddr: x\n",
		"capitals.YML": "addr: x\n",
	} {
		if got, err := loadWith(write(t, name, content), nil, nil); err != nil || got.Addr != "x" {
			t.Errorf("%s: addr %q, %v", name, got.Addr, err)
		}
	}
	for name, content := range map[string]string{"comment.yaml": "# all defaults\n", "none.json": "{}", "comment.toml": "# all defaults\n"} {
		if got, err := loadWith(write(t, name, content), nil, nil); err != nil || got.Addr != ":8080" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// helm prints a document of comments before the one with the values. A document without
// values is none; the values are not dropped for defaults.
func TestDocumentsWithoutValuesAreSkipped(t *testing.T) {
	for _, content := range []string{
		"---\n# Source: chart/templates/config.yaml\n---\naddr: x\n",
		"---\n---\naddr: x\n",
		"---\nnull\n---\naddr: x\n",
		"addr: x\n---\n# the end\n",
		"addr: x\n---\n",
	} {
		if got, err := loadWith(write(t, "service.yaml", content), nil, nil); err != nil || got.Addr != "x" {
			t.Errorf("%q: addr %q, %v", content, got.Addr, err)
		}
	}
	path := write(t, "service.yaml", "addr: x\n")
	live, _ := openLive(t, path)
	overwrite(t, path, "---\n# Source: chart/templates/config.yaml\n---\naddr: y\n")
	if err := live.Reload(t.Context()); err != nil || live.Get().Addr != "y" {
		t.Errorf("after a reload: addr %q, %v", live.Get().Addr, err)
	}
}

func TestWhichFile(t *testing.T) {
	one, two := write(t, "one.yaml", "addr: one\n"), write(t, "two.json", `{"addr": "two"}`)
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	for name, tt := range map[string]struct {
		path      string
		env, args []string
		opts      []Option
		want      string
	}{
		"the program's":       {path: one, want: "one"},
		"the environment's":   {path: one, env: []string{"SERVICE_CONFIG=" + two}, want: "two"},
		"the flag's":          {path: missing, env: []string{"SERVICE_CONFIG=" + missing}, args: []string{"-config", two}, want: "two"},
		"none":                {path: "", want: ":8080"},
		"none by the flag":    {path: missing, args: []string{"-config="}, want: ":8080"},
		"optional":            {path: missing, opts: []Option{WithOptionalFile()}, want: ":8080"},
		"optional, asked for": {path: one, args: []string{"-config", missing}, opts: []Option{WithOptionalFile()}, want: "flag -config names it"},
	} {
		got, err := Load[service](tt.path, append(tt.opts, WithEnvPrefix("SERVICE_"), WithEnviron(tt.env), WithArgs(tt.args), WithLogger(quiet))...)
		if err == nil && got.Addr != tt.want || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: addr %q, %v, want %s", name, got.Addr, err, tt.want)
		}
	}
}

// An environment may have entries without a value, on some systems and by mistake.
func TestVariableWithoutAValue(t *testing.T) {
	if got, err := loadWith("", []string{"SERVICE_ADDR", "SERVICE_POLL=5s"}, nil); err != nil || got.Addr != ":8080" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestVariablesOfOthers(t *testing.T) {
	log := &logBuffer{}
	got, err := Load[service]("", WithEnvPrefix("SERVICE"), WithArgs(nil), WithLogger(slog.New(slog.NewTextHandler(log, nil))), WithEnviron([]string{
		// The variables that Kubernetes sets for the Services "service" and "service-a".
		"SERVICE_SERVICE_HOST=10.0.0.1", "SERVICE_SERVICE_PORT=80", "SERVICE_SERVICE_PORT_HTTP=80", "SERVICE_PORT=tcp://10.0.0.1:80",
		"SERVICE_PORT_80_TCP=tcp://10.0.0.1:80", "SERVICE_PORT_80_TCP_PROTO=tcp", "SERVICE_A_SERVICE_HOST=10.0.0.2", "SERVICE_A_PORT_53_UDP_ADDR=10.0.0.2",
		"SERVICE_SOMETHING_ELSE=1", "NOT_OURS=1", "SERVICE", "=x",
	}))
	if err != nil || got.Addr != ":8080" {
		t.Fatalf("%+v, %v", got, err)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "variable=SERVICE_SOMETHING_ELSE") {
		t.Errorf("want one line about SERVICE_SOMETHING_ELSE:\n%s", log)
	}
}

// Docker's links, which Kubernetes sets as well, may have the names of keys.
func TestServiceLinkInTheNameOfAKey(t *testing.T) {
	type T struct{ Port string }
	for value, want := range map[string]string{"tcp://10.0.0.1:80": "80", "udp://10.0.0.1:80": "80", "8080": "8080"} {
		got, err := Load[T](write(t, "service.yaml", "port: '80'\n"), WithEnviron([]string{"SERVICE_PORT=" + value}), WithArgs(nil), WithLogger(quiet))
		if err != nil || got.Port != want {
			t.Errorf("with SERVICE_PORT=%s the port is %q, %v, want %s", value, got.Port, err, want)
		}
	}
}

func TestSectionOfAnothersConfiguration(t *testing.T) {
	path := write(t, "service.yaml", "something: {of: the service's}\nlifecycle:\n  drain_interval: 7s\n")
	load := func(path string, environ ...string) (lifecycle.Config, error) {
		return Load[lifecycle.Config](path, WithSection("lifecycle"), WithEnvPrefix("SERVICE"), WithEnviron(environ), WithArgs(nil), WithLogger(quiet))
	}
	cfg, err := load(path, "SERVICE_ADDR=:1", "SERVICE_LIFECYCLE_LINGER=2s")
	if want := (lifecycle.Config{DrainInterval: 7e9, Linger: 2e9}); err != nil || cfg != want {
		t.Errorf("%+v, %v", cfg, err)
	}
	if cfg, err := load(write(t, "a.yaml", "other: 1\n")); err != nil || cfg != (lifecycle.Config{}) {
		t.Errorf("without the section: %+v, %v", cfg, err)
	}
	for content, want := range map[string]string{
		"lifecycle:\n  lingr: 2s\n":                ":2: lifecycle.lingr: there is no such key: did you mean linger?",
		"lifecycle: 5\n":                           ":1: lifecycle is [secret]: it is a section: want keys below it",
		"lifecycle:\n  min_slice: 1h\n":            "lifecycle.min_slice (1h0m0s) is longer than lifecycle.hook_slice (5s)",
		"lifecycle:\n  drain_interval: 5 seconds ": `:2: lifecycle.drain_interval is "5 seconds": want a duration`,
	} {
		if _, err := load(write(t, "b.yaml", content)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one that says %s", err, want)
		}
	}
}

func TestTypesThatCannotBeConfigured(t *testing.T) {
	type loop struct{ Next *loop }
	for want, load := range map[string]func() error{
		"int is not a struct": func() error { _, err := Load[int](""); return err },
		"F: a func() cannot be configured; tag the field koanf:\"-\"": func() error { _, err := Load[struct{ F func() }](""); return err },
		"contains itself": func() error { _, err := Load[loop](""); return err },
		"has a dot, a space or =": func() error {
			_, err := Load[struct {
				A int `koanf:"a.b"`
			}]("")
			return err
		},
		"begins with a dash": func() error {
			_, err := Load[struct {
				A int `koanf:"-a"`
			}]("")
			return err
		},
		"taken by another field": func() error {
			_, err := Load[struct {
				A int
				B int `koanf:"a"`
			}]("")
			return err
		},
		"rename the key": func() error { _, err := Load[struct{ Config int }](""); return err },
		"have the same variable, CONFIG_A_B: rename the key": func() error {
			_, err := Load[struct {
				A  struct{ B int }
				AB int `koanf:"a_b"`
			}]("")
			return err
		},
	} {
		if err := load(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one that says %s", err, want)
		}
	}
}

// Several files are a base and what is laid over it: the last one that gives a key wins, and each
// value keeps its place.
func TestFilesAreLaidOverEachOther(t *testing.T) {
	list := func(files ...string) string { return strings.Join(files, string(filepath.ListSeparator)) }
	base := write(t, "base.yaml", "poll: 1s\nworkers: 5\nlabels: {a: x}\nlifecycle:\n  drain_interval: 10s\n  linger: 2s\n")
	site := write(t, "site.toml", "workers = 6\n[labels]\nb = 'y'\n[lifecycle]\nlinger = '3s'\n")
	for name, given := range map[string]struct {
		path    string
		environ []string
	}{
		"by the program":  {path: list(base, site)},
		"by the variable": {path: "none.yaml", environ: []string{"SERVICE_CONFIG=" + list(base, site)}},
	} {
		live, err := Open[service](given.path, WithEnvPrefix("SERVICE"), WithEnviron(given.environ), WithArgs(nil), WithLogger(quiet))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := live.Get()
		if got.Poll != time.Second || got.Workers != 6 || len(got.Labels) != 1 || got.Labels["b"] != "y" ||
			got.Lifecycle.DrainInterval != 10*time.Second || got.Lifecycle.Linger != 3*time.Second {
			t.Errorf("%s: it is %+v", name, got)
		}
		i := slices.IndexFunc(live.Settings(), func(s Setting) bool { return s.Key == "workers" })
		if s := live.Settings()[i]; !strings.HasPrefix(s.Source, site) || len(s.Lost) != 1 || s.Lost[0] != base+":2: 5" {
			t.Errorf("%s: workers is from %s over %q", name, s.Source, s.Lost)
		}
	}
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	for path, want := range map[string]string{
		list(base, missing): missing + ": there is no such file",
		list(base, ""):      "one of the files has no name",
		list(base, write(t, "x.yaml", "pol: 1s")):   `did you mean poll?`,
		list(write(t, "y.yaml", "poll: 1"), site):   "y.yaml:1: poll",
		list(base, write(t, "z.txt", "poll: 1s")):   "the extension .txt is not known",
		list(missing, write(t, "w.yaml", "pol: 1")): missing,
	} {
		if _, err := loadWith(path, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	got, err := Load[service](list(base, missing), WithEnvPrefix("SERVICE"), WithEnviron(nil), WithArgs(nil), WithLogger(quiet), WithOptionalFile())
	if err != nil || got.Workers != 5 {
		t.Errorf("without an optional file: %+v, %v", got, err)
	}
}
