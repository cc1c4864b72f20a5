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

// with renders the chart with a file of values and these values.
func with(t *testing.T, values string, set ...string) string {
	t.Helper()
	return must(t, tool(t, "helm"), append(chartArgs(set), "--values", values)...)
}

// fields returns the values at these paths of the first object of that KIND or KIND/NAME:
// the keys of maps and the numbers of lists.
func fields(t *testing.T, manifest, kind string, paths ...string) (values []string) {
	t.Helper()
	for doc := range strings.SplitSeq(manifest, "---\n") {
		var object map[string]any
		if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
			t.Fatal(err)
		}
		meta, _ := object["metadata"].(map[string]any)
		if kind != object["kind"] && kind != fmt.Sprint(object["kind"], "/", meta["name"]) {
			continue
		}
		for _, path := range paths {
			var at any = object
			for step := range strings.SplitSeq(path, "/") {
				switch below := at.(type) {
				case map[string]any:
					at = below[strings.ReplaceAll(step, "|", "/")]
				case []any:
					var i int
					if _, err := fmt.Sscan(step, &i); err != nil || i >= len(below) {
						t.Fatalf("%s has no %s", kind, path)
					}
					at = below[i]
				default:
					at = nil
				}
			}
			text, err := yaml.Marshal(at)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, strings.TrimSpace(string(text)))
		}
		return values
	}
	t.Fatalf("there is no %s in\n%s", kind, manifest)
	return nil
}

// route decodes an HTTPRoute with only the used fields, and refuses others.
func route(t *testing.T, o object) {
	t.Helper()
	data, err := yaml.Marshal(&o.Spec)
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		ParentRefs []struct{ Name, Namespace, SectionName string } `yaml:"parentRefs"`
		Hostnames  []string
		Rules      []struct {
			Matches  []struct{ Path struct{ Type, Value string } }
			Timeouts struct{ Request string }
			Filters  []map[string]any
			Backends []struct {
				Name string
				Port int
			} `yaml:"backendRefs"`
		}
	}
	// sectionName is not in lower case.
	data = bytes.ReplaceAll(data, []byte("sectionName"), []byte("sectionname"))
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&spec); err != nil || o.APIVersion != "gateway.networking.k8s.io/v1" {
		t.Errorf("HTTPRoute of %s: %v", o.APIVersion, err)
	}
	for _, rule := range spec.Rules {
		if (len(rule.Backends) == 0) != (len(rule.Filters) > 0) { // a redirect has no backend
			t.Errorf("a rule leads nowhere: %+v", rule)
		}
	}
}

const everything = "testdata/everything.yaml"

// TestEverythingIsClean: with all that the chart can render, its objects have only fields
// of the Kubernetes API, and vet finds nothing.
func TestEverythingIsClean(t *testing.T) {
	manifest := with(t, everything)
	mustBeClean(t, manifest)
	var kinds []string
	for _, o := range objects(t, manifest) {
		kinds = append(kinds, o.Kind)
	}
	slices.Sort(kinds)
	const want = "AnalysisTemplate ConfigMap ConfigMap Deployment HTTPRoute HorizontalPodAutoscaler Ingress MetricTemplate NetworkPolicy PodDisruptionBudget " +
		"Role RoleBinding Service Service ServiceAccount ServiceMonitor ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding"
	if got := strings.Join(kinds, " "); got != want {
		t.Errorf("it has %s, want %s", got, want)
	}
}

