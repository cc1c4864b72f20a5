package vet_test

import (
	_ "embed"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/vet"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clean is a Deployment, its budget and its Service. With the config of the same
// name they have no finding.
//
//go:embed testdata/clean.yaml
var clean string

func cleanConfig() lifecycle.Config { return lifecycle.Config{TerminationGrace: 30 * time.Second} }

func check(cfg lifecycle.Config, text string) vet.Report {
	return vet.Checker{Config: cfg}.Check(vet.File{Name: "m.yaml", Data: []byte(text)})
}

func TestCleanManifestHasNoFindings(t *testing.T) {
	r := check(cleanConfig(), clean)
	if len(r.Findings) > 0 || r.Objects != 1 {
		t.Errorf("%d workloads, want 1, and no findings: %v", r.Objects, r.Findings)
	}
}

// mutation breaks the clean manifest in one place. Check must find that rule and no
// other, at the line with the mark, and the texts must have the number.
type mutation struct {
	rule     string
	old, new string // in the manifest
	cfg      func(*lifecycle.Config)
	at       string   // the finding's line contains it
	words    []string // in reason and fix
	besides  []string // other rules that also report a finding
}

const probe60 = "            failureThreshold: 60\n"

var mutations = []mutation{
	{rule: "config-refused", cfg: func(c *lifecycle.Config) { c.HookSlice = 16 * time.Second }, words: []string{"lifecycle.linger + lifecycle.unit_slice + lifecycle.hook_slice is 5s + 5s + 16s = 26s", "20s", "change lifecycle.linger, lifecycle.unit_slice, lifecycle.hook_slice or lifecycle.shutdown_grace"}},
	{rule: "config-undecided", old: "          image: example/web:1\n", new: "          image: example/web:1\n          envFrom: [{configMapRef: {name: times}}]\n", at: "configMapRef", words: []string{"ConfigMap/times", "not in these files"}},
	{rule: "not-compared", old: clean, new: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: redis, image: redis}]\n", cfg: func(c *lifecycle.Config) { *c = lifecycle.Config{} },
		at: "containers:", words: []string{"--only", "--config"}},
	{rule: "grace-too-short", old: "PeriodSeconds: 30", new: "PeriodSeconds: 26", at: "terminationGracePeriodSeconds: 26",
		words: []string{"drain_interval 5s + shutdown_grace 20s + margin 2s = 27s", "gives 26s", "terminationGracePeriodSeconds to 30", "shutdown_grace to 19s"}},
	{rule: "grace-too-short", cfg: func(c *lifecycle.Config) { c.DrainInterval = 15 * time.Second }, at: "terminationGracePeriodSeconds: 30", besides: []string{"config-refused"}, words: []string{"= 37s", "to 37 or more", "shutdown_grace to 13s"}},
	{rule: "grace-too-short", old: "      terminationGracePeriodSeconds: 30\n", new: "", cfg: func(c *lifecycle.Config) { c.ShutdownGrace = 60 * time.Second }, at: "spec:", besides: []string{"config-refused"}, words: []string{"the default", "67"}},
	{rule: "grace-too-short", old: "          startupProbe:", new: "          lifecycle: {preStop: {sleep: {seconds: 4}}}\n          startupProbe:", at: "terminationGracePeriodSeconds",
		cfg: func(c *lifecycle.Config) { c.PreStop = 4 * time.Second }, words: []string{"preStop 4s", "= 31s", "to 31"}, besides: []string{"config-refused", "prestop-sleep"}},
	{rule: "probe-grace-too-short", old: "            httpGet: {path: /livez, port: health}", new: "            httpGet: {path: /livez, port: health}\n            terminationGracePeriodSeconds: 5", at: "terminationGracePeriodSeconds: 5",
		words: []string{"livenessProbe", "27"}},
	{rule: "grace-declared", old: "PeriodSeconds: 30", new: "PeriodSeconds: 45", at: "terminationGracePeriodSeconds: 45", words: []string{"45s", "30s", "termination_grace to 45s"}},
	{rule: "grace-declared", cfg: func(c *lifecycle.Config) { c.LivenessGrace = 40 * time.Second }, at: "livenessProbe:", words: []string{"liveness_grace", "40"}},
	{rule: "grace-undeclared", cfg: func(c *lifecycle.Config) { c.TerminationGrace = 0 }, at: "terminationGracePeriodSeconds", words: []string{"termination_grace to 30s"}},
	{rule: "prestop-undeclared", old: "          startupProbe:", new: "          lifecycle: {preStop: {sleep: {seconds: 3}}}\n          startupProbe:", at: "preStop", words: []string{"3s", "pre_stop to 3s"}, besides: []string{"prestop-sleep"}},
	{rule: "prestop-undeclared", old: "          startupProbe:", new: "          lifecycle: {preStop: {httpGet: {path: /bye, port: 8080}}}\n          startupProbe:", at: "preStop", words: []string{"not known"}},
	{rule: "prestop-undeclared", cfg: func(c *lifecycle.Config) { c.PreStop = time.Second }, at: "- name: main", words: []string{"1s", "remove lifecycle.pre_stop"}},
	{rule: "prestop-sleep", old: "          startupProbe:", new: "          lifecycle: {preStop: {sleep: {seconds: 3}}}\n          startupProbe:", at: "preStop",
		cfg: func(c *lifecycle.Config) { c.PreStop = 3 * time.Second }, words: []string{"3s", "5s"}},
	{rule: "prestop-shell", old: "          startupProbe:", new: `          lifecycle: {preStop: {exec: {command: [/bin/sh, -c, "sleep 2"]}}}` + "\n          startupProbe:", at: "preStop",
		cfg: func(c *lifecycle.Config) { c.PreStop = 2 * time.Second }, words: []string{"runs sh", "sleep.seconds"}, besides: []string{"prestop-sleep"}},
	{rule: "probe-port", old: "port: 8081", new: "port: 8080", at: "port: 8080}", words: []string{"8080", "8081", "readinessProbe"}},
	{rule: "probe-port", old: "{path: /livez, port: health}", new: "{path: /livez, port: healthy}", at: "healthy", words: []string{`"healthy"`, "containerPort: 8081"}},
	{rule: "probe-path", old: "/readyz", new: "/health", at: "path: /health", words: []string{"404", "/readyz"}},
	{rule: "probe-scheme", old: "port: 8081}", new: "port: 8081, scheme: HTTPS}", at: "HTTPS", words: []string{"TLS"}},
	{rule: "probe-scheme", old: "httpGet: {path: /readyz, port: 8081}", new: "grpc: {port: 8081}", at: "grpc", words: []string{"gRPC", "httpGet", "/readyz"}},
	{rule: "health-unreachable", cfg: func(c *lifecycle.Config) { c.HealthAddr = "127.0.0.1:8081" }, at: "httpGet", words: []string{"127.0.0.1:8081", ":8081"}},
	{rule: "health-unreachable", old: "/readyz, port: 8081}", new: "/readyz, port: 8081, host: 127.0.0.1}", at: "127.0.0.1", words: []string{"asks the node itself", "remove host"}},
	{rule: "liveness-depends", old: "/livez", new: "/readyz", at: "/readyz", words: []string{"/livez", "30s"}},
	{rule: "liveness-depends", old: "/livez, port: health", new: "'/readyz/db?verbose', port: health", at: "/readyz/db", words: []string{"/livez"}},
	{rule: "readiness-not-readyz", old: "/readyz", new: "/livez", at: "path: /livez, port: 8081", words: []string{"/readyz"}},
	{rule: "readiness-not-readyz", old: "httpGet: {path: /readyz, port: 8081}", new: "tcpSocket: {port: 8081}", at: "tcpSocket", words: []string{"/readyz", "8081"}},
	{rule: "startup-not-startupz", old: "/startupz", new: "/livez", at: "path: /livez", words: []string{"/startupz"}},
	{rule: "liveness-alias", old: "/livez", new: "/healthz", at: "/healthz", words: []string{"/livez"}},
	{rule: "probe-timeout", cfg: func(c *lifecycle.Config) { c.ProbeTimeout = 1500 * time.Millisecond }, at: "Probe:", words: []string{"timeoutSeconds 1", "1.5s", "timeoutSeconds to 2"}},
	{rule: "drain-unnoticed", old: "            failureThreshold: 2\n", new: "            failureThreshold: 5\n", at: "readinessProbe", words: []string{"periodSeconds 1 × failureThreshold 5 = 5s", "drain_interval is 5s", "failureThreshold to 4", "drain_interval to 6s"}},
	{rule: "drain-unnoticed", old: "            periodSeconds: 1\n            failureThreshold: 2\n", new: "", at: "readinessProbe", words: []string{"periodSeconds 10 × failureThreshold 3 = 30s", "periodSeconds to 1,", "drain_interval to 31s"}},
	{rule: "liveness-kills-drain", old: "httpGet: {path: /livez, port: health}", new: "tcpSocket: {port: http}\n            periodSeconds: 5", at: "livenessProbe", words: []string{"15s", "25s", "failureThreshold to 5"}},
	{rule: "no-readiness", old: "          readinessProbe:\n            httpGet: {path: /readyz, port: 8081}\n            periodSeconds: 1\n            failureThreshold: 2\n", new: "", at: "- name: main", words: []string{"/readyz", "8081"}},
	{rule: "no-liveness", old: "          livenessProbe:\n            httpGet: {path: /livez, port: health}\n", new: "", at: "- name: main", words: []string{"/livez"}},
	{rule: "no-startup", old: "          startupProbe:\n            httpGet: {path: /startupz, port: health}\n            periodSeconds: 1\n" + probe60, new: "", at: "livenessProbe", words: []string{"30s", "/startupz"}},
	{rule: "stop-signal", old: "          startupProbe:", new: "          lifecycle: {stopSignal: SIGQUIT}\n          startupProbe:", at: "stopSignal", words: []string{"SIGQUIT", "SIGTERM"}},
	{rule: "shell-entrypoint", old: "          startupProbe:", new: "          command: [/bin/sh, -c, /app]\n          startupProbe:", at: "command", words: []string{"SIGTERM", "exec"}},
	{rule: "shell-entrypoint", old: "          startupProbe:", new: "          command: [/bin/bash, -e, -o, pipefail]\n          args: [-uc, /app]\n          startupProbe:", at: "command", words: []string{"bash is"}},
	{
		rule: "shell-entrypoint", old: "          startupProbe:",
		new: "          command: [/usr/bin/tini, -s, --, sh, -c, /app]\n          startupProbe:",
		at:  "command", words: []string{"sh is"},
	},
	{rule: "termination-log", old: "          startupProbe:", new: "          terminationMessagePath: /tmp/last\n          startupProbe:", at: "terminationMessagePath", words: []string{"/tmp/last", "/dev/termination-log"}},
	{rule: "sidecar-stops-first", old: "          startupProbe:", new: "          startupProbe:", at: "{name: proxy", words: []string{"proxy", "main", "25s", "restartPolicy: Always", "seconds 25"}},
	{rule: "sidecar-grace", old: "      containers:\n", new: "      initContainers:\n        - {name: proxy, restartPolicy: Always, lifecycle: {preStop: {sleep: {seconds: 30}}}}\n      containers:\n", at: "name: proxy",
		words: []string{"30s", "to 32"}},
	{rule: "sidecar-grace", old: "      containers:\n", new: "      initContainers:\n        - {name: proxy, restartPolicy: Always, lifecycle: {preStop: {exec: {command: [sleep, 1m]}}}}\n      containers:\n", at: "name: proxy",
		words: []string{"1m0s", "30s", "to 62"}},
	{rule: "no-pdb", old: "kind: PodDisruptionBudget", new: "kind: Nothing", at: "replicas: 3", words: []string{"3 replicas", "maxUnavailable: 1"}},
	{rule: "pdb-blocks", old: "  maxUnavailable: 1\n", new: "  maxUnavailable: 0\n", at: "maxUnavailable: 0", words: []string{"maxUnavailable: 1"}},
	{rule: "pdb-blocks", old: "  maxUnavailable: 1\n", new: "  minAvailable: 3\n", at: "minAvailable: 3", words: []string{"3 of the 3"}},
	{rule: "pdb-blocks", old: "  maxUnavailable: 1\n", new: "  minAvailable: 67%\n", at: "minAvailable: 67%", words: []string{"3 of the 3"}},
	{rule: "replicas-reset", old: "---\napiVersion: v1\nkind: Service", at: "replicas: 3",
		new: "---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: web}\n" +
			"spec: {minReplicas: 3, maxReplicas: 9, scaleTargetRef: {kind: Deployment, name: web}}\n---\napiVersion: v1\nkind: Service",
		words: []string{"HorizontalPodAutoscaler/web sets the replicas too", "remove replicas"}},
	{rule: "pdb-selects-nothing", old: "  maxUnavailable: 1\n  selector: {matchLabels: {app: web}}", new: "  maxUnavailable: 1\n  selector: {matchLabels: {app: wep}}", at: "selector", words: []string{"labels"}, besides: []string{"no-pdb"}},
	{rule: "rollout-loses-capacity", old: "maxUnavailable: 0}", new: "maxUnavailable: 34%}", at: "maxUnavailable: 34%", words: []string{"of 3 replicas", "removes 1 before", "maxUnavailable: 0"}},
	{rule: "rollout-loses-capacity", old: "    type: RollingUpdate\n    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}", new: "    type: RollingUpdate", cfg: nil, at: "strategy", words: []string{"25%", "of 8 replicas"}},
	{rule: "recreate", old: "    type: RollingUpdate\n    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}", new: "    type: Recreate", at: "type: Recreate", words: []string{"RollingUpdate"}},
	{rule: "single-replica", old: "replicas: 3", new: "replicas: 1", at: "replicas: 1", words: []string{"serving"}},
	{rule: "traffic-local", old: "  selector: {app: web}\n", new: "  selector: {app: web}\n  externalTrafficPolicy: Local\n", at: "externalTrafficPolicy", words: []string{"serving"}},
	{rule: "traffic-local", old: "  selector: {app: web}\n", new: "  selector: {app: web}\n  internalTrafficPolicy: Local\n", at: "internalTrafficPolicy", words: []string{"clients on it", "serving"}},
	{rule: "not-ready-published", old: "  selector: {app: web}\n", new: "  selector: {app: web}\n  publishNotReadyAddresses: true\n", at: "publishNotReadyAddresses", words: []string{"Deployment/web", "remove it", "clusterIP: None"}},
	{rule: "job-exit", old: clean, new: jobManifest, at: "spec:", words: []string{"exit_on_signal to true"}},
	{
		rule: "job-policy", old: clean, new: strings.Replace(jobManifest, "spec:\n", "spec:\n"+failurePolicy, 1), at: "FailJob", cfg: func(c *lifecycle.Config) { c.ExitOnSignal = true },
		words: []string{"rule 1 has the action FailJob", "exits with 143", "values: [130, 143]"},
	},
	{rule: "nothing-to-vet", old: clean, new: "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n", at: "", words: []string{"Deployment"}},
	{rule: "not-rendered", old: "replicas: 3", new: "replicas: {{ .Values.replicas }}", at: "{{", words: []string{"helm template"}},
	{rule: "not-rendered", old: "replicas: 3", new: `replicas: "{{ .Values.replicas }}"`, at: "{{", words: []string{"helm template"}},
	{rule: "not-rendered", old: "  name: web\nspec:\n  replicas", new: "  name: web\n{{- if .Values.x }}\nspec:\n  replicas", at: "{{", words: []string{"helm template"}},
	{rule: "not-an-object", old: "replicas: 3", new: `replicas: "three"`, at: "apiVersion", words: []string{"Deployment/web cannot be read", "kubeconform"}},
	{rule: "not-an-object", old: clean, new: "drain_interval: 5s\n", at: "drain_interval", words: []string{"--config"}},
	{rule: "not-yaml", old: "  maxUnavailable: 1\n", new: "  maxUnavailable: [1\n", at: "", words: []string{"not YAML"}, besides: []string{"no-pdb"}},
	{rule: "not-text", old: clean, new: "PK\x00\x01", at: "PK", words: []string{"UTF-8"}},
	{rule: "too-large", old: clean, new: strings.Repeat(" ", vet.MaxSize+1), at: "", words: []string{"at most"}},
	{rule: "not-yaml", old: clean, new: bomb(), at: "", words: []string{"aliasing"}},
	{rule: "empty", old: clean, new: " \n", at: "", words: []string{"empty"}},
	{rule: "empty", old: clean, new: "# a comment\n---\n---\n", at: "#", words: []string{"comments"}},
}

