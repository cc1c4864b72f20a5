package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/vet"
	"go.yaml.in/yaml/v3"
)

// TestTextsStayTexts: a name that YAML takes for a number or a truth value, such as a
// release that is named after a commit, is a text in every object.
func TestTextsStayTexts(t *testing.T) {
	texts := []string{"nameOverride=12", "serviceAccount.name=123", "priorityClassName=123", "networkPolicy.monitoringNamespace=on", "ingress.className=1", "bus.seedSecret=1", "bus.operatorsConfigMap=2",
		"secrets[0].name=12", "secrets[0].mountPath=/a\\, b: {c} # d"}
	more := []string{"kubernetesAPI.lease=lease", "ingress.enabled=true", "bus.enabled=true", "bus.nkey=" + nkey, "autoscaling.enabled=true", "kubernetesAPI.enabled=true", "httpRoute.enabled=true", "serviceMonitor.enabled=true"}
	for _, release := range []string{"1234567", "1e10", "true", "null", "0x10", "no", "web"} {
		args := []string{"template", release, chartFolder}
		for _, s := range append(texts, "fullnameOverride="+release) {
			args = append(args, "--set-string", s)
		}
		for _, s := range more {
			args = append(args, "--set", s)
		}
		manifest := must(t, tool(t, "helm"), args...)
		for _, f := range (vet.Checker{}).Check(vet.File{Name: release, Data: []byte(manifest)}).Findings {
			t.Errorf("%s:%d: %s: %s", release, f.Line, f.Rule, f.Reason)
		}
		for _, o := range objects(t, manifest) {
			kind := o.Kind + "/" + o.Metadata.Name
			var got any
			if err := yaml.Unmarshal([]byte(fields(t, manifest, kind, "metadata/labels/app.kubernetes.io|instance")[0]), &got); err != nil || got != release {
				t.Errorf("%s has the instance %v, want the text %q: %v", kind, got, release, err)
			}
		}
		if got := fields(t, manifest, "Deployment", "spec/template/spec/containers/0/volumeMounts/2/mountPath")[0]; !strings.Contains(got, "/a, b: {c} # d") {
			t.Errorf("the Secret is mounted at %s", got)
		}
	}
}

// TestChartBesideOthers: a chart above this one may have templates with the names that most
// charts give to theirs, and this chart twice.
func TestChartBesideOthers(t *testing.T) {
	folder := t.TempDir()
	if err := os.CopyFS(filepath.Join(folder, "charts", "lifecycle-service"), os.DirFS(chartFolder)); err != nil {
		t.Fatal(err)
	}
	var helpers strings.Builder
	for _, name := range []string{"name", "fullname", "labels", "selector", "image", "env", "args", "ports", "volumes", "config", "replicas", "serviceAccount", "lifecycle"} {
		helpers.WriteString("{{- define \"app." + name + "\" -}}shop: {{ .Values.shop }}{{- end }}\n")
	}
	write(t, folder, map[string]string{
		"Chart.yaml":             "apiVersion: v2\nname: shop\nversion: 0.1.0\ndependencies:\n  - {name: lifecycle-service, version: 0.1.0, alias: api}\n  - {name: lifecycle-service, version: 0.1.0, alias: web}\n",
		"values.yaml":            "global: {region: eu}\napi: {drainSeconds: 15}\nweb: {replicas: 3}\n",
		"templates/_helpers.tpl": helpers.String(),
	})
	manifest := must(t, tool(t, "helm"), "template", "r", folder, "--skip-tests")
	for kind, want := range map[string]string{"Deployment/r-api": "80", "Deployment/r-web": "30"} {
		if got := fields(t, manifest, kind, "spec/template/spec/terminationGracePeriodSeconds")[0]; got != want {
			t.Errorf("%s has the grace %s, want %s", kind, got, want)
		}
	}
	for _, f := range (vet.Checker{}).Check(vet.File{Name: "shop", Data: []byte(manifest)}).Findings {
		t.Errorf("line %d: %s: %s", f.Line, f.Rule, f.Reason)
	}
}