// TestOptionsReachTheirObjects: what a value says stands where Kubernetes looks for it.
func TestOptionsReachTheirObjects(t *testing.T) {
	manifest := with(t, everything)
	pod, main := "spec/template/spec/", "spec/template/spec/containers/0/"
	for _, tt := range []struct{ kind, path, want string }{
		{"Deployment", "spec/replicas", "null"},
		{"Deployment", "metadata/name", "shop-orders"},
		{"Deployment", "metadata/labels/team", "shop"},
		{"Deployment", "spec/selector/matchLabels", "app.kubernetes.io/instance: web\napp.kubernetes.io/name: orders"},
		{"Deployment", "spec/strategy/rollingUpdate/maxSurge", "25%"},
		{"Deployment", "spec/template/metadata/labels/mesh", `"on"`},
		{"Deployment", "spec/template/metadata/annotations/sidecar.istio.io|inject", `"false"`},
		{"Deployment", "spec/template/metadata/annotations/prometheus.io|port", `"9001"`},
		{"Deployment", pod + "imagePullSecrets/0/name", "registry"},
		{"Deployment", pod + "priorityClassName", "shop-critical"},
		{"Deployment", pod + "serviceAccountName", "orders"},
		{"Deployment", pod + "affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions/0/key", "kubernetes.io/arch"},
		{"Deployment", pod + "topologySpreadConstraints/1/topologyKey", "topology.kubernetes.io/zone"},
		{"Deployment", pod + "initContainers/0/restartPolicy", "Always"},
		{"Deployment", pod + "terminationGracePeriodSeconds", "65"}, // drain_max 20 + 40 + 5
		{"Deployment", pod + "evictionResponders/0/name", "lifecycle.pleme.io/app"},
		{"AnalysisTemplate", "spec/metrics/0/count", "60"},
		{"Deployment", pod + "volumes/2/secret/secretName", "orders-tls"},
		{"Deployment", pod + "volumes/3/persistentVolumeClaim/claimName", "orders"},
		{"Deployment", main + "image", "registry.example/orders@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"},
		{"Deployment", main + "args", "- -config=/etc/service/orders.yaml\n- -poll=2s"},
		{"Deployment", main + "env/8/valueFrom/secretKeyRef/name", "orders-db"},
		{"Deployment", main + "envFrom/0/secretRef/name", "orders-env"},
		{"Deployment", main + "terminationMessagePolicy", "FallbackToLogsOnError"},
		{"Deployment", main + "ports/2", "containerPort: 9090\nname: grpc"},
		{"Deployment", main + "volumeMounts/2/mountPath", "/etc/secrets/tls"},
		{"Deployment", main + "volumeMounts/3/mountPath", "/data"},
		{"ServiceAccount", "metadata/annotations/iam.example|role", "orders"},
		{"HorizontalPodAutoscaler", "spec/scaleTargetRef/name", "shop-orders"},
		{"HorizontalPodAutoscaler", "spec/minReplicas", "3"},
		{"HorizontalPodAutoscaler", "spec/metrics/2/pods/metric/name", "requests"},
		{"HorizontalPodAutoscaler", "spec/behavior/scaleDown/stabilizationWindowSeconds", "600"},
		{"Service", "spec/ports/1", "name: grpc\nport: 9090\ntargetPort: grpc"},
		{"Service", "metadata/annotations/lb.example|internal", `"true"`},
		{"Ingress", "spec/ingressClassName", "nginx"},
		{"Ingress", "spec/rules/0/http/paths/1/backend/service", "name: shop-orders\nport:\n    name: http"},
		{"Ingress", "spec/tls/0/secretName", "orders-cert"},
		{"HTTPRoute", "spec/rules/0/backendRefs/0", "name: shop-orders\nport: 8000"},
		{"HTTPRoute", "spec/rules/0/timeouts/request", "10s"},
		{"HTTPRoute", "spec/rules/1/backendRefs/0/name", "old-orders"},
		{"NetworkPolicy", "spec/egress/2/ports/0/port", "5432"},
		{"NetworkPolicy", "spec/ingress/2/from/0/podSelector/matchLabels/app", "dashboard"},
	} {
		if got := fields(t, manifest, tt.kind, tt.path)[0]; got != tt.want {
			t.Errorf("%s %s is\n%s\nwant\n%s", tt.kind, tt.path, got, tt.want)
		}
	}
	if name := fields(t, chart(t, "nameOverride=api"), "Deployment", "metadata/name")[0]; name != "web-api" {
		t.Errorf("with nameOverride the name is %s", name)
	}
	if name := fields(t, chart(t, "serviceAccount.create=false"), "Deployment", pod+"serviceAccountName")[0]; name != "default" {
		t.Errorf("without a service account of its own the pod has %s", name)
	}
	if port := fields(t, chart(t, "service.type=NodePort", "service.nodePort=30080"), "Service", "spec/ports/0/nodePort")[0]; port != "30080" {
		t.Errorf("with service.nodePort the port of the nodes is %s", port)
	}
	extra := chart(t, "service.type=NodePort", "extraPorts[0].name=grpc", "extraPorts[0].port=9090", "extraPorts[0].nodePort=30090")
	if port := fields(t, extra, "Service", "spec/ports/1/nodePort")[0]; port != "30090" {
		t.Errorf("with the nodePort of an extra port the port of the nodes is %s", port)
	}
	if keys := fields(t, chart(t), "Deployment", pod+"topologySpreadConstraints/0/topologyKey", pod+"topologySpreadConstraints"); keys[0] != "kubernetes.io/hostname" || strings.Contains(keys[1], "zone") {
		t.Errorf("the pods spread over %v", keys)
	}
}