// failurePolicy fails the Job for every exit status that the work does not explain.
const failurePolicy = `  podFailurePolicy:
    rules:
      - {action: Count, onExitCodes: {operator: In, values: [75]}}
      - {action: FailJob, onExitCodes: {operator: NotIn, values: [1]}}
      - {action: Ignore, onPodConditions: [{type: DisruptionTarget}]}
`

const jobManifest = `apiVersion: batch/v1
kind: Job
metadata: {name: web}
spec:
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 30
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
        - name: main
          image: example/web:1
          securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`

// bomb returns a "billion laughs" in YAML.
func bomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n")
	for i := range 9 {
		fmt.Fprintf(&b, "a%d: &a%d [", i+1, i+1)
		for range 9 {
			fmt.Fprintf(&b, "*a%d, ", i)
		}
		b.WriteString("]\n")
	}
	return b.String()
}

func TestPreStopSleeps(t *testing.T) {
	for command, want := range map[string]string{
		`[sleep, "3"]`:                    "takes 3s",
		`[sh, -c, "sleep 2m"]`:            "takes 2m0s",
		`[sh, -c, "sleep 0.5"]`:           "takes 500ms",
		`[sh, -c, "sleep 1s && sleep 9"]`: "takes 10s",
		`[sh, -c, "/bin/sleep 1h;"]`:      "takes 1h0m0s",
		`[sh, -c, "sleep 99999999999d"]`:  "takes 1193046h28m16s",
		`[sleep, infinity]`:               "is not known",
		`[sleep, 5x]`:                     "is not known",
		`[sleep, 1.2.3]`:                  "is not known",
	} {
		text := strings.Replace(clean, "          startupProbe:", "          lifecycle: {preStop: {exec: {command: "+command+"}}}\n          startupProbe:", 1)
		found := false
		for _, f := range check(cleanConfig(), text).Findings {
			found = found || f.Rule == "prestop-undeclared" && strings.Contains(f.Reason, want)
		}
		if !found {
			t.Errorf("%s: no finding says that it %s: %+v", command, want, check(cleanConfig(), text).Findings)
		}
	}
}

