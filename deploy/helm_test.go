package deploy

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const chartFolder = "helm/lifecycle-service"

// chart renders the chart with these values.
func chart(t *testing.T, set ...string) string {
	t.Helper()
	return must(t, tool(t, "helm"), chartArgs(set)...)
}

func chartArgs(set []string) []string {
	args := []string{"template", "web", chartFolder, "--skip-tests"}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	return args
}

func TestChartLints(t *testing.T) {
	must(t, tool(t, "helm"), "lint", "--strict", chartFolder, libraryFolder)
}

// TestChartIsClean: for any value of the chart's one number, the others agree with it.
func TestChartIsClean(t *testing.T) {
	for name, set := range map[string][]string{
		"defaults":           nil,
		"shortest":           {"drainSeconds=3"},
		"four":               {"drainSeconds=4"},
		"long":               {"drainSeconds=15"},
		"longest":            {"drainSeconds=600"},
		"shutdown":           {"drainSeconds=3", "shutdownSeconds=90"},
		"one replica":        {"replicas=1"},
		"none":               {"replicas=0"},
		"local traffic":      {"service.type=LoadBalancer", "service.externalTrafficPolicy=Local"},
		"monitored":          {"serviceMonitor.enabled=true"},
		"other ports":        {"ports.http=9000", "ports.health=9001"},
		"own config":         {"config.poll=2s", "config.lifecycle.linger=1s", "config.lifecycle.drain_readiness=serving"},
		"asks the API":       {"kubernetesAPI.enabled=true"},
		"leads":              {"kubernetesAPI.enabled=true", "kubernetesAPI.lease=sync"},
		"on the bus":         {"bus.enabled=true", "bus.seedSecret=web-nats", "bus.nkey=" + nkey},
		"no policy, no name": {"networkPolicy.enabled=false", "image.tag=v2"},
	} {
		t.Run(name, func(t *testing.T) { mustBeClean(t, chart(t, set...)) })
	}
}

func TestChartDerivesEveryNumber(t *testing.T) {
	manifest := chart(t, "drainSeconds=15")
	for _, want := range []string{
		"DRAIN_INTERVAL, value: 15s", "SHUTDOWN_GRACE, value: 60s", "TERMINATION_GRACE, value: 80s", "terminationGracePeriodSeconds: 80",
	} {
		if !strings.Contains(manifest, want) {
			t.Errorf("it has no %q", want)
		}
	}
	if own := chart(t, "config.poll=2s", "config.lifecycle.linger=1s"); !strings.Contains(own, "poll: 2s") || !strings.Contains(own, "linger: 1s") {
		t.Error("what the user configures is lost")
	}
}

// TestChartRefusesBadValues: the schema names the value.
func TestChartRefusesBadValues(t *testing.T) {
	for set, want := range map[string]string{
		"drainSeconds=2":                       "drainSeconds",
		"drainSeconds=5s":                      "drainSeconds",
		"drainSeconds=601":                     "drainSeconds",
		"shutdownSeconds=1":                    "shutdownSeconds",
		"replicas=-1":                          "replicas",
		"drainSecond=5":                        "drainSecond",
		"image.repository=":                    "repository",
		"image.pullPolicy=Sometimes":           "pullPolicy",
		"ports.health=70000":                   "health",
		"config.lifecycle.drain_interval=9s":   "drain_interval follows from drainSeconds: set that",
		"config.lifecycle.shutdown_grace=9s":   "shutdown_grace follows from shutdownSeconds: set that",
		"config.lifecycle.health_addr=:9":      "health_addr follows from the health port: set that",
		"config.lifecycle.termination_grace=1": "termination_grace follows from drainSeconds and shutdownSeconds",
		"service.nodePort=30080":               "service.nodePort needs service.type NodePort or LoadBalancer",
		"extraPorts[0].name=grpc,extraPorts[0].port=9090,extraPorts[0].nodePort=30090": "the nodePort of grpc in extraPorts needs service.type NodePort or LoadBalancer",
		"config.lifecycle.drain_readiness=up":                                          "drain_readiness",
		"service.externalTrafficPolicy=Near":                                           "externalTrafficPolicy",
		"serviceMonitor.interval=often":                                                "interval",
		"kubernetesAPI.enabled=maybe":                                                  "enabled",
		"kubernetesAPI.lease=a/b":                                                      "lease",
		"kubernetesAPI.evictions=often":                                                "evictions",
		"rolloutGate.prometheus=prometheus:9090":                                       "prometheus",
		"rolloutGate.selector={job=web}":                                               "selector",
		"bus.enabled=true":                                                             "seedSecret",
		"bus.nkey=SUABC":                                                               "nkey", // a seed in place of a public key
		"bus.url=nats://ada:secret@nats":                                               "url",
	} {
		if out, err := output(t, tool(t, "helm"), chartArgs([]string{set})...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: error %v, want one that names %s\n%.200s", set, err, want, out)
		}
	}
}

