package vet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/vet"
)

// worker is a second container that lifecycle runs, in the pod of the clean manifest.
func withWorker(lines string) string {
	text := strings.Replace(clean, "          image: example/web:1\n", "          image: example/web:1\n          env: [{name: WEB_LIFECYCLE_TERMINATION_GRACE, value: 30s}]\n", 1)
	return strings.Replace(text, "---\n", "        - name: worker\n          image: example/worker:1\n"+indent(10, lines)+
		"          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}\n---\n", 1)
}

// The grace is one for all containers of a pod: each one that lifecycle runs has to stop
// within it, and is asked by probes of its own.
func TestEveryContainerOfLifecycleIsCompared(t *testing.T) {
	const (
		long  = "env: [{name: WORKER_LIFECYCLE_SHUTDOWN_GRACE, value: 60s}, {name: WORKER_LIFECYCLE_HEALTH_ADDR, value: \":9081\"}]\n"
		short = "env: [{name: WORKER_LIFECYCLE_TERMINATION_GRACE, value: 30s}, {name: WORKER_LIFECYCLE_HEALTH_ADDR, value: \":9081\"}]\n"
		asks  = "startupProbe: {httpGet: {path: /startupz, port: 9081}}\nlivenessProbe: {httpGet: {path: /livez, port: 9081}}\nreadinessProbe: {httpGet: {path: /readyz, port: 9081}, periodSeconds: 2, failureThreshold: 1}\n"
	)
	for name, tt := range map[string]struct {
		checker vet.Checker
		text    string
		rules   string // besides sidecar-stops-first, of the worker
	}{
		"longer than the grace":  {text: withWorker(long + asks), rules: "grace-too-short"},
		"in time":                {text: withWorker(short + asks)},
		"the wrong port":         {text: withWorker(short + strings.Replace(asks, "/readyz, port: 9081", "/readyz, port: 8081", 1)), rules: "probe-port"},
		"its signal":             {text: withWorker(short + asks + "lifecycle: {stopSignal: SIGQUIT}\n"), rules: "stop-signal"},
		"refused":                {text: withWorker(short + asks + "args: [-lifecycle.linger=5]\n"), rules: "config-refused"},
		"the caller's container": {vet.Checker{Container: "main"}, withWorker(long + asks), ""},
		"the caller's config":    {vet.Checker{Config: cleanConfig()}, withWorker(long + asks), ""},
		"another workload":       {vet.Checker{Only: []string{"Deployment/web"}}, withWorker(long + asks), "grace-too-short"},
	} {
		t.Run(name, func(t *testing.T) {
			r := tt.checker.Check(vet.File{Name: "m.yaml", Data: []byte(tt.text)})
			var rules []string
			for _, f := range r.Findings {
				if f.Rule != "sidecar-stops-first" && f.Rule != "grace-undeclared" {
					rules = append(rules, f.Rule)
				}
			}
			if got := strings.Join(rules, " "); got != tt.rules || r.Objects != 1 {
				t.Errorf("%d workloads, want 1, and %q, want %q: %+v", r.Objects, got, tt.rules, r.Findings)
			}
		})
	}
}

// The kubelet runs the preStop hook of a native sidecar when the stop of the pod begins, as
// those of all containers, and awaits the sidecar's turn after it. The hook takes nothing
// from the service's time.
func TestHookOfASidecarRunsBesideTheService(t *testing.T) {
	for _, seconds := range []string{"3", "25", "29"} {
		text := strings.Replace(clean, "      containers:\n", "      initContainers:\n        - {name: proxy, image: p, restartPolicy: Always, lifecycle: {preStop: {sleep: {seconds: "+seconds+"}}}}\n      containers:\n", 1)
		for _, f := range check(cleanConfig(), text).Findings {
			if f.Rule == "sidecar-grace" {
				t.Errorf("%s s: %s", seconds, f.Reason)
			}
		}
	}
}

// A second container has to wait for the service's hook too, and the hook that the
// configuration declares is not its own.
func TestSecondContainerWaitsForTheWholeStop(t *testing.T) {
	for name, tt := range map[string]struct {
		hook string
		want bool
	}{"shorter than the stop": {"30", true}, "as long": {"35", false}, "of a second": {"1", true}} {
		text := strings.Replace(clean, "          startupProbe:", "          lifecycle: {preStop: {sleep: {seconds: 10}}}\n          startupProbe:", 1)
		text = strings.Replace(text, "---\n", "        - {name: proxy, image: p, lifecycle: {preStop: {sleep: {seconds: "+tt.hook+"}}}}\n---\n", 1)
		said := ""
		for _, f := range check(lifecycle.Config{PreStop: 10 * time.Second}, text).Findings {
			if f.Rule == "sidecar-stops-first" {
				said = f.Fix
			}
		}
		if tt.want != strings.Contains(said, "preStop.sleep.seconds 35") {
			t.Errorf("%s: %q", name, said)
		}
	}
}