// A number that is too large for a duration does not become a small one.
func TestGraceBeyondADuration(t *testing.T) {
	for _, seconds := range []string{"18446744074", "9223372036854775807"} {
		for _, f := range check(cleanConfig(), strings.Replace(clean, "PeriodSeconds: 30", "PeriodSeconds: "+seconds, 1)).Findings {
			if f.Rule == "grace-too-short" {
				t.Errorf("%s: %s", seconds, f.Reason)
			}
		}
	}
}

func TestMutations(t *testing.T) {
	for i, m := range mutations {
		t.Run(fmt.Sprintf("%d %s", i, m.rule), func(t *testing.T) {
			text := clean
			if m.old != "" {
				if text = strings.Replace(clean, m.old, m.new, 1); text == clean && m.old != m.new {
					t.Fatalf("the manifest has no %q", m.old)
				}
			}
			// Mutations that need more than one edit.
			switch {
			case m.rule == "sidecar-stops-first":
				text = strings.Replace(text, "---\n", "        - {name: proxy, image: proxy}\n---\n", 1)
			case slices.Contains(m.words, "of 8 replicas"):
				text = strings.Replace(text, "replicas: 3", "replicas: 8", 1)
			}
			cfg := cleanConfig()
			if m.cfg != nil {
				m.cfg(&cfg)
			}
			report := check(cfg, text)
			lines := strings.Split(text, "\n")
			found := false
			for _, f := range report.Findings {
				if f.Rule != m.rule {
					if !slices.Contains(m.besides, f.Rule) {
						t.Errorf("another finding: %+v", f)
					}
					continue
				}
				found = true
				if f.Line < 1 || f.Line > len(lines) || !strings.Contains(lines[f.Line-1], m.at) {
					t.Errorf("line %d, want the one with %q", f.Line, m.at)
				}
				for _, word := range m.words {
					if !strings.Contains(f.Reason+"\n"+f.Fix, word) {
						t.Errorf("it does not say %q:\n%s\nfix: %s", word, f.Reason, f.Fix)
					}
				}
			}
			if !found {
				t.Errorf("not found; the report is %+v", report.Findings)
			}
		})
	}
}

