package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/vet"
)

// company builds the chart of the example company as its users do: beside the library, with
// helm dependency build. It needs no network. The function that it returns renders the chart.
func company(t *testing.T) func(set ...string) (manifest string, err error) {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{"lifecycle", "company-example"} {
		if err := os.CopyFS(filepath.Join(folder, name), os.DirFS(filepath.Join("helm", name))); err != nil {
			t.Fatal(err)
		}
	}
	chart := filepath.Join(folder, "company-example")
	must(t, tool(t, "helm"), "dependency", "build", chart)
	return func(set ...string) (string, error) {
		args := []string{"template", "shop", chart, "--namespace", "shop"}
		for _, s := range set {
			args = append(args, "--set", s)
		}
		return output(t, tool(t, "helm"), args...)
	}
}

// TestCompanyChart: a chart that includes the library's templates has a stop that vet finds
// nothing wrong with, for a program that takes the root context and for one with a map.
func TestCompanyChart(t *testing.T) {
	manifest, err := company(t)()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range (vet.Checker{Config: lifecycle.Config{}}).Check(vet.File{Name: "company.yaml", Data: []byte(manifest)}).Findings {
		t.Errorf("line %d: %s: %s; %s", f.Line, f.Rule, f.Reason, f.Fix)
	}
	pod, main := "spec/template/spec/", "spec/template/spec/containers/0/"
	web := []string{"80", "ORDERS_DB_HOST", "ORDERS_LIFECYCLE_DRAIN_INTERVAL", "15s", "60s", "80s", ":8081", "metadata.name"}
	if got := fields(t, manifest, "Deployment/orders-web", pod+"terminationGracePeriodSeconds", main+"env/0/name", main+"env/1/name", main+"env/1/value", main+"env/2/value", main+"env/3/value", main+"env/4/value", main+"env/5/valueFrom/fieldRef/fieldPath"); !slices.Equal(got, web) {
		t.Errorf("web has %v, want %v", got, web)
	}
	want := []string{"128", "120s", "ORDERS_LIFECYCLE_UNIT_SLICE", "90s", "1"}
	if got := fields(t, manifest, "Deployment/orders-worker", pod+"terminationGracePeriodSeconds", main+"env/2/value", main+"env/5/name", main+"env/5/value", main+"readinessProbe/failureThreshold"); !slices.Equal(got, want) {
		t.Errorf("worker has %v, want %v", got, want)
	}
	if file := fields(t, manifest, "ConfigMap", "data/orders.yaml")[0]; !strings.Contains(file, "linger: 8s") {
		t.Errorf("the file of web is\n%s", file)
	}
	var rules []string
	for _, o := range objects(t, manifest) {
		if o.Kind == "Role" {
			rules = permissions(t, o)
		}
	}
	if want := []string{
		`[discovery.k8s.io] [endpointslices] [] [list watch]`, `[] [pods] [] [get watch]`,
		`[coordination.k8s.io] [leases] [] [create]`, `[coordination.k8s.io] [leases] [orders] [get update]`,
	}; !slices.Equal(rules, want) {
		t.Errorf("the rules are %v, want %v", rules, want)
	}
}

// TestCompanyChartFollowsTheLibrary: its values reach the templates, and the library's
// schema and rules refuse bad ones.
func TestCompanyChartFollowsTheLibrary(t *testing.T) {
	render := company(t)
	manifest, err := render("lifecycle.preStopSeconds=4", "lifecycle.scrape=true", "lifecycle.healthPort=9001")
	if err != nil {
		t.Fatal(err)
	}
	main := "spec/template/spec/containers/0/"
	got := fields(t, manifest, "Deployment/orders-web", "spec/template/spec/terminationGracePeriodSeconds", main+"lifecycle/preStop/sleep/seconds", main+"env/4/name", main+"env/4/value", main+"env/5/value", main+"ports/1/containerPort", "spec/template/metadata/annotations/prometheus.io|port")
	if want := []string{"84", "4", "ORDERS_LIFECYCLE_PRE_STOP", "4s", ":9001", "9001", `"9001"`}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for set, want := range map[string]string{
		"lifecycle.drainSeconds=2":              "/drainSeconds",
		"lifecycle.drainSecond=5":               "drainSecond",
		"lifecycle.config.lingr=5s":             "lingr",
		"lifecycle.config.drain_interval=5s":    "drain_interval",
		"lifecycle.config.linger=60s":           "linger + unit_slice + hook_slice is 60s + 5s + 5s = 70s",
		"worker.lifecycle.config.unit_slice=3m": "linger + unit_slice + hook_slice is 5s + 180s + 5s = 190s, and has to fit into shutdown_grace, which is 120s",
		"worker.lifecycle.config.drain_max=5":   "drain_max is 5, want a duration",
	} {
		if _, err := render(set); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: error %v, want one that has %q", set, err, want)
		}
	}
}
