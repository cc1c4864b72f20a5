package deploy

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/vet"
	"go.yaml.in/yaml/v3"
)

// object is an object of a rendered manifest.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Data       map[string]string
	Spec       yaml.Node
	Rules      []yaml.Node // of a Role
}

// variables returns the variables of the service's container in the manifest.
func variables(t *testing.T, manifest string) (env []string) {
	t.Helper()
	for _, o := range objects(t, manifest) {
		if o.Kind != "Deployment" {
			continue
		}
		var spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Env []struct{ Name, Value string }
					}
				}
			}
		}
		if err := o.Spec.Decode(&spec); err != nil {
			t.Fatal(err)
		}
		for _, v := range spec.Template.Spec.Containers[0].Env {
			env = append(env, v.Name+"="+v.Value)
		}
	}
	return env
}

// objects splits a rendered manifest into objects.
func objects(t *testing.T, manifest string) []object {
	t.Helper()
	var all []object
	for d := yaml.NewDecoder(strings.NewReader(manifest)); ; {
		var o object
		if err := d.Decode(&o); err != nil {
			if err.Error() == "EOF" {
				return all
			}
			t.Fatalf("%v\n%s", err, manifest)
		}
		if o.Kind != "" {
			all = append(all, o)
		}
	}
}

// configOf reads the service's configuration from the manifest's ConfigMap and these
// variables. Without variables it does not check the sums, which the variables decide.
func configOf(t *testing.T, manifest string, env []string) lifecycle.Config {
	t.Helper()
	for _, o := range objects(t, manifest) {
		if o.Kind != "ConfigMap" {
			continue
		}
		names := slices.Collect(maps.Keys(o.Data))
		if len(names) != 1 {
			t.Fatalf("the ConfigMap has %v, want the service's file", names)
		}
		file := filepath.Join(t.TempDir(), names[0])
		if err := os.WriteFile(file, []byte(o.Data[names[0]]), 0o600); err != nil {
			t.Fatal(err)
		}
		opts := []config.Option{
			config.WithSection("lifecycle"), config.WithEnviron(env), config.WithArgs(nil), config.WithLogger(slog.New(slog.DiscardHandler)),
		}
		if env == nil {
			opts = append(opts, config.WithoutValidation())
		}
		cfg, err := config.Load[lifecycle.Config](file, opts...)
		if err != nil {
			t.Fatalf("the service would not start: %v", err)
		}
		return cfg
	}
	t.Fatalf("there is no ConfigMap in\n%s", manifest)
	return lifecycle.Config{}
}

// findings returns vet's findings for a manifest and the file in it.
func findings(t *testing.T, manifest string) []vet.Finding {
	t.Helper()
	file := vet.File{Name: "manifest.yaml", Data: []byte(manifest)}
	alone := vet.Checker{}.Check(file).Findings
	if told := (vet.Checker{Config: configOf(t, manifest, nil)}).Check(file).Findings; !slices.Equal(alone, told) {
		t.Errorf("vet reads another file in the manifest than this test: %+v and %+v", alone, told)
	}
	return alone
}

// served are the kinds whose fields vet checks strictly against the types of the
// Kubernetes API. A ServiceMonitor is not part of it and is decoded here.
var served = []string{"ConfigMap", "Deployment", "HorizontalPodAutoscaler", "Ingress", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount"}

// mustBeClean fails for any finding about the manifest, even a note.
func mustBeClean(t *testing.T, manifest string) {
	t.Helper()
	for _, f := range findings(t, manifest) {
		t.Errorf("line %d: %s: %s; %s", f.Line, f.Rule, f.Reason, f.Fix)
	}
	stopTimesBelongToThePod(t, manifest)
	for _, o := range objects(t, manifest) {
		switch o.Kind {
		case "ServiceMonitor":
			monitor(t, o)
		case "HTTPRoute":
			route(t, o)
		case "Role":
			permissions(t, o)
		case "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding": // tests on the cluster show that they work
		case "AnalysisTemplate", "MetricTemplate": // TestGateFailsABadRollout reads them
		default:
			if !slices.Contains(served, o.Kind) {
				t.Errorf("nothing looks at the fields of a %s", o.Kind)
			}
		}
	}
}

// stopTimesBelongToThePod fails unless the pod template has every time that has to fit
// into the pod's grace, and the ConfigMap, which running pods reload, none.
func stopTimesBelongToThePod(t *testing.T, manifest string) {
	t.Helper()
	file, whole := configOf(t, manifest, nil), configOf(t, manifest, variables(t, manifest))
	if file.DrainInterval != 0 || file.ShutdownGrace != 0 || file.TerminationGrace != 0 || file.PreStop != 0 {
		t.Errorf("the ConfigMap has times of a stop: %+v", file)
	}
	if whole.DrainInterval == 0 || whole.ShutdownGrace == 0 || whole.TerminationGrace == 0 {
		t.Errorf("the pod template lacks times of a stop: %+v", whole)
	}
}

// monitor decodes a ServiceMonitor with only the used fields, and refuses
// others.
func monitor(t *testing.T, o object) {
	t.Helper()
	data, err := yaml.Marshal(&o.Spec)
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Endpoints []struct{ Port, Path, Interval string }
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&spec); err != nil || o.APIVersion != "monitoring.coreos.com/v1" {
		t.Errorf("ServiceMonitor of %s: %v", o.APIVersion, err)
	}
	if len(spec.Endpoints) != 1 || spec.Endpoints[0].Port != "health" || spec.Endpoints[0].Path != "/metrics" || len(spec.Selector.MatchLabels) == 0 {
		t.Errorf("it scrapes something else: %+v", spec)
	}
}