// A headless Service is looked up in DNS by the peers of a pod, which may ask it before it
// is ready. With the node's network the kubelet reaches a loopback address.
func TestWhatIsIntendedIsNotAFinding(t *testing.T) {
	headless := strings.Replace(clean, "  selector: {app: web}\n", "  selector: {app: web}\n  publishNotReadyAddresses: true\n  clusterIP: None\n", 1)
	host := strings.Replace(clean, "      terminationGracePeriodSeconds: 30\n", "      terminationGracePeriodSeconds: 30\n      hostNetwork: true\n", 1)
	host = strings.ReplaceAll(host, "{path: /", "{host: localhost, path: /")
	for name, tt := range map[string]struct{ text, addr string }{
		"headless":                    {headless, ""},
		"the node's network":          {host, ""},
		"the node's network, its own": {host, "127.0.0.1:8081"},
		"planes of its own server":    {clean, "off"},
	} {
		cfg := cleanConfig()
		cfg.HealthAddr = tt.addr
		for _, f := range check(cfg, tt.text).Findings {
			if f.Rule == "not-ready-published" || f.Rule == "health-unreachable" {
				t.Errorf("%s: %s", name, f.Reason)
			}
		}
	}
}

// An advice does not lead to what the API server refuses: the name of a port has a letter.
func TestPortThatIsANumberInQuotes(t *testing.T) {
	text := strings.Replace(clean, "/readyz, port: 8081", `/readyz, port: "8081"`, 1)
	r := check(cleanConfig(), text)
	if len(r.Findings) != 1 || r.Findings[0].Rule != "probe-port" || strings.Contains(r.Findings[0].Fix, "name: 8081") || !strings.Contains(r.Findings[0].Fix, "port to 8081 without quotes") {
		t.Errorf("%+v", r.Findings)
	}
}

// The name of a container that no pod has is not taken for the main one.
func TestContainerThatDoesNotExist(t *testing.T) {
	file := vet.File{Name: "m.yaml", Data: []byte(clean)}
	r := vet.Checker{Container: "man"}.Check(file)
	if len(r.Findings) != 1 || r.Findings[0].Rule != "nothing-to-vet" || !strings.Contains(r.Findings[0].Reason, `"man"`) || !strings.Contains(r.Findings[0].Fix, "main") {
		t.Errorf("%+v", r.Findings)
	}
	other := strings.NewReplacer("name: web", "name: other", "app: web", "app: other", "name: main", "name: man").Replace(clean)
	r = vet.Checker{Container: "man", Config: cleanConfig()}.Check(file, vet.File{Name: "n.yaml", Data: []byte(other)})
	if len(r.Findings) > 0 {
		t.Errorf("one of the pods has it: %+v", r.Findings)
	}
}

// A budget selects the pods of a workload that could not be read, as far as vet knows.
func TestWorkloadThatIsNotRead(t *testing.T) {
	text := strings.Replace(clean, "          image: example/web:1", "          image: 1", 1)
	other := strings.NewReplacer("name: web", "name: other", "app: web", "app: other").Replace(clean)
	for _, f := range check(cleanConfig(), text+"---\n"+other).Findings {
		if f.Rule != "not-an-object" {
			t.Errorf("%s: %s", f.Rule, f.Reason)
		}
	}
}

// A stop without a window closes the listeners while a Service still sends requests. A pod
// that no Service selects may do without.
func TestServiceOfPodsWithoutAWindow(t *testing.T) {
	cfg := cleanConfig()
	cfg.DrainWait = lifecycle.WaitNever
	r := check(cfg, clean)
	if len(r.Findings) != 1 || r.Findings[0].Rule != "drain-unnoticed" || r.Findings[0].Object != "Service/web" || r.Findings[0].Severity != vet.Warning ||
		!strings.Contains(r.Findings[0].Reason, "drain_wait is never") || !strings.Contains(r.Findings[0].Fix, "remove lifecycle.drain_wait") {
		t.Errorf("%+v", r.Findings)
	}
	if r := check(cfg, clean[:strings.LastIndex(clean, "---\n")]); len(r.Findings) > 0 {
		t.Errorf("without a Service: %+v", r.Findings)
	}
}