// TestChartSaysWhatIsMissing: a null takes a default away. The error names each value that is missing.
func TestChartSaysWhatIsMissing(t *testing.T) {
	for _, values := range [][]string{
		{"autoscaling", "configFile", "topologySpread", "serviceAccount", "service", "networkPolicy", "serviceMonitor", "kubernetesAPI", "bus", "tests", "image"},
		{
			"autoscaling.enabled", "topologySpread.zones", "serviceAccount.create", "service.type", "service.port",
			"networkPolicy.enabled", "networkPolicy.monitoringNamespace",
			"serviceMonitor.enabled", "serviceMonitor.interval", "bus.enabled", "bus.url", "tests.image", "ports.http",
		},
	} {
		_, err := output(t, tool(t, "helm"), chartArgs([]string{strings.Join(values, "=null,") + "=null"})...)
		for _, value := range values {
			parent, name := "", value
			if above, below, nested := strings.Cut(value, "."); nested {
				parent, name = "/"+above, below
			}
			want := regexp.MustCompile(`at '` + parent + `': missing propert(y|ies) .*'` + name + `'`)
			if err == nil || !want.MatchString(err.Error()) {
				t.Errorf("--set %s=null: %v", value, err)
			}
		}
	}
	for _, value := range []string{"service.externalTrafficPolicy", "ingress", "httpRoute", "networkPolicy.egress", "image.tag", "maxSurge", "resources", "kubernetesAPI.enabled", "tests.enabled", "tests.path", "autoscaling.cpuPercent"} {
		mustBeClean(t, chart(t, value+"=null"))
	}
}

// TestImageHasOneTag: the tag of an image is a value of its own, beside the repository.
func TestImageHasOneTag(t *testing.T) {
	for _, repository := range []string{"registry.example/web:v3", "web:v3", "registry.example:5000/web:v3", "web@sha256:0123"} {
		if _, err := output(t, tool(t, "helm"), chartArgs([]string{"image.repository=" + repository})...); err == nil || !strings.Contains(err.Error(), "image.repository is "+repository+", with a tag or a digest: set image.tag or image.digest") {
			t.Errorf("%s: %v", repository, err)
		}
	}
	if got := fields(t, chart(t, "image.repository=registry.example:5000/web"), "Deployment", "spec/template/spec/containers/0/image")[0]; got != "registry.example:5000/web:0.1.0" {
		t.Errorf("the image is %s", got)
	}
}

// TestLastScrapeFitsAnyInterval: report_slice is the interval of the scrapes and 2 s, in
// whole seconds.
func TestLastScrapeFitsAnyInterval(t *testing.T) {
	for interval, want := range map[string]string{"15s": "17s", "500ms": "3s", "1m": "62s"} {
		if file := fields(t, chart(t, "serviceMonitor.enabled=true", "serviceMonitor.interval="+interval), "ConfigMap", "data/service.yaml")[0]; !strings.Contains(file, "report_slice: "+want) {
			t.Errorf("%s: want %s in\n%s", interval, want, file)
		}
	}
}

// TestPortsOfTheService: the API server refuses two ports of a Service with one number or
// one name, and the name of a port that is a number. A rule of a route may be empty.
func TestPortsOfTheService(t *testing.T) {
	for set, want := range map[string]string{
		"extraPorts[0].name=grpc,extraPorts[0].port=80":                                         "the port of grpc in extraPorts is 80, as service.port is",
		"extraPorts[0].name=a,extraPorts[0].port=90,extraPorts[1].name=a,extraPorts[1].port=91": "extraPorts has a twice",
		"extraPorts[0].name=a--b,extraPorts[0].port=90":                                         "/extraPorts/0/name",
	} {
		if _, err := output(t, tool(t, "helm"), chartArgs([]string{set})...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: error %v, want one that has %q", set, err, want)
		}
	}
	if _, err := output(t, tool(t, "helm"), append(chartArgs([]string{"extraPorts[0].port=90"}), "--set-string", "extraPorts[0].name=90")...); err == nil || !strings.Contains(err.Error(), "/extraPorts/0/name") {
		t.Errorf("a port is named 90: %v", err)
	}
	manifest := must(t, tool(t, "helm"), append(chartArgs([]string{"httpRoute.enabled=true"}), "--set-json", `httpRoute.rules=[{},{"backendRefs":[]}]`)...)
	if got := fields(t, manifest, "HTTPRoute", "spec/rules/0/backendRefs/0/port", "spec/rules/1/backendRefs"); got[0] != "80" || got[1] != "[]" {
		t.Errorf("the rules lead to %v", got)
	}
}

