package deploy

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"go.yaml.in/yaml/v3"
)

// rendered makes a chart that depends on the library, with this template as the value of a
// ConfigMap, and returns that value.
func rendered(t *testing.T, template string, values any) string {
	t.Helper()
	folder := t.TempDir()
	text, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"Chart.yaml":         "{apiVersion: v2, name: probe, version: 0.1.0, dependencies: [{name: lifecycle, version: 0.1.0}]}\n",
		"values.yaml":        string(text),
		"templates/all.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: probe}\ndata:\n  out: |\n    {{- define \"out\" }}" + template + "{{ end }}\n    {{- include \"out\" . | nindent 4 }}\n",
	}
	for name, text := range tree(t, libraryFolder) {
		files[filepath.Join("charts/lifecycle", name)] = text
	}
	write(t, folder, files)
	out := objects(t, must(t, tool(t, "helm"), "template", "web", folder))
	if len(out) != 1 {
		t.Fatalf("%d objects", len(out))
	}
	return out[0].Data["out"]
}

func write(t *testing.T, folder string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// settings are the values of the library that decide about a stop.
type settings struct {
	DrainSeconds    int            `json:"drainSeconds"`
	ShutdownSeconds *int           `json:"shutdownSeconds"`
	PreStopSeconds  int            `json:"preStopSeconds"`
	Config          map[string]any `json:"config"`
}

// someSettings returns settings of which New takes many and refuses many.
func someSettings(n int) []settings {
	r := rand.New(rand.NewPCG(1, 2))
	durations := []any{"off", "0s", "0", 0, "250ms", "1s", "1.5s", "2s", "2500ms", "4s", "5s", "6.25s", "10s", "20s", "60s", "1m30s", "1h", "8761h", "10000000us", "-1s", "5", 5, "soon", false, true, "false"}
	keys := []string{"drain_quiet", "drain_max", "drain_min", "go_away_after", "accept_quiet", "linger", "unit_slice", "hook_slice", "report_slice", "min_slice", "signal_debounce", "start_timeout", "reload_timeout", "leader_retry"}
	all := make([]settings, n)
	for i := range all {
		s := settings{DrainSeconds: 3 + r.IntN(20), PreStopSeconds: max(0, r.IntN(8)-4), Config: map[string]any{}}
		if r.IntN(2) == 0 {
			seconds := 4 + r.IntN(60)
			s.ShutdownSeconds = &seconds
		}
		for range r.IntN(4) {
			// Most of the values are short, so that sums and not values decide.
			of := durations[:13]
			if r.IntN(8) == 0 {
				of = durations
			}
			s.Config[keys[r.IntN(len(keys))]] = of[r.IntN(len(of))]
		}
		all[i] = s
	}
	return all
}

// TestLibraryRefusesWhatNewRefuses: for the same settings, the templates and config.Load
// with lifecycle.Config.Validate agree. The grace that the templates compute is enough.
func TestLibraryRefusesWhatNewRefuses(t *testing.T) {
	cases := someSettings(200)
	cases = append(cases,
		settings{DrainSeconds: 5, Config: map[string]any{"linger": "60s"}},
		settings{DrainSeconds: 5, Config: map[string]any{"linger": "10s"}},
		settings{DrainSeconds: 5, Config: map[string]any{"linger": "10s1ns"}},
		settings{DrainSeconds: 5, Config: map[string]any{"drain_max": "90s"}},
		settings{DrainSeconds: 5, Config: map[string]any{"drain_max": "5.5s"}},
		settings{DrainSeconds: 5, Config: map[string]any{"drain_max": "4s"}},
		settings{DrainSeconds: 5, Config: map[string]any{"linger": false}},
		settings{DrainSeconds: 5, Config: map[string]any{"linger": "false"}},
		settings{DrainSeconds: 5, Config: map[string]any{"lingr": "1s"}},
		settings{DrainSeconds: 5, Config: map[string]any{"drain_readiness": "serving", "exit_on_signal": true, "memory_limit_ratio": 0.9}},
	)
	short := 20
	cases = append(cases,
		settings{DrainSeconds: 5, Config: map[string]any{"report_slice": "16.5s"}},
		settings{DrainSeconds: 5, ShutdownSeconds: &short, Config: map[string]any{"report_slice": "17s"}},
	)
	out := rendered(t, `
{{- range .Values.cases }}
- {problems: {{ include "lifecycle.problems" . | toJson }}, numbers: {{ include "lifecycle.numbers" . }}}
{{- end }}`, map[string]any{"cases": cases})
	var got []struct {
		Problems string
		Numbers  struct {
			Drain, Window, Shutdown, Grace int
			PreStop                        int `yaml:"preStop"`
		}
	}
	if err := yaml.Unmarshal([]byte(out), &got); err != nil || len(got) != len(cases) {
		t.Fatalf("%d results: %v\n%.1000s", len(got), err, out)
	}
	fine := 0
	for i, c := range cases {
		n := got[i].Numbers
		env := []string{
			fmt.Sprintf("SERVICE_LIFECYCLE_DRAIN_INTERVAL=%ds", n.Drain), fmt.Sprintf("SERVICE_LIFECYCLE_SHUTDOWN_GRACE=%ds", n.Shutdown),
			fmt.Sprintf("SERVICE_LIFECYCLE_TERMINATION_GRACE=%ds", n.Grace), fmt.Sprintf("SERVICE_LIFECYCLE_PRE_STOP=%ds", n.PreStop),
		}
		_, err := load(t, c.Config, env)
		if err == nil {
			fine++
		}
		if (err == nil) != (got[i].Problems == "") {
			t.Errorf("%+v: the templates say %q, and config.Load %v", c, got[i].Problems, err)
		}
		if n.Drain != c.DrainSeconds || n.Grace != n.PreStop+n.Window+n.Shutdown+5 || c.ShutdownSeconds == nil && (n.Shutdown < 4*n.Drain || c.Config["report_slice"] == nil && n.Shutdown != 4*n.Drain) {
			t.Errorf("%+v: the numbers are %+v", c, n)
		}
	}
	if fine < len(cases)/5 || fine > len(cases)*4/5 {
		t.Errorf("%d of %d are fine: that proves little", fine, len(cases))
	}
	if slice := got[len(got)-2]; slice.Problems != "" || slice.Numbers.Shutdown != 37 || slice.Numbers.Grace != 47 {
		t.Errorf("a report slice of 16.5 s: %+v, want a shutdown of 37 s", slice)
	}
	if words := got[len(got)-1].Problems; !strings.Contains(words, "linger + unit_slice + hook_slice + report_slice is 5s + 5s + 5s + 17s = 32s, and has to fit") {
		t.Errorf("a report slice of 17 s in 20 s: %q", words)
	}
	if words := got[200].Problems; !strings.Contains(words, "linger + unit_slice + hook_slice is 60s + 5s + 5s = 70s, and has to fit into shutdown_grace, which is 20s") {
		t.Errorf("linger of 60 s: %q", words)
	}
}

// load loads the section lifecycle as a service does.
func load(t *testing.T, section map[string]any, env []string) (lifecycle.Config, error) {
	t.Helper()
	text, err := yaml.Marshal(map[string]any{"lifecycle": section})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "service.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return config.Load[lifecycle.Config](file, config.WithSection("lifecycle"), config.WithEnvPrefix("SERVICE"),
		config.WithEnviron(env), config.WithArgs(nil), config.WithLogger(slog.New(slog.DiscardHandler)))
}