// Every rule has a test that breaks it.
func TestEveryRuleSpeaks(t *testing.T) {
	for _, r := range vet.Rules() {
		if !slices.ContainsFunc(mutations, func(m mutation) bool { return m.rule == r.ID }) {
			t.Errorf("no mutation is for %s", r.ID)
		}
		if r.Title == "" || r.Why == "" {
			t.Errorf("rule %s does not say what it is for", r.ID)
		}
	}
}

// A fault for which New refuses the config is a finding in the config's file, beside the
// findings in the manifest. When a value makes no sense, Check compares nothing else.
func TestConfigThatContradictsItself(t *testing.T) {
	manifest := vet.File{Name: "m.yaml", Data: []byte(clean)}
	c := vet.Checker{Config: lifecycle.Config{TerminationGrace: 30 * time.Second, DrainInterval: 15 * time.Second}, ConfigFile: "service.yaml",
		ConfigLines: map[string]int{"lifecycle.drain_interval": 7, "lifecycle.termination_grace": 9}}
	r := c.Check(manifest)
	if len(r.Findings) != 2 || r.Findings[0].Rule != "grace-too-short" || r.Findings[1].Rule != "config-refused" {
		t.Fatalf("want the manifest's finding and the config's, have %+v", r.Findings)
	}
	got := r.Findings[1]
	if got.File != "service.yaml" || got.Line != 9 || got.Field != "lifecycle.termination_grace" || got.Severity != vet.Error {
		t.Errorf("its place is %+v", got)
	}
	for _, words := range []string{"lifecycle.pre_stop + lifecycle.drain_interval + lifecycle.shutdown_grace + margin is 0s + 15s + 20s + 2s = 37s", "gives 30s", "7s before"} {
		if !strings.Contains(got.Reason, words) {
			t.Errorf("%s\ndoes not say %q", got.Reason, words)
		}
	}
	if want := "set lifecycle.termination_grace to 37s or more, and so the terminationGracePeriodSeconds that it stands for, or lower lifecycle.drain_interval or lifecycle.shutdown_grace by 7s in all"; got.Fix != want {
		t.Errorf("the fix is %q, want %q", got.Fix, want)
	}

	c = vet.Checker{Config: lifecycle.Config{DrainInterval: -3 * time.Second, TerminationGrace: time.Second}}
	r = c.Check(manifest)
	if len(r.Findings) != 1 || r.Findings[0].File != "config" || r.Findings[0].Line != 1 || !strings.Contains(r.Findings[0].Reason, "lifecycle.drain_interval is -3s, want 0") {
		t.Errorf("want the senseless value alone, have %+v", r.Findings)
	}
	c.Ignore = []string{"config-refused"}
	if r := c.Check(manifest); len(r.Findings) != 0 {
		t.Errorf("an empty config has findings: %+v", r.Findings)
	}
}

