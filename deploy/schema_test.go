package deploy

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/internal/run/runconfig"
	"go.yaml.in/yaml/v3"
)

var update = flag.Bool("update", false, "write the files that are made from others")

const libraryFolder = "helm/lifecycle"

// derived are the keys of lifecycle that the charts derive and refuse.
var derived = []string{"drain_interval", "shutdown_grace", "termination_grace", "pre_stop", "liveness_grace", "startup_grace", "health_addr", "probe_timeout"}

// TestSchemasHaveTheKeysOfLifecycle: the schemas of both charts have every key of lifecycle,
// and refuse a value of the wrong type, as config.Load does. -update writes the files.
func TestSchemasHaveTheKeysOfLifecycle(t *testing.T) {
	text, err := config.Schema[lifecycle.Config](nil)
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	properties, _ := schema["properties"].(map[string]any)
	for _, key := range derived {
		if properties[key] == nil {
			t.Errorf("there is no key %s", key)
		}
		// A schema can only say "false schema". lifecycle.check refuses the key, and names the
		// value that it follows from.
		properties[key] = map[string]any{"description": "The chart derives this key, and refuses it here."}
	}
	// What else the schema of a whole file says, such as its title, is of no use here.
	// A key that does not exist is lifecycle.check's too, which says what was probably meant.
	line, err := json.Marshal(map[string]any{"type": "object", "properties": properties})
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{libraryFolder, chartFolder} {
		file := filepath.Join(folder, "values.schema.json")
		old, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		at := regexp.MustCompile(`(?m)^    "lifecycle": \{.*\}$`).FindIndex(old)
		if at == nil {
			t.Fatalf("%s has no line for lifecycle", file)
		}
		want := string(old[:at[0]]) + `    "lifecycle": ` + string(line) + string(old[at[1]:])
		isCurrent(t, file, want)
	}
}