// TestLibraryKnowsTheKeys: the templates know the keys of lifecycle.Config, and which of
// them a running App takes over.
func TestLibraryKnowsTheKeys(t *testing.T) {
	var live, start []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[lifecycle.Config]()) {
		switch key := f.Tag.Get("koanf"); {
		case f.Tag.Get("reload") == "live":
			live = append(live, key)
		case !slices.Contains(derived, key):
			start = append(start, key)
		}
	}
	for template, want := range map[string][]string{"liveKeys": live, "startKeys": start, "derivedKeys": derived} {
		var got []string
		if err := yaml.Unmarshal([]byte(rendered(t, `{{ include "lifecycle.`+template+`" . }}`, nil)), &got); err != nil {
			t.Fatal(err)
		}
		slices.Sort(got)
		if want = slices.Sorted(slices.Values(want)); !slices.Equal(got, want) {
			t.Errorf("lifecycle.%s are %v, want %v", template, got, want)
		}
	}
}

// TestLibraryHasTheBoundsOfItsSchema: the templates refuse what the schema refuses, because
// no schema sees a map that a chart passes.
func TestLibraryHasTheBoundsOfItsSchema(t *testing.T) {
	var schema struct {
		Properties map[string]struct{ Minimum, Maximum *int }
	}
	decode(t, filepath.Join(libraryFolder, "values.schema.json"), &schema)
	template, want := "", []string{}
	for key, p := range schema.Properties {
		if p.Maximum == nil {
			continue
		}
		for _, value := range []int{*p.Minimum - 1, *p.Minimum, *p.Maximum, *p.Maximum + 1} {
			template += fmt.Sprintf("\n- {{ include \"lifecycle.problems\" (dict %q %d) | quote }}", key, value)
			refused := ""
			if value < *p.Minimum || value > *p.Maximum {
				refused = fmt.Sprintf("%s is %d, want a whole number from %d to %d", key, value, *p.Minimum, *p.Maximum)
			}
			want = append(want, refused)
		}
	}
	var got []string
	if err := yaml.Unmarshal([]byte(rendered(t, template, nil)), &got); err != nil || len(want) != 20 || !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q (%v)", got, want, err)
	}
}