func kustomize(t *testing.T, folder string) string {
	t.Helper()
	return must(t, tool(t, "kustomize"), "build", filepath.Join("kustomize", folder))
}

func TestKustomizeIsClean(t *testing.T) {
	for folder, want := range map[string]string{
		"base":                "ConfigMap Deployment NetworkPolicy PodDisruptionBudget Service ServiceAccount",
		"overlays/dev":        "ConfigMap Deployment NetworkPolicy Service ServiceAccount",
		"overlays/production": "ConfigMap Deployment NetworkPolicy PodDisruptionBudget Service Service ServiceAccount ServiceMonitor",
	} {
		t.Run(folder, func(t *testing.T) {
			manifest := kustomize(t, folder)
			mustBeClean(t, manifest)
			if !strings.Contains(manifest, "terminationMessagePolicy: FallbackToLogsOnError") {
				t.Error("a key of the configuration that is wrong ends without last words")
			}
			var kinds []string
			for _, o := range objects(t, manifest) {
				kinds = append(kinds, o.Kind)
			}
			if slices.Sort(kinds); strings.Join(kinds, " ") != want {
				t.Errorf("it has %v, want %s", kinds, want)
			}
		})
	}
}

// contradictions change one number, or one word, of a shipped manifest, and name
// the rule that must find it.
var contradictions = []struct{ rule, old, new string }{
	{"grace-too-short", "terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: 26"},
	{"grace-declared", "terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: 31"},
	{"grace-too-short", "DRAIN_INTERVAL=5s", "DRAIN_INTERVAL=15s"},
	{"grace-too-short", "SHUTDOWN_GRACE=20s", "SHUTDOWN_GRACE=24s"},
	{"grace-declared", "TERMINATION_GRACE=30s", "TERMINATION_GRACE=29s"},
	{"grace-undeclared", "name: SERVICE_LIFECYCLE_TERMINATION_GRACE\n", "name: SERVICE_TERMINATION\n"},
	{"config-refused", "TERMINATION_GRACE=30s", `TERMINATION_GRACE="30"`},
	{"drain-unnoticed", "DRAIN_INTERVAL=5s", "DRAIN_INTERVAL=2s"},
	{"drain-unnoticed", "failureThreshold: 2\n", "failureThreshold: 9\n"},
	{"probe-timeout", "DRAIN_INTERVAL=5s", "PROBE_TIMEOUT=3s"}, // the window's default is 5 s too
	{"probe-port", "health_addr: :8081", "health_addr: :9091"},
	{"probe-port", "containerPort: 8081", "containerPort: 8082"},
	{"probe-path", "path: /readyz", "path: /ready"},
	{"liveness-depends", "path: /livez", "path: /readyz"},
	{"startup-not-startupz", "path: /startupz", "path: /readyz"},
	{"rollout-loses-capacity", "maxUnavailable: 0", "maxUnavailable: 1"},
	{"pdb-blocks", "maxUnavailable: 1", "maxUnavailable: 0"},
	{"pdb-blocks", "maxUnavailable: 1", "minAvailable: 2"},
}