// TestLibraryRefusesOtherTypes: a map of settings has no schema. The error says which setting
// has the wrong type, and a number is read in tens as it is written.
func TestLibraryRefusesOtherTypes(t *testing.T) {
	cases := []struct {
		settings map[string]any
		want     string
	}{
		{map[string]any{"config": []any{"linger"}}, "config is [linger], want a map"},
		{map[string]any{"config": "linger: 5s"}, "config is linger: 5s, want a map"},
		{map[string]any{"file": "a"}, "file is a, want a map"},
		{map[string]any{"kubernetesAPI": true}, "kubernetesAPI is true, want a map"},
		{map[string]any{"liveKeys": "log"}, "liveKeys is log, want a list"},
		{map[string]any{"scrape": "false"}, "scrape is false, want true or false without quotes"},
		{map[string]any{"envPrefix": "orders_lifecycle"}, "envPrefix is orders_lifecycle, want capital letters, digits and _"},
		{map[string]any{"drainSeconds": "015"}, "drainSeconds is 015, want a whole number from 3 to 600"},
		{map[string]any{"config": map[string]any{"drain_readiness": "up"}}, "drain_readiness is up, want down or serving"},
		{map[string]any{"config": map[string]any{"drain_wait": "maybe", "exit_on_signal": "yes"}}, "drain_wait is maybe, want auto or always or never\nexit_on_signal is yes, want true or false"},
		{map[string]any{"config": map[string]any{"memory_limit_ratio": 2}}, "memory_limit_ratio is 2, want at most 1"},
		{map[string]any{"config": map[string]any{"drain_readiness": nil, "exit_on_signal": false, "memory_limit_ratio": 0.9}}, ""},
		{map[string]any{"drainSeconds": "15", "scrape": false, "file": map[string]any{}, "config": nil}, ""},
	}
	var settings []any
	for _, c := range cases {
		settings = append(settings, c.settings)
	}
	out := rendered(t, "{{ range .Values.cases }}\n- {{ include \"lifecycle.problems\" . | toJson }}{{ end }}", map[string]any{"cases": settings})
	var got []string
	if err := yaml.Unmarshal([]byte(out), &got); err != nil || len(got) != len(cases) {
		t.Fatalf("%v: %s", err, out)
	}
	for i, c := range cases {
		if got[i] != c.want {
			t.Errorf("%v: %q, want %q", c.settings, got[i], c.want)
		}
	}
}

// TestVersionIsThatOfTheImage: the label says which version of the service runs, with the
// characters that a label may have.
func TestVersionIsThatOfTheImage(t *testing.T) {
	digest := "image.digest=sha256:" + strings.Repeat("0123456789abcdef", 4)
	for want, set := range map[string][]string{
		`0.1.0`:                 nil,
		`v3`:                    {"image.tag=v3"},
		`v4`:                    {"image.tag=v4", digest},
		`sha256-0123456789ab`:   {digest},
		strings.Repeat("a", 62): {"image.tag=_" + strings.Repeat("a", 62) + "." + strings.Repeat("b", 60)},
		`"12"`:                  {"image.tag=12"},
		`1.2.3_build`:           {"image.tag=1.2.3+build"},
	} {
		args := chartArgs(nil)
		for _, s := range set {
			args = append(args, "--set-string", s)
		}
		manifest := must(t, tool(t, "helm"), args...)
		for _, path := range []string{"metadata/labels/", "spec/template/metadata/labels/"} {
			if got := fields(t, manifest, "Deployment", path+"app.kubernetes.io|version")[0]; got != want {
				t.Errorf("%v: the version is %s, want %s", set, got, want)
			}
		}
	}
}
