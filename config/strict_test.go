package config

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// What json.Marshal writes of a lifecycle.Config is a file that Load reads, and the
// result is the same Config. The admin token is a secret and is not written.
func TestMarshalledConfigLoadsAgain(t *testing.T) {
	type T struct {
		Lifecycle lifecycle.Config `json:"lifecycle"`
	}
	full := lifecycle.Config{}.WithDefaults()
	full.DrainQuiet, full.MinSlice, full.MemoryLimitRatio, full.ExitOnSignal = lifecycle.Off, lifecycle.Off, 0.9, true
	for name, want := range map[string]lifecycle.Config{
		"zero":     {},
		"defaults": lifecycle.Config{}.WithDefaults(),
		"full":     full,
	} {
		given := want
		given.AdminToken = "hunter2-hunter2-hunter2"
		text, err := json.Marshal(T{given})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "hunter2") {
			t.Errorf("%s: the token is in %s", name, text)
		}
		got, err := Load[T](write(t, "service.json", string(text)), WithEnviron(nil), WithArgs(nil))
		if err != nil || got.Lifecycle != want {
			t.Errorf("%s: %s loads as %+v, %v", name, text, got.Lifecycle, err)
		}
		var back T
		if err := json.Unmarshal(text, &back); err != nil || back.Lifecycle != want {
			t.Errorf("%s: %s is unmarshalled as %+v, %v", name, text, back.Lifecycle, err)
		}
	}
}

// json.Unmarshal of a lifecycle.Config refuses what it would have to drop or guess.
func TestUnmarshalOfAConfigIsStrict(t *testing.T) {
	for text, want := range map[string]string{
		`{"drainInterval": "7s"}`:       "there is no key drainInterval: did you mean drain_interval?",
		`{"linger": 7}`:                 "linger is 7: want a duration with its unit",
		`{"linger": "7"}`:               `linger is "7": want a duration with its unit`,
		`{"linger": "-7s"}`:             `linger is "-7s": want 0s or more, or off`,
		`{"statusz_off": "yes"}`:        "statusz_off: ",
		`{"linger":"1s","linger":"2s"}`: `the key "linger" occurs twice`,
		`[]`:                            "want an object",
	} {
		var cfg lifecycle.Config
		if err := json.Unmarshal([]byte(text), &cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want one that says %s", text, err, want)
		}
	}
	cfg := lifecycle.Config{Name: "kept"}
	if err := json.Unmarshal([]byte(`{"linger": 0, "drain_quiet": "off", "drain_interval": "7s"}`), &cfg); err != nil ||
		cfg != (lifecycle.Config{Name: "kept", Linger: lifecycle.Off, DrainQuiet: lifecycle.Off, DrainInterval: 7 * time.Second}) {
		t.Errorf("%+v, %v", cfg, err)
	}
}

// The top of a file may have keys that begin with x-, for YAML anchors.
func TestKeysForAnchors(t *testing.T) {
	path := write(t, "service.yaml", "x-times: &times\n  linger: 2s\n  drain_interval: 7s\nx-any: [1, {2: 3}]\nlifecycle:\n  <<: *times\n  linger: 3s\n")
	got, err := loadWith(path, nil, nil)
	if err != nil || got.Lifecycle.DrainInterval != 7*time.Second || got.Lifecycle.Linger != 3*time.Second {
		t.Errorf("%+v, %v", got.Lifecycle, err)
	}
	for content, want := range map[string]string{
		"lifecycle: {x-linger: 2s}\n": ":1: lifecycle.x-linger: there is no such key",
		"x: 1\n":                      ":1: x: there is no such key",
		"x-a: &a {lingr: 2s}\nlifecycle:\n  <<: *a\n": ":2: lifecycle.lingr: there is no such key: did you mean linger?",
		"x-a: &a {lingr: 2s}\n\n\nlifecycle: *a\n":    ":4: lifecycle.lingr: there is no such key: did you mean linger?",
	} {
		if _, err := loadWith(write(t, "service.yaml", content), nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v, want one that says %s", content, err, want)
		}
	}
}

// A fault in a flow map or a list has the line of its own key or item.
func TestLinesOfNestedKeys(t *testing.T) {
	for content, want := range map[string]string{
		"lifecycle: {\n  linger: 2s,\n  drain_interval: 5,\n}\n":             "service.yaml:3: lifecycle.drain_interval is 5",
		"{addr: x,\n cache: {size: 1,\n  \"ttl\": 5}}\n":                     "service.yaml:3: cache.ttl is 5",
		"cache: {size: 1, # {ttl: 1}\n  'ttl':\n    5}\n":                    "service.yaml:2: cache.ttl is 5",
		"labels: {a: 'it''s {', b: \"\\\"}\",\n c: 5}\n":                     "service.yaml:2: labels.c is 5",
		"addr: |\n  poll: 1\n\n  tags: 5\npoll: 5\n":                         "service.yaml:5: poll is 5",
		"addr: a text that goes on\n  tags - 5\npoll: 5\n":                   "service.yaml:3: poll is 5",
		"addr: \"a text\n\npoll: 7\"\npoll: 5\n":                             "service.yaml:4: poll is 5",
		"upstreams:\n- name: a\n  addr: b\n- name: c\n  adr: d\n":            "service.yaml:5: upstreams[1].adr: there is no such key",
		"upstreams:\n  - name: a\n  -\n    name: c\n    addr: 5\npoll: 1s\n": "service.yaml:5: upstreams[1].addr is 5",
		"upstreams: [{name: a}, {name: b,\n  addr: 5}]\n":                    "service.yaml:2: upstreams[1].addr is 5",
		"tags:\n- a\n- >\n  - 5\n- 5\n":                                      "service.yaml:5: tags[2] is 5",
		"tags: [a,\n 'b',\n 5]\n":                                            "service.yaml:3: tags[2] is 5",
		"--- # begin\nlabels: !!map &l\n  a: *x\npoll: 5\nx-x: &x y\n":       "service.yaml",
	} {
		_, err := loadWith(write(t, "service.yaml", content), nil, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error is %v\nwant one that says %s", content, err, want)
		}
	}
}