// TestEveryContradictionIsFound changes the manifests of both tools.
func TestEveryContradictionIsFound(t *testing.T) {
	for name, manifest := range map[string]string{"kustomize": kustomize(t, "base"), "helm": chart(t)} {
		manifest = normal(t, manifest)
		for i, c := range contradictions {
			if name == "helm" { // the chart has the health address in the pod template
				c.old, c.new = strings.Replace(c.old, "health_addr: ", "HEALTH_ADDR=", 1), strings.Replace(c.new, "health_addr: ", "HEALTH_ADDR=", 1)
			}
			t.Run(fmt.Sprintf("%s/%d %s", name, i, c.rule), func(t *testing.T) {
				changed := strings.Replace(manifest, variable(c.old), variable(c.new), 1)
				if changed == manifest {
					t.Fatalf("there is no %q in\n%s", c.old, manifest)
				}
				found := findings(t, changed)
				if !slices.ContainsFunc(found, func(f vet.Finding) bool { return f.Rule == c.rule }) {
					t.Errorf("%s is not found, only %+v", c.rule, found)
				}
			})
		}
	}
}

// variable returns the YAML of the variable NAME=VALUE, and any other text as it is.
func variable(text string) string {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return text
	}
	return "SERVICE_LIFECYCLE_" + name + "\n                      value: " + value + "\n"
}

// A change of the stop times replaces the pods, and any other change does not.
func TestStopTimesReplaceThePods(t *testing.T) {
	part := func(manifest, kind string) string {
		for doc := range strings.SplitSeq(manifest, "---\n") {
			if strings.Contains(doc, "kind: "+kind+"\n") {
				return doc
			}
		}
		t.Fatalf("there is no %s", kind)
		return ""
	}
	before := chart(t)
	if longer := chart(t, "drainSeconds=15"); part(longer, "Deployment") == part(before, "Deployment") || part(longer, "ConfigMap") != part(before, "ConfigMap") {
		t.Error("helm: longer stops do not change the pod template alone")
	}
	if lingers := chart(t, "config.lifecycle.linger=1s"); part(lingers, "Deployment") != part(before, "Deployment") || part(lingers, "ConfigMap") == part(before, "ConfigMap") {
		t.Error("helm: another configuration does not change the ConfigMap alone")
	}
	base, production := normal(t, kustomize(t, "base")), normal(t, kustomize(t, "overlays/production"))
	if part(base, "Deployment") == part(production, "Deployment") || part(base, "ConfigMap") != part(production, "ConfigMap") {
		t.Error("kustomize: longer stops do not change the pod template alone")
	}
}

// normal rewrites a manifest with one line per key.
func normal(t *testing.T, manifest string) string {
	t.Helper()
	var b strings.Builder
	for d := yaml.NewDecoder(strings.NewReader(manifest)); ; {
		var v map[string]any
		if err := d.Decode(&v); err != nil {
			break
		}
		if v == nil {
			continue
		}
		if data, ok := v["data"].(map[string]any); ok {
			for k, text := range data {
				var inner map[string]any
				if s, _ := text.(string); yaml.Unmarshal([]byte(s), &inner) == nil {
					out, _ := yaml.Marshal(inner)
					data[k] = string(out)
				}
			}
		}
		out, err := yaml.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString("---\n" + string(out))
	}
	return b.String()
}

func TestDockerfileIsClean(t *testing.T) {
	data, err := os.ReadFile("../examples/service/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	if r := (vet.Checker{}).Check(vet.File{Name: "Dockerfile", Data: data}); len(r.Findings) > 0 {
		t.Errorf("%+v", r.Findings)
	}
	final := string(data[bytes.LastIndex(data, []byte("\nFROM ")):])
	for _, want := range []string{"FROM scratch\n", "\nUSER 65532:65532\n", `ENTRYPOINT ["/service"]`} {
		if !strings.Contains(final, want) {
			t.Errorf("the image's stage has no %q", want)
		}
	}
}

// TestProductionSpreadsOverZones: the overlay does what its comment says.
func TestProductionSpreadsOverZones(t *testing.T) {
	at := "spec/template/spec/topologySpreadConstraints/"
	got := fields(t, kustomize(t, "overlays/production"), "Deployment", at+"0/topologyKey", at+"1/topologyKey", at+"0/labelSelector/matchLabels", at+"1/labelSelector/matchLabels")
	if len(got) != 4 || !slices.Contains(got, "topology.kubernetes.io/zone") || !slices.Contains(got, "kubernetes.io/hostname") || got[2] != got[3] {
		t.Errorf("the pods spread over %v", got)
	}
}