// In a dump of a cluster the ReplicaSets of a Deployment and their pods have its templates
// of earlier days. They are not checked beside it, and are not counted twice.
func TestDumpOfACluster(t *testing.T) {
	parts := strings.Split(clean, "---\n")
	owned := func(text, name, kind, owner string) string {
		return strings.Replace(text, "  name: web\n", "  name: "+name+"\n  ownerReferences: [{apiVersion: apps/v1, kind: "+kind+", name: "+owner+", uid: u, controller: true}]\n", 1)
	}
	set := strings.NewReplacer("kind: Deployment", "kind: ReplicaSet", "  strategy:\n    type: RollingUpdate\n    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}\n", "", "PeriodSeconds: 30", "PeriodSeconds: 5").Replace(parts[0])
	pod := "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  labels: {app: web}\nspec: {terminationGracePeriodSeconds: 5, containers: [{name: main}]}\n"
	for name, tt := range map[string]struct {
		documents []string
		objects   int
		rules     string
	}{
		"with its owner": {[]string{owned(set, "web-1", "Deployment", "web"), owned(pod, "web-1-a", "ReplicaSet", "web-1"), clean}, 1, ""},
		"counted once":   {[]string{owned(set, "web-1", "Deployment", "web"), strings.Replace(clean, "maxUnavailable: 1\n", "minAvailable: 3\n", 1)}, 1, "pdb-blocks"},
		"of another":     {[]string{owned(set, "web-1", "Deployment", "wep"), clean}, 2, "grace-too-short"},
	} {
		r := check(cleanConfig(), strings.Join(tt.documents, "---\n"))
		var rules []string
		for _, f := range r.Findings {
			rules = append(rules, f.Rule)
		}
		if got := strings.Join(rules, " "); got != tt.rules || r.Objects != tt.objects {
			t.Errorf("%s: %d workloads and %q, want %d and %q: %+v", name, r.Objects, got, tt.objects, tt.rules, r.Findings)
		}
	}
}

// A container that runs lifecycle-run is one of lifecycle. Its variables have one prefix, and
// the command line behind its two dashes is another program's.
func TestLifecycleRun(t *testing.T) {
	image := "          image: example/web:1\n"
	with := func(lines string) string { return strings.Replace(clean, image, image+lines, 1) }
	flags := func(list string) string {
		return with("          command: [/lifecycle-run, -lifecycle.termination-grace=30s, " + list + "--, app]\n")
	}
	refused := []string{"config-refused"}
	env := func(name string) string {
		return with("          command: [/lifecycle-run, --]\n          args: [python3, app.py]\n          env: [{name: " + name + ", value: 30s}]\n")
	}
	for name, tt := range map[string]struct {
		text string
		want []string
		says string
	}{
		"its variable":     {env("LIFECYCLE_RUN_LIFECYCLE_TERMINATION_GRACE"), nil, ""},
		"a key of its own": {flags("-check-timeout=500ms, "), nil, ""},
		"as lifecyclectl run": {
			strings.NewReplacer("[/lifecycle-run, ", "[lifecyclectl, run, ", "LIFECYCLE_RUN", "LIFECYCLECTL_RUN").
				Replace(env("LIFECYCLE_RUN_LIFECYCLE_TERMINATION_GRACE")),
			nil, "",
		},
		"a flag of the other": {with("          command: [lifecycle-run, -lifecycle.termination-grace=30s, --, app, -lifecycle.drain-interval=1h]\n"), nil, ""},
		"a shell": {
			with("          command: [tini, --, /lifecycle-run, -lifecycle.termination-grace=30s, --, sh, -c, app]\n"),
			[]string{"shell-entrypoint"}, "from lifecycle-run",
		},
		"a shell without two dashes": {
			with("          command: [/lifecycle-run, -lifecycle.termination-grace=30s, sh, -c, app]\n"),
			[]string{"shell-entrypoint"}, "from lifecycle-run",
		},
		"npm": {
			with("          command: [/lifecycle-run, -lifecycle.termination-grace=30s, --, npm, start]\n"),
			[]string{"shell-entrypoint"}, "the shell of npm gets the stop signal from lifecycle-run",
		},
		"a shell that is gone":       {with("          command: [/lifecycle-run, -lifecycle.termination-grace=30s, --, sh, -c, exec app]\n"), nil, ""},
		"its section's typo":         {flags("-lifecycle.drain-intervall=3s, "), refused, "did you mean"},
		"its port elsewhere":         {flags("'-proxy=http://127.0.0.1:8000', "), nil, ""},
		"its unknown address":        {flags("-proxy=$(ADDR), "), nil, ""},
		"a long stop of its program": {flags("-lifecycle.unit-slice=15s, "), nil, ""},
		"a Job": {
			strings.Replace(jobManifest, image, image+"          command: [lifecycle-run, -lifecycle.termination-grace=30s, --, work]\n", 1),
			[]string{"job-exit"}, "when the program exits 0",
		},
	} {
		if got := rules(lifecycle.Config{}, tt.text); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		said := fmt.Sprint(check(lifecycle.Config{}, tt.text).Findings)
		if !strings.Contains(said, tt.says) || strings.Contains(said, "not-compared") {
			t.Errorf("%s: it does not say %q: %s", name, tt.says, said)
		}
		if n := len(check(lifecycle.Config{}, tt.text).Findings); n != len(tt.want) {
			t.Errorf("%s: %d findings, want %d: %s", name, n, len(tt.want), said)
		}
	}
}