// A key that occurs twice in a map is a fault in the environment and in a flag, as in a
// file.
func TestMapWithAKeyTwice(t *testing.T) {
	for want, tt := range map[string]struct {
		content   string
		env, args []string
	}{
		`the key "labels.a" occurs twice`:                                                {content: "labels: {a: '1', a: '2'}\n"},
		`environment SERVICE_LABELS: labels is "a=1,b=2, a=3": the key "a" occurs twice`: {env: []string{"SERVICE_LABELS=a=1,b=2, a=3"}},
		`flag -labels: labels is "a=1,a=1": the key "a" occurs twice`:                    {args: []string{"-labels=a=1,a=1"}},
	} {
		path := ""
		if tt.content != "" {
			path = write(t, "service.yaml", tt.content)
		}
		if _, err := loadWith(path, tt.env, tt.args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one that says %s", err, want)
		}
	}
}

// White space around a value from the environment or a flag is a fault; only a file
// can mean it.
func TestWhiteSpaceAroundAValue(t *testing.T) {
	const want = "white space before or after it: remove that, or give the value in the file"
	for _, given := range []string{"ADDR= :7 ", "ADDR=:7\n", "ADDR= ", "DSN=\tx", "TOKEN=hunter2\n", "POLL= 5s", "WORKERS=5 ", "SINCE=2026-01-02T03:04:05Z\n", "DEBUG=true ", "LIFECYCLE_HEALTH_ADDR= :8081"} {
		_, err := loadWith("", []string{"SERVICE_" + given}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: error is %v, want one that says %s", given, err, want)
		}
	}
	if _, err := loadWith("", nil, []string{"-addr= :7 "}); err == nil || !strings.Contains(err.Error(), `flag -addr: addr is " :7 ": `+want) {
		t.Errorf("a flag: %v", err)
	}
	got, err := loadWith(write(t, "service.yaml", "addr: ' :7 '\n"), []string{"SERVICE_TAGS= a, b ", "SERVICE_LABELS= a = 1, b=2"}, nil)
	if err != nil || got.Addr != " :7 " || !reflect.DeepEqual(got.Tags, []string{"a", "b"}) || got.Labels["a"] != "1" {
		t.Errorf("a file, a list and a map: %+v, %v", got, err)
	}
}

// A number with a leading zero is octal for some parsers and decimal for others, so it
// is refused.
func TestLeadingZeros(t *testing.T) {
	type T struct {
		Mode  int
		Modes []int
		Ports map[string]int
		Zip   string
		Ratio float64
	}
	load := func(path string, environ ...string) (T, error) {
		return Load[T](path, WithEnvPrefix("SERVICE"), WithEnviron(environ), WithArgs(nil))
	}
	const want = "a number with a leading zero is octal in some places and decimal in others: "
	for content, at := range map[string]string{
		"mode: 0755\n":              ":1: mode is 0755: ",
		"\nmode: -0755 # octal\n":   ":2: mode is -0755: ",
		"mode: 0899\n":              ":1: mode is 0899: ",
		"modes:\n- 1\n- 0644\n":     ":3: modes[1] is 0644: ",
		"modes: [1,\n 0644]\n":      ":2: modes[1] is 0644: ",
		"ports: {a: 1,\n b: 010}\n": ":2: ports.b is 010: ",
		"x-m: &m 0755\nmode: *m\n":  ":2: mode is 0755: ",
		"ports:\n  a: &m 0755\n":    ":2: ports.a is 0755: ",
		"mode: 0_7\n":               ":1: mode is 0_7: ",
	} {
		if got, err := load(write(t, "service.yaml", content)); err == nil || !strings.Contains(err.Error(), at+want) {
			t.Errorf("%s: %+v, %v, want %s", content, got, err, at+want)
		}
	}
	if _, err := load(write(t, "service.toml", "mode = 0755\n")); err == nil {
		t.Error("TOML takes it")
	}
	for _, environ := range []string{"SERVICE_MODE=0755", "SERVICE_MODE=-0755", "SERVICE_MODES=1,0644"} {
		if got, err := load("", environ); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", environ, got, err)
		}
	}
	for content, mode := range map[string]int{
		"mode: 755\n": 755, "mode: 0o755\n": 0o755, "mode: 0x1ff\n": 0x1ff, "mode: 0\n": 0, "mode: 0b11\n": 3,
		"mode: 5\nzip: '0755'\nratio: 0.5\n":                    5,
		"mode: 5\nzip: |\n  modes:\n  - 0755\n":                 5,
		"mode: 5\nzip: text\n  0755\n":                          5,
		"mode: 5\nzip: \"a\n  mode: 0755\"\n":                   5,
		"mode: 5\nx-y: {zip: '0755', \"a\": \"0755\"} # 0755\n": 5,
	} {
		if got, err := load(write(t, "service.yaml", content)); err != nil || got.Mode != mode {
			t.Errorf("%s: %+v, %v", content, got, err)
		}
	}
	if got, err := load("", "SERVICE_MODE=0", "SERVICE_RATIO=0.5"); err != nil || got.Ratio != 0.5 {
		t.Errorf("%+v, %v", got, err)
	}
}