// A fix is right: with the number that it names, the finding disappears.
func TestFixesFix(t *testing.T) {
	short := strings.Replace(clean, "PeriodSeconds: 30", "PeriodSeconds: 10", 1)
	for name, fixed := range map[string]struct {
		text string
		cfg  lifecycle.Config
	}{
		"raise the grace":     {strings.Replace(short, "PeriodSeconds: 10", "PeriodSeconds: 27", 1), lifecycle.Config{TerminationGrace: 27 * time.Second}},
		"lower the shutdown":  {short, lifecycle.Config{TerminationGrace: 10 * time.Second, ShutdownGrace: 3 * time.Second}},
		"endpoint as preStop": {strings.Replace(clean, "          startupProbe:", "          lifecycle: {preStop: {httpGet: {path: /admin/prestop, port: health}}}\n          startupProbe:", 1), cleanConfig()},
		"serving, one":        {strings.Replace(clean, "replicas: 3", "replicas: 1", 1), lifecycle.Config{TerminationGrace: 30 * time.Second, DrainReadiness: lifecycle.ReadinessServing}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, f := range check(fixed.cfg, fixed.text).Findings {
				if f.Rule != "pdb-blocks" || name != "serving, one" {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}

// Check finds the same Deployment in every kind of file.
func TestShapesOfInput(t *testing.T) {
	short := strings.Replace(strings.Split(clean, "---\n")[0], "PeriodSeconds: 30", "PeriodSeconds: 20", 1)
	indented := "    " + strings.ReplaceAll(strings.TrimSpace(short), "\n", "\n    ") + "\n"
	for name, in := range map[string]struct {
		file, text string
		line       int
		object     string
	}{
		"yaml":     {"m.yaml", short, 15, "Deployment/web"},
		"second":   {"m.yaml", "kind: Other\napiVersion: v1\n---\n" + short, 18, "Deployment/web"},
		"windows":  {"m.yaml", strings.ReplaceAll(short, "\n", "\r\n"), 15, "Deployment/web"},
		"list":     {"m.yaml", "apiVersion: v1\nkind: List\nitems:\n  -\n" + indented, 19, "Deployment/web"},
		"rendered": {"m.yaml", "---\n# Source: chart/templates/deployment.yaml\n" + short, 17, "Deployment/web"},
		"json":     {"m.json", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"shop"},` + "\n" + `"spec":{"terminationGracePeriodSeconds":20,"containers":[{"name":"main"}]}}`, 2, "Pod/shop/p"},
		"cron":     {"m.yaml", "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: c}\nspec:\n  jobTemplate:\n    spec:\n      template:\n        spec:\n          terminationGracePeriodSeconds: 20\n          containers: [{name: main}]\n", 9, "CronJob/c"},
		"anchors":  {"m.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nx-grace: &g {terminationGracePeriodSeconds: 20}\nspec:\n  <<: *g\n  containers: [{name: main}]\n", 5, "Pod/p"},
	} {
		t.Run(name, func(t *testing.T) {
			r := vet.Checker{Config: cleanConfig()}.Check(vet.File{Name: in.file, Data: []byte(in.text)})
			i := slices.IndexFunc(r.Findings, func(f vet.Finding) bool { return f.Rule == "grace-too-short" })
			if i < 0 {
				t.Fatalf("not found: %+v", r.Findings)
			}
			f := r.Findings[i]
			if f.Line != in.line || f.Object != in.object || f.File != in.file || (name == "rendered") != (f.Source == "chart/templates/deployment.yaml") {
				t.Errorf("%+v, want line %d of %s", f, in.line, in.object)
			}
		})
	}
}

func TestTheServicesContainer(t *testing.T) {
	two := strings.Replace(clean, "      containers:\n", "      containers:\n        - {name: proxy, image: p, lifecycle: {preStop: {sleep: {seconds: 25}}}, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}\n", 1)
	if r := check(cleanConfig(), two); len(r.Findings) > 0 {
		t.Errorf("the container with the probes is the service's: %+v", r.Findings)
	}
	r := vet.Checker{Config: cleanConfig(), Container: "proxy"}.Check(vet.File{Name: "m.yaml", Data: []byte(two)})
	if !slices.ContainsFunc(r.Findings, func(f vet.Finding) bool { return f.Rule == "no-readiness" && f.Container == "proxy" }) {
		t.Errorf("the named container is not the service's: %+v", r.Findings)
	}
}

func TestOnlyAndIgnore(t *testing.T) {
	broken := strings.Replace(clean, "PeriodSeconds: 30", "PeriodSeconds: 5", 1)
	file := vet.File{Name: "m.yaml", Data: []byte(broken)}
	if r := (vet.Checker{Config: cleanConfig(), Ignore: []string{"grace-too-short", "grace-declared"}}).Check(file); len(r.Findings) > 0 {
		t.Errorf("ignored rules have findings: %+v", r.Findings)
	}
	if r := (vet.Checker{Config: cleanConfig(), Only: []string{"deployment/web"}}).Check(file); r.AtLeast(vet.Error) != 1 {
		t.Errorf("the named workload was not checked: %+v", r.Findings)
	}
	r := vet.Checker{Config: cleanConfig(), Only: []string{"wep"}}.Check(file)
	if len(r.Findings) != 1 || r.Findings[0].Rule != "nothing-to-vet" || !strings.Contains(r.Findings[0].Fix, "Deployment/web") {
		t.Errorf("want one finding that names the existing workloads: %+v", r.Findings)
	}
	if err := (vet.Checker{Ignore: []string{"grace"}}).Validate(); err == nil || !strings.Contains(err.Error(), `"grace"`) {
		t.Errorf("no such rule: %v", err)
	}
}

func TestAutoscalerSaysHowManyReplicas(t *testing.T) {
	hpa := "---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: web}\nspec:\n  minReplicas: 2\n  maxReplicas: 9\n  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}\n"
	text := strings.Replace(strings.Replace(clean, "  replicas: 3\n", "", 1), "maxUnavailable: 1\n", "minAvailable: 2\n", 1)
	r := check(cleanConfig(), text+hpa)
	if len(r.Findings) != 1 || r.Findings[0].Rule != "pdb-blocks" || !strings.Contains(r.Findings[0].Reason, "2 of the 2") {
		t.Errorf("want the budget compared with minReplicas: %+v", r.Findings)
	}
}

func TestDaemonSet(t *testing.T) {
	text := strings.NewReplacer("kind: Deployment", "kind: DaemonSet", "  replicas: 3\n", "",
		"  strategy:\n    type: RollingUpdate\n    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}\n", "").Replace(clean)
	r := check(cleanConfig(), text)
	if len(r.Findings) != 1 || r.Findings[0].Rule != "rollout-loses-capacity" || !strings.Contains(r.Findings[0].Fix, "maxSurge: 1") {
		t.Errorf("%+v", r.Findings)
	}
}

func TestDockerfile(t *testing.T) {
	const wrapper = "FROM a\nENTRYPOINT [\"/lifecycle-run\", \"--\"]\n"
	for text, want := range map[string]string{
		"FROM scratch\nENTRYPOINT [\"/app\"]\n":                                    "",
		"FROM scratch\nSTOPSIGNAL SIGKILL\nENTRYPOINT [\"/app\"]\n":                "2 stop-signal",
		"FROM a AS b\nENTRYPOINT /app\nFROM scratch\nENTRYPOINT [\"/app\"]\n":      "",
		"FROM a\n# x\nRUN a \\\n  && STOPSIGNAL SIGHUP\nCMD /app\n":                "5 shell-entrypoint",
		"ENTRYPOINT [\"/app\"]\n":                                                  "1 empty",
		"FROM a\nCMD exec /app\n":                                                  "",
		"FROM a\nCMD [\"sh\", \"-c\", \"/app\"]\n":                                 "2 shell-entrypoint",
		"FROM a\nCMD [\"sh\", \"-c\", \"exec npm start\"]\n":                       "2 shell-entrypoint",
		"FROM a\nENTRYPOINT [\"npm\"]\nCMD [\"start\"]\n":                          "2 shell-entrypoint",
		"FROM a\nENTRYPOINT [\"tini\", \"--\"]\nCMD [\"npm\", \"start\"]\n":        "3 shell-entrypoint",
		"FROM a\nENTRYPOINT [\"/app\"]\nCMD npm start\n":                           "",
		wrapper + "CMD npm start\n":                                                "3 shell-entrypoint",
		wrapper + "CMD [\"npm\", \"start\"]\n":                                     "3 shell-entrypoint",
		wrapper + "CMD [\"sh\", \"-c\", \\\n  \"node server.js\"]\n":               "3 shell-entrypoint",
		wrapper + "CMD [\"sh\", \"-c\", \"exec node server.js\"]\n":                "",
		wrapper + "CMD [\"node\", \"server.js\"]\n":                                "",
		"FROM a\nENTRYPOINT [\"/lifecycle-run\", \"--\", \"sh\", \"-c\", \"x\"]\n": "2 shell-entrypoint",
		"FROM scratch\nENTRYPOINT [\"/app\"]\nSTOPSIGNAL SIGTERM\nCMD [\"x\"]\n":   "",
	} {
		var got string
		for _, f := range (vet.Checker{}).Check(vet.File{Name: "x/Dockerfile", Data: []byte(text)}).Findings {
			got += fmt.Sprintf("%d %s", f.Line, f.Rule)
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestHugeFileIsNotRead(t *testing.T) {
	r := vet.Checker{}.Check(vet.File{Name: "m.yaml", Data: make([]byte, vet.MaxSize+1)})
	if len(r.Findings) != 1 || r.Findings[0].Rule != "too-large" {
		t.Errorf("%+v", r.Findings)
	}
}

// A file of many short lines, such as a ConfigMap with a table, is read in time that grows
// with its size and not with the square of it.
func TestManyLinesAreReadOnce(t *testing.T) {
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata:\n  table: |\n" + strings.Repeat("    x\n", 20_000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	check(cleanConfig(), text)
	runtime.ReadMemStats(&after)
	if got := (after.TotalAlloc - before.TotalAlloc) / uint64(len(text)); got > 200 {
		t.Errorf("%d bytes of memory for each byte of the file, want at most 200", got)
	}
}

func Example() {
	manifest, err := os.ReadFile("testdata/clean.yaml")
	if err != nil {
		panic(err)
	}
	cfg := lifecycle.Config{DrainInterval: 15 * time.Second}
	report := vet.Checker{Config: cfg, Ignore: []string{"grace-undeclared"}}.Check(vet.File{Name: "web.yaml", Data: manifest})
	_ = report.WriteText(os.Stdout)
	// Output:
	// web.yaml:15:7: error: grace-too-short
	//   Deployment/web, spec.template.spec.terminationGracePeriodSeconds
	//   a stop may take preStop 0s + drain_interval 15s + shutdown_grace 20s + margin 2s = 37s, and terminationGracePeriodSeconds, as it stands, gives 30s: the kubelet kills the container 7s before it is done
	//   fix: set terminationGracePeriodSeconds to 37 or more, or lower lifecycle.shutdown_grace to 13s
	//
	// 1 workload looked at: 1 error, 0 warnings, 0 notes
}
