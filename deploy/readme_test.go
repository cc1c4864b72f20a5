package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func readme(t *testing.T, folder string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// block returns the first YAML example of a page that has this text.
func block(t *testing.T, page, has string) string {
	t.Helper()
	for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(page, -1) {
		if strings.Contains(m[1], has) {
			return m[1]
		}
	}
	t.Fatalf("the page has no example with %q", has)
	return ""
}

// TestReadmesLinkToWhatExists checks the relative links of the charts' pages.
func TestReadmesLinkToWhatExists(t *testing.T) {
	for _, folder := range []string{".", chartFolder, libraryFolder} {
		for _, m := range regexp.MustCompile(`\]\(([^()\s#]+)\)`).FindAllStringSubmatch(readme(t, folder), -1) {
			if _, err := os.Stat(filepath.Join(folder, m[1])); err != nil && !strings.Contains(m[1], "://") {
				t.Errorf("%s/README.md links to %s: %v", folder, m[1], err)
			}
		}
	}
}

// TestReadmeExamplesRender renders what the charts' pages tell to write.
func TestReadmeExamplesRender(t *testing.T) {
	var values any
	page := readme(t, libraryFolder)
	if err := yaml.Unmarshal([]byte(block(t, page, "drainSeconds: 15")), &values); err != nil {
		t.Fatal(err)
	}
	var deployment struct {
		Spec struct {
			Template struct {
				Metadata struct{ Annotations map[string]string }
				Spec     struct {
					Grace      int `yaml:"terminationGracePeriodSeconds"`
					Containers []struct {
						Env   []struct{ Name, Value string }
						Ports []struct{ Name string }
						Probe map[string]any `yaml:"readinessProbe"`
					}
				}
			}
		}
	}
	out := rendered(t, "\n"+block(t, page, "lifecycle.probes"), values)
	if err := yaml.Unmarshal([]byte(out), &deployment); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	pod := deployment.Spec.Template.Spec
	if pod.Grace != 80 || len(pod.Containers) != 1 || len(pod.Containers[0].Env) != 4 || pod.Containers[0].Ports[0].Name != "health" || pod.Containers[0].Probe["failureThreshold"] != 3 || len(deployment.Spec.Template.Metadata.Annotations) != 1 {
		t.Errorf("it renders %+v of\n%s", deployment, out)
	}

	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(block(t, readme(t, chartFolder), "configFile")), 0o600); err != nil {
		t.Fatal(err)
	}
	mustBeClean(t, with(t, file))
}