// TestChartRefusesContradictions: what would be overwritten, or refused by lifecycle.New
// when the pod starts, is refused here.
func TestChartRefusesContradictions(t *testing.T) {
	for set, want := range map[string]string{
		"config.lifecycle.linger=60s":                                   "linger + unit_slice + hook_slice is 60s + 5s + 5s = 70s, and has to fit into shutdown_grace, which is 20s",
		"config.lifecycle.accept_quiet=8s":                              "accept_quiet is 8s, longer than accept_max",
		"config.lifecycle.linger=5":                                     "/config/lifecycle/linger",
		"config.lifecycle.lingr=5s":                                     "lingr",
		"config.addr=:9090":                                             `config.addr is ":9090", and ports.http is 8080`,
		"config.addr=127.0.0.1:8080":                                    "only the pod itself",
		"addrKey=listen,config.listen=:1":                               `config.listen is ":1"`,
		"env[0].name=SERVICE_LIFECYCLE_LINGER,env[0].value=60s":         "SERVICE_LIFECYCLE_LINGER",
		"env[0].name=SERVICE_LIFECYCLE_DRAIN_INTERVAL,env[0].value=60s": "SERVICE_LIFECYCLE_DRAIN_INTERVAL",
		"env[0].name=SERVICE_ADDR,env[0].value=:1":                      "set ports.http",
		"args={-lifecycle.linger=60s}":                                  "args has -lifecycle.linger=60s",
		"args={--lifecycle.drain-interval,60s}":                         "args has --lifecycle.drain-interval",
		"args={-config=/tmp/other.yaml}":                                "set configFile",
		"args={-addr=:1}":                                               "set ports.http",
		"liveKeys={lifecycle.name}":                                     "liveKeys",
		"labels.app\\.kubernetes\\.io/name=mine":                        "labels has app.kubernetes.io/name, a label that the chart sets: remove it",
		"podLabels.helm\\.sh/chart=mine":                                "podLabels has helm.sh/chart, a label that the chart sets",
		"labels.team=the shop":                                          "at '/labels/team': 'the shop' does not match pattern",
		"labels.team=1":                                                 "at '/labels/team': got number, want string",
		"labels=shop":                                                   "at '/labels': got string, want object",
		"autoscaling.enabled=true,autoscaling.cpuPercent=null":          "autoscaling has no metric: set autoscaling.cpuPercent, memoryPercent or metrics",
		"command={/lifecycle-run}":                                      "set configFile to lifecycle-run.yaml",
		"configFile=lifecycle-run.yaml,config.prxy=x":                   "config.prxy is not a key of the service: did you mean proxy?",
		"configFile=lifecycle-run.yaml,config.backoff.mx=1s":            "config.backoff.mx is not a key of the service: did you mean max?",
		"configFile=lifecycle-run.yaml":                                 "config.proxy is not set, so the program itself takes the requests: set addrKey",
		"configFile=lifecycle-run.yaml,config.proxy=http://a:8080":      "the proxy itself listens on ports.http, which is 8080: set ports.http to another port",
		"lifecycle.drainSeconds=9":                                      "drainSeconds",
		"autoscaling.enabled=true,autoscaling.maxReplicas=1":            "autoscaling.maxReplicas is 1, below minReplicas, which is 2",
		"image.digest=sha256:1":                                         "digest",
		"configFile=../etc/passwd":                                      "configFile",
		"configFile=orders.json":                                        "configFile", // the file is YAML
	} {
		if out, err := output(t, tool(t, "helm"), chartArgs([]string{set})...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: error %v, want one that has %q\n%.200s", set, err, want, out)
		}
	}
	for name, set := range map[string][]string{
		"the same port": {"config.addr=0.0.0.0:8080"},
		"another key":   {"addrKey=listen"},
		"a proxy in args": {
			"configFile=lifecycle-run.yaml", "command={/lifecycle-run}", "args={--proxy=http://127.0.0.1:8000,--,app}",
		},
		"a proxy, no key": {
			"addrKey=null", "configFile=lifecycle-run.yaml", "command={/lifecycle-run}", "args={--,app}", "config.proxy=http://127.0.0.1:8000",
		},
		"no key":             {"addrKey=", "config.addr=unix:/run/web"},
		"a longer stop":      {"shutdownSeconds=90", "config.lifecycle.linger=60s"},
		"a secret":           {"env[0].name=SERVICE_LIFECYCLE_ADMIN_TOKEN", "env[0].valueFrom.secretKeyRef.name=a", "env[0].valueFrom.secretKeyRef.key=b"},
		"a name of its own":  {"config.lifecycle.name=web"},
		"another file":       {"configFile=my-orders.yml"},
		"a flag":             {"args={-address-book=x,-poll=2s}"},
		"a readiness of own": {"config.lifecycle.drain_readiness=serving"},
		"nothing":            {"config=null", "podLabels=null", "podAnnotations=null", "labels=null", "args=null", "env=null", "liveKeys=null"},
	} {
		t.Run(name, func(t *testing.T) { mustBeClean(t, chart(t, set...)) })
	}
	for set, want := range map[string]string{
		"config.addr=0.0.0.0:8080":  "addr: 0.0.0.0:8080\n",
		"ports.http=9000":           "addr: :9000\n",
		"addrKey=listen":            "listen: :8080\n",
		"config.lifecycle.name=web": "name: web\n",
		"extraPorts[0].name=grpc,extraPorts[0].port=9090,extraPorts[0].addrKey=grpc_listen": "grpc_listen: :9090\n",
		"extraPorts[0].name=grpc,extraPorts[0].port=9090,config.grpc_addr=0.0.0.0:9090":     "grpc_addr: 0.0.0.0:9090\n",
	} {
		if file := fields(t, chart(t, set), "ConfigMap", "data/service.yaml")[0]; !strings.Contains(file+"\n", want) {
			t.Errorf("--set %s: the file is\n%s", set, file)
		}
	}
}