// TestPermissionsAreOffAndMinimal: without a word a pod has neither a token nor a
// permission, and with one it has the rules of its features and no others.
func TestPermissionsAreOffAndMinimal(t *testing.T) {
	base := []string{`[discovery.k8s.io] [endpointslices] [] [list watch]`, `[] [pods] [] [get watch]`}
	for name, tt := range map[string]struct {
		manifest string
		rules    []string
	}{
		"chart":              {chart(t), nil},
		"chart, window":      {chart(t, "kubernetesAPI.enabled=true"), base},
		"chart, not enabled": {chart(t, "kubernetesAPI.lease=sync"), nil},
		"chart, all": {chart(t, "kubernetesAPI.enabled=true", "kubernetesAPI.lease=sync"), append(slices.Clone(base),
			`[coordination.k8s.io] [leases] [] [create]`, `[coordination.k8s.io] [leases] [sync] [get update]`)},
		"chart, evictions": {chart(t, "kubernetesAPI.enabled=true", "kubernetesAPI.evictions=true"), append(slices.Clone(base),
			`[lifecycle.k8s.io] [evictions] [] [list watch]`, `[lifecycle.k8s.io] [evictions/status] [] [patch]`)},
		"chart, evictions not enabled": {chart(t, "kubernetesAPI.evictions=true", "kubernetesAPI.evictionPolicy=true"), nil},
		"base":                         {kustomize(t, "base"), nil},
		"component":                    {withComponent(t), base},
	} {
		t.Run(name, func(t *testing.T) {
			var rules []string
			for _, o := range objects(t, tt.manifest) {
				if o.Kind == "Role" {
					rules = permissions(t, o)
				}
			}
			if !slices.Equal(rules, tt.rules) {
				t.Errorf("the rules are %v, want %v", rules, tt.rules)
			}
			if token := strings.Contains(tt.manifest, "automountServiceAccountToken: true"); token != (tt.rules != nil) {
				t.Errorf("the pods have a token: %v", token)
			}
			for _, want := range []string{"evictionResponders: [{name: lifecycle.pleme.io/app, priority: 20000}]", "SERVICE_KUBE_EVICTIONS"} {
				if strings.Contains(tt.manifest, want) != (name == "chart, evictions") {
					t.Errorf("%q is there or is missing", want)
				}
			}
			for _, want := range []string{"SERVICE_KUBE", "fieldPath: metadata.name", "port: 6443"} {
				if strings.Contains(tt.manifest, want) != (tt.rules != nil) {
					t.Errorf("%q is there or is missing", want)
				}
			}
		})
	}
}

// permissions decodes the rules of a Role with only the used fields, and refuses others.
func permissions(t *testing.T, o object) (rules []string) {
	t.Helper()
	for _, rule := range o.Rules {
		data, err := yaml.Marshal(rule)
		if err != nil {
			t.Fatal(err)
		}
		var r struct {
			APIGroups     []string `yaml:"apiGroups"`
			Resources     []string
			ResourceNames []string `yaml:"resourceNames"`
			Verbs         []string
		}
		d := yaml.NewDecoder(bytes.NewReader(data))
		d.KnownFields(true)
		if err := d.Decode(&r); err != nil {
			t.Error(err)
		}
		rules = append(rules, fmt.Sprint(r.APIGroups, r.Resources, r.ResourceNames, r.Verbs))
	}
	return rules
}

// withComponent renders the base with the component that asks the Kubernetes API.
func withComponent(t *testing.T) string {
	t.Helper()
	// Kustomize wants a relative path, and nothing outside of it.
	dir, err := os.MkdirTemp("kustomize", "test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [../base]\ncomponents: [../components/kubernetes-api]\n"
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kustomize(t, filepath.Base(dir))
}

func TestComponentIsClean(t *testing.T) { mustBeClean(t, withComponent(t)) }
