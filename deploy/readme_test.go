package deploy

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/internal/run"
	"github.com/pleme-io/lifecycle-go/vet"
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

// TestFailurePolicyOfJobs: the template is what the guide shows, and vet has nothing against a Job
// with it.
func TestFailurePolicyOfJobs(t *testing.T) {
	page, err := os.ReadFile("../docs/guides/job.md")
	if err != nil {
		t.Fatal(err)
	}
	var shown, made any
	out := rendered(t, `{{ include "lifecycle.podFailurePolicy" . }}`, nil)
	if err := errors.Join(yaml.Unmarshal([]byte(block(t, string(page), "podFailurePolicy")), &shown), yaml.Unmarshal([]byte(out), &made)); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(shown, made) {
		t.Errorf("the guide shows %v, and the template renders %v", shown, made)
	}
	job := "apiVersion: batch/v1\nkind: Job\nmetadata: {name: migrate}\nspec:\n  " + strings.ReplaceAll(strings.TrimSpace(out), "\n", "\n  ") + `
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: main
          env: [{name: MIGRATE_LIFECYCLE_EXIT_ON_SIGNAL, value: "true"}, {name: MIGRATE_LIFECYCLE_TERMINATION_GRACE, value: 30s}]
`
	if found := (vet.Checker{}).Check(vet.File{Name: "job.yaml", Data: []byte(job)}).Findings; len(found) > 0 {
		t.Errorf("%+v", found)
	}
}

// TestAnyProgramInTheChart renders the values that the guide gives for programs in other
// languages. lifecycle-run takes the file, and the arguments behind "--" are the program's.
func TestAnyProgramInTheChart(t *testing.T) {
	page, err := os.ReadFile("../docs/guides/any-program.md")
	if err != nil {
		t.Fatal(err)
	}
	for has, want := range map[string]string{
		"gunicorn": "- -config=/etc/service/lifecycle-run.yaml\n- --\n- gunicorn\n- --bind\n- :8080\n- --graceful-timeout\n- \"15\"\n- app:app",
		"node":     "- -config=/etc/service/lifecycle-run.yaml\n- --\n- node\n- server.js",
		"php-fpm":  "- -config=/etc/service/lifecycle-run.yaml\n- --\n- php-fpm",
	} {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(block(t, string(page), "[--, "+has)), 0o600); err != nil {
			t.Fatal(err)
		}
		manifest := with(t, file)
		mustBeClean(t, manifest)
		container := "spec/template/spec/containers/0/"
		got := fields(t, manifest, "Deployment", container+"command", container+"args", container+"env/0/name")
		if got[0] != "- /lifecycle-run" || got[1] != want || got[2] != "LIFECYCLE_RUN_LIFECYCLE_DRAIN_INTERVAL" {
			t.Errorf("%s: the container has %q", has, got)
		}
		for _, o := range objects(t, manifest) {
			if o.Kind != "ConfigMap" {
				continue
			}
			config := filepath.Join(t.TempDir(), "lifecycle-run.yaml")
			if err := os.WriteFile(config, []byte(o.Data["lifecycle-run.yaml"]), 0o600); err != nil {
				t.Fatal(err)
			}
			if code := run.Run(t.Context(), "lifecycle-run", []string{"-config=" + config, "-lifecycle.health-addr=off", "--", "true"}, nil, t.Output(), t.Output()); code != 0 {
				t.Errorf("%s: lifecycle-run ends with %d, with the configuration\n%s", has, code, o.Data["lifecycle-run.yaml"])
			}
		}
	}
	for args, refused := range map[string]string{
		"{--,php-fpm,--config=x}":          "",
		"{--config=x.yaml,--,php-fpm}":     "set configFile and config",
		"{--lifecycle.linger=1s,--,sleep}": "set drainSeconds",
	} {
		_, err := output(t, tool(t, "helm"), chartArgs([]string{"args=" + args})...)
		if refused == "" && err != nil || refused != "" && (err == nil || !strings.Contains(err.Error(), refused)) {
			t.Errorf("args=%s: %v, want %q", args, err, refused)
		}
	}
}