// TestPortsAndVolumesAreTheirOwn: the API server refuses two volumes of one name, and the
// second listener of a port ends the service as it starts.
func TestPortsAndVolumesAreTheirOwn(t *testing.T) {
	for set, want := range map[string]string{
		"ports.http=8081": "ports.health is 8081, as ports.http is",
		"extraPorts[0].name=grpc,extraPorts[0].port=8080":                                                      "the port of grpc in extraPorts is 8080, as ports.http is",
		"extraPorts[0].name=grpc,extraPorts[0].port=9090,config.grpc_addr=:9091":                               "config.grpc_addr is \":9091\", and the port of grpc in extraPorts is 9090",
		"extraPorts[0].name=grpc,extraPorts[0].port=9090,extraPorts[0].addrKey=g,config.g=127.0.0.1:9090":      "an address that only the pod itself reaches",
		"extraPorts[0].name=grpc,extraPorts[0].port=9090,extraPorts[0].addrKey=g,env[0].name=SERVICE_G":        "env has SERVICE_G: set the port of grpc in extraPorts",
		"extraPorts[0].name=grpc,extraPorts[0].port=9090,extraPorts[0].addrKey=grpc_addr,args={--grpc-addr=x}": "args has --grpc-addr=x: set the port of grpc in extraPorts",
		"config.lifecycle.lingr=1s":         "lingr is not a key of the configuration of lifecycle: did you mean linger?",
		"config.lifecycle.drainInterval=1s": "drainInterval is not a key of the configuration of lifecycle: did you mean drain_interval?",
		"config.lifecycle.color=red":        "color is not a key of the configuration of lifecycle\n",
		"volumes[0].name=config":            "volumes has config, a name that the chart uses",
		"volumes[0].name=secret-db,secrets[0].name=db,secrets[0].mountPath=/db": "volumes has secret-db, a name that the chart uses",
	} {
		if _, err := output(t, tool(t, "helm"), chartArgs([]string{set})...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: error %v, want one that has %q", set, err, want)
		}
	}
	twice := chart(t, "secrets[0].name=db", "secrets[0].mountPath=/a", "secrets[1].name=db", "secrets[1].mountPath=/b")
	if volumes := fields(t, twice, "Deployment", "spec/template/spec/volumes")[0]; strings.Count(volumes, "name: secret-db") != 1 {
		t.Errorf("a Secret that is mounted in two places has the volumes\n%s", volumes)
	}
}

// TestChangesThatAreNotLiveReplaceThePods: a change of a live key reaches the running pods
// through the ConfigMap, and any other changes the pod template.
func TestChangesThatAreNotLiveReplaceThePods(t *testing.T) {
	template := func(set ...string) (pods, file string) {
		manifest := chart(t, append([]string{"config.log=json", "config.limits.rate=1", "config.limits.burst=1", "liveKeys={log,limits.rate,none.such}"}, set...)...)
		return fields(t, manifest, "Deployment", "spec/template")[0], fields(t, manifest, "ConfigMap", "data/service.yaml")[0]
	}
	pods, file := template()
	for set, replaced := range map[string]bool{
		"config.lifecycle.linger=1s":            false,
		"config.lifecycle.exit_on_signal=true":  false,
		"config.lifecycle.drain_readiness=down": false,
		"config.log=text":                       false,
		"config.limits.rate=2":                  false,
		"config.limits.burst=2":                 true,
		"config.poll=2s":                        true,
		"config.lifecycle.name=web":             true,
		"config.lifecycle.statusz_off=true":     true,
		"config.lifecycle.start_timeout=1m":     true,
		"config.lifecycle.drain_max=10s":        true, // it is live, and the pod's grace is not
		"ports.health=9001":                     true,
		"drainSeconds=6":                        true,
	} {
		changedPods, changedFile := template(set)
		if (changedPods != pods) != replaced {
			t.Errorf("--set %s: the pod template changes: %v, want %v", set, !replaced, replaced)
		}
		if strings.HasPrefix(set, "config") && changedFile == file && set != "config.lifecycle.drain_readiness=down" {
			t.Errorf("--set %s does not change the file", set)
		}
	}
}