// TestChartKnowsTheKeysOfLifecycleRun: the chart has the keys of the file of lifecycle-run, as a
// JSON Schema. lifecycle-run checks the values, and lifecycle.check the section lifecycle.
// -update writes it.
func TestChartKnowsTheKeysOfLifecycleRun(t *testing.T) {
	text, err := config.Schema[runconfig.Config](func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	keys := onlyKeys(schema)
	keys["properties"].(map[string]any)["lifecycle"] = map[string]any{}
	text, err = json.MarshalIndent(keys, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	isCurrent(t, filepath.Join(chartFolder, "lifecycle-run.schema.json"), string(text)+"\n")
}

// onlyKeys returns the keys of a schema, without what it says of their values.
func onlyKeys(schema map[string]any) map[string]any {
	all, _ := schema["properties"].(map[string]any)
	if all == nil {
		return map[string]any{}
	}
	keys := make(map[string]any, len(all))
	for name, below := range all {
		section, _ := below.(map[string]any)
		keys[name] = onlyKeys(section)
	}
	return map[string]any{"properties": keys}
}

// isCurrent compares a file with what it is made from, or writes it with -update.
func isCurrent(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil || string(got) != want {
		t.Errorf("%s is not current (%v): make docs writes it", file, err)
	}
}

// TestVendoredLibraryIsCurrent: the service chart has a copy of the library chart, so
// that it needs no download. -update writes it.
func TestVendoredLibraryIsCurrent(t *testing.T) {
	copied := filepath.Join(chartFolder, "charts", "lifecycle")
	want := tree(t, libraryFolder)
	delete(want, "README.md") // its links lead to its neighbours
	for name, text := range want {
		isCurrent(t, filepath.Join(copied, name), text)
	}
	for name := range tree(t, copied) {
		if _, ok := want[name]; ok {
			continue
		}
		if *update {
			if err := os.Remove(filepath.Join(copied, name)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		t.Errorf("%s/%s is not in %s", copied, name, libraryFolder)
	}
	var chart, library struct {
		Version      string
		Dependencies []struct{ Name, Version, Repository string }
	}
	decode(t, filepath.Join(chartFolder, "Chart.yaml"), &chart)
	decode(t, filepath.Join(libraryFolder, "Chart.yaml"), &library)
	if len(chart.Dependencies) != 1 || chart.Dependencies[0].Version != library.Version {
		t.Errorf("the library has version %s, and the chart wants %+v", library.Version, chart.Dependencies)
	}
}

// tree returns the files below a folder, by their names.
func tree(t *testing.T, folder string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(folder, path)
		files[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func decode(t *testing.T, file string, v any) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// TestSchemaIsExact: the schema of the service chart has the keys of values.yaml, and no
// others.
func TestSchemaIsExact(t *testing.T) {
	var values, schema map[string]any
	decode(t, filepath.Join(chartFolder, "values.yaml"), &values)
	decode(t, filepath.Join(chartFolder, "values.schema.json"), &schema)
	have, want := slices.Sorted(maps.Keys(keysOf(values, ""))), slices.Sorted(maps.Keys(keysOfSchema(schema, "")))
	want = slices.DeleteFunc(want, func(key string) bool {
		return strings.HasPrefix(key, "global") || strings.HasPrefix(key, "lifecycle.") // Helm's own, and the library's
	})
	if !slices.Equal(have, want) {
		t.Errorf("values.yaml has\n%v\nand the schema\n%v", have, want)
	}
}

// open are the values whose keys Kubernetes or the user defines.
var open = []string{"config", "resources", "podSecurityContext", "securityContext", "affinity", "labels", "podLabels", "podAnnotations", "nodeSelector"}

// keysOf returns the paths of the values.
func keysOf(values map[string]any, above string) map[string]any {
	keys := map[string]any{}
	for key, value := range values {
		below, ok := value.(map[string]any)
		if ok && len(below) > 0 && !slices.Contains(open, key) {
			maps.Copy(keys, keysOf(below, above+key+"."))
			continue
		}
		keys[above+key] = value
	}
	return keys
}

func keysOfSchema(schema map[string]any, above string) map[string]any {
	keys := map[string]any{}
	properties, _ := schema["properties"].(map[string]any)
	for key, value := range properties {
		below, _ := value.(map[string]any)
		if _, ok := below["properties"]; ok && !slices.Contains(open, key) {
			maps.Copy(keys, keysOfSchema(below, above+key+"."))
			continue
		}
		keys[above+key] = value
	}
	return keys
}

// TestReadmesListEveryValue: the table of each chart's README has each value with its
// default, and no other.
func TestReadmesListEveryValue(t *testing.T) {
	var values, settings map[string]any
	decode(t, filepath.Join(chartFolder, "values.yaml"), &values)
	if err := yaml.Unmarshal([]byte(rendered(t, `{{ include "lifecycle.defaults" . }}`, nil)), &settings); err != nil {
		t.Fatal(err)
	}
	for folder, want := range map[string]map[string]any{chartFolder: keysOf(values, ""), libraryFolder: keysOf(settings, "")} {
		text, err := os.ReadFile(filepath.Join(folder, "README.md"))
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]string{}
		for _, row := range regexp.MustCompile("(?m)^\\| `([A-Za-z.]+)` \\| `([^|`]*)` \\|").FindAllStringSubmatch(string(text), -1) {
			have[row[1]] = row[2]
		}
		for key, value := range want {
			text, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			var listed any
			if err := yaml.Unmarshal([]byte(have[key]), &listed); err != nil {
				t.Errorf("%s: the default of %s: %v", folder, key, err)
			}
			shown, err := json.Marshal(listed)
			if err != nil {
				t.Fatal(err)
			}
			if _, ok := have[key]; !ok || string(text) != string(shown) {
				t.Errorf("%s: README.md says that the default of %s is %s, and it is %s", folder, key, shown, text)
			}
			delete(have, key)
		}
		for key := range have {
			t.Errorf("%s: README.md has %s, which is no value", folder, key)
		}
	}
}