// TestLibraryTakesTheRootContextOrAMap: a chart with one program passes its root context,
// and a chart with several passes settings.
func TestLibraryTakesTheRootContextOrAMap(t *testing.T) {
	template := `{{ include "lifecycle.stop" . }}, {{ include "lifecycle.stop" .Values.worker }}, {{ include "lifecycle.stop" dict }}`
	values := map[string]any{"lifecycle": map[string]any{"drainSeconds": 15}, "worker": map[string]any{"drainSeconds": 3, "preStopSeconds": 2}}
	want := "terminationGracePeriodSeconds: 80, terminationGracePeriodSeconds: 22, terminationGracePeriodSeconds: 30"
	if got := strings.TrimSpace(rendered(t, template, values)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// As README.md shows it.
	file := `{{ include "lifecycle.annotations" (merge (dict "file" .Values.config "liveKeys" (list "log")) .Values.lifecycle) }}`
	sum := func(config map[string]any) string {
		return rendered(t, file, map[string]any{"lifecycle": map[string]any{"drainSeconds": 15}, "config": config})
	}
	if a, b, c := sum(map[string]any{"log": "json"}), sum(map[string]any{"log": "text"}), sum(map[string]any{"log": "text", "poll": "1s"}); a != b || b == c {
		t.Errorf("the checksums are %s, %s and %s", a, b, c)
	}
	// Values that are not numbers do not become 0.
	if got := rendered(t, `{{ include "lifecycle.problems" (dict "drainSeconds" "5s" "config" (dict "shutdown_grace" "1s")) }}`, nil); !strings.Contains(got, "drainSeconds is 5s, want a whole number") || !strings.Contains(got, "shutdown_grace follows from") {
		t.Errorf("got %s", got)
	}
	if got := rendered(t, `{{ include "lifecycle.problems" (dict "drainSecond" 5) }}`, nil); !strings.Contains(got, "drainSecond is no setting") {
		t.Errorf("got %s", got)
	}
	env := rendered(t, `{{ include "lifecycle.configEnv" (dict "config" (dict "linger" false "statusz_off" false "drain_max" "9s")) }}`, nil)
	for _, want := range []string{`_LINGER, value: "off"`, `_STATUSZ_OFF, value: "false"`, `_DRAIN_MAX, value: "9s"`} {
		if !strings.Contains(env, want) {
			t.Errorf("the variables lack %s:\n%s", want, env)
		}
	}
}