// TestAutoscalingDecidesAboutReplicas: the autoscaler's minimum takes the place of
// replicas everywhere.
func TestAutoscalingDecidesAboutReplicas(t *testing.T) {
	one := chart(t, "autoscaling.enabled=true", "autoscaling.minReplicas=1")
	if got := fields(t, one, "Deployment", "spec/replicas")[0]; got != "null" {
		t.Errorf("replicas is %s beside an autoscaler, and each upgrade would set it", got)
	}
	if file := fields(t, one, "ConfigMap", "data/service.yaml")[0]; !strings.Contains(file, "drain_readiness: serving") || strings.Contains(one, "kind: PodDisruptionBudget") {
		t.Errorf("one pod at least, and the chart takes it for several:\n%s", file)
	}
	two := chart(t, "autoscaling.enabled=true", "replicas=1")
	if file := fields(t, two, "ConfigMap", "data/service.yaml")[0]; !strings.Contains(file, "drain_readiness: down") || !strings.Contains(two, "kind: PodDisruptionBudget") {
		t.Errorf("two pods at least, and the chart takes them for one:\n%s", file)
	}
	mustBeClean(t, two)
}

// TestChartHasATest: helm test asks the Service, and its pod meets the restricted standard.
// Nothing routes requests to it.
func TestChartHasATest(t *testing.T) {
	render := func(set ...string) string {
		return must(t, tool(t, "helm"), slices.DeleteFunc(chartArgs(set), func(arg string) bool { return arg == "--skip-tests" })...)
	}
	manifest := render()
	for _, f := range findings(t, manifest) {
		t.Errorf("vet takes the test for a part of the service: %s: %s", f.Rule, f.Reason)
	}
	got := fields(t, manifest, "Pod", "metadata/annotations/helm.sh|hook", "metadata/labels/app.kubernetes.io|name", "spec/containers/0/command/4", "spec/securityContext/runAsNonRoot", "spec/containers/0/securityContext/capabilities/drop/0")
	if want := []string{"test", "lifecycle-service-test", "web-lifecycle-service", "true", "ALL"}; !slices.Equal(got, want) {
		t.Errorf("the test is %v, want %v", got, want)
	}
	if got := fields(t, render("tests.path=/work"), "Pod", "spec/containers/0/command/6")[0]; got != "http://web-lifecycle-service:80/work" {
		t.Errorf("it asks %s", got)
	}
	if manifest := render("tests.enabled=false"); strings.Contains(manifest, "kind: Pod\n") {
		t.Error("a test that is off is rendered")
	}
}

// TestPackedChart: packed and unpacked charts render the same, and the notes too.
func TestPackedChart(t *testing.T) {
	folder := t.TempDir()
	must(t, tool(t, "helm"), "package", chartFolder, "--destination", folder)
	found, err := filepath.Glob(filepath.Join(folder, "lifecycle-service-*.tgz"))
	if err != nil || len(found) != 1 {
		t.Fatalf("helm package writes %v: %v", found, err)
	}
	packed := found[0]
	if got := must(t, tool(t, "helm"), "template", "web", packed, "--skip-tests"); got != chart(t) {
		t.Errorf("the packed chart renders something else:\n%s", got)
	}
	if err := os.WriteFile(filepath.Join(folder, "none"), []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	notes := must(t, tool(t, "helm"), "install", "web", packed, "--dry-run=client", "--kubeconfig", filepath.Join(folder, "none"), "--set", "drainSeconds=15", "--set", "config.lifecycle.drain_max=20s")
	for _, want := range []string{"A stop takes at most 85 s", "20 s  everything is served, readiness is down", "60 s  requests in flight", `jsonpath='{.data.service\.yaml}'`} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes lack %q:\n%s", want, notes[max(0, len(notes)-1500):])
		}
	}
}
