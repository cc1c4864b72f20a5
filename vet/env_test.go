package vet_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/vet"
)

// withEnv returns the clean manifest whose container has these variables, as NAME=VALUE.
func withEnv(vars ...string) string {
	var b strings.Builder
	b.WriteString("          image: example/web:1\n          env:\n")
	for _, kv := range vars {
		name, value, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(value, "{") {
			b.WriteString("            - {name: " + name + ", valueFrom: " + value + "}\n")
			continue
		}
		b.WriteString("            - {name: " + name + ", value: \"" + value + "\"}\n")
	}
	return strings.Replace(clean, "          image: example/web:1\n", b.String(), 1)
}

// Stop times that the pod template gives as variables count like those of the file, and
// take precedence over them.
func TestVariablesOfTheContainerAreSettings(t *testing.T) {
	grace := lifecycle.Config{TerminationGrace: 30 * time.Second}
	for name, tt := range map[string]struct {
		cfg  lifecycle.Config
		vars []string
		want map[string]string // the rules that speak, and what they say
	}{
		"they declare the grace":        {vars: []string{"SERVICE_LIFECYCLE_TERMINATION_GRACE=30s"}},
		"they mend the file":            {cfg: lifecycle.Config{DrainInterval: 15 * time.Second}, vars: []string{"WEB_LIFECYCLE_DRAIN_INTERVAL=5s", "WEB_LIFECYCLE_TERMINATION_GRACE=30s"}},
		"they make the file's sums fit": {cfg: lifecycle.Config{Linger: 8 * time.Second, UnitSlice: 8 * time.Second, HookSlice: 8 * time.Second, TerminationGrace: 30 * time.Second}, vars: []string{"SERVICE_LIFECYCLE_SHUTDOWN_GRACE=24s", "SERVICE_LIFECYCLE_DRAIN_INTERVAL=4s"}},
		"without a prefix":              {cfg: grace, vars: []string{"LIFECYCLE_HEALTH_ADDR=:8081", "LIFECYCLE_DRAIN_QUIET=off"}},
		"others":                        {cfg: grace, vars: []string{"SERVICE_ADDR=:8080", "SERVICE_LIFECYCLE_ADMIN_TOKEN=0123456789abcdef", "SERVICE_LIFECYCLE_MODE=fast"}},
		"known when the pod runs": {cfg: grace, vars: []string{"SERVICE_LIFECYCLE_DRAIN_INTERVAL={fieldRef: {fieldPath: metadata.name}}"}, want: map[string]string{
			"config-undecided": "sets lifecycle.drain_interval, and its value is not known: metadata.name is known when the pod runs"}},
		"in another object": {cfg: grace, vars: []string{"SERVICE_LIFECYCLE_SHUTDOWN_GRACE={configMapKeyRef: {name: times, key: grace}}"}, want: map[string]string{
			"config-undecided": "sets lifecycle.shutdown_grace, and its value is not known: ConfigMap/times is not in these files"}},
		"of an unknown one": {cfg: grace, vars: []string{"GRACE={fieldRef: {fieldPath: metadata.name}}", "SERVICE_LIFECYCLE_SHUTDOWN_GRACE=$(GRACE)"}, want: map[string]string{
			"config-undecided": "the kubelet puts other variables into it"}},
		"they outlast the grace": {cfg: grace, vars: []string{"SERVICE_LIFECYCLE_DRAIN_INTERVAL=15s"}, want: map[string]string{
			"grace-too-short": "drain_interval 15s + shutdown_grace 20s", "config-refused": "= 37s"}},
		"they declare another grace": {cfg: grace, vars: []string{"SERVICE_LIFECYCLE_TERMINATION_GRACE=40s"}, want: map[string]string{"grace-declared": "says that it is 40s"}},
		"another port":               {cfg: grace, vars: []string{"SERVICE_LIFECYCLE_HEALTH_ADDR=:9000"}, want: map[string]string{"probe-port": "planes are on 9000"}},
		"no window":                  {cfg: grace, vars: []string{"SERVICE_LIFECYCLE_DRAIN_INTERVAL=0"}, want: map[string]string{"drain-unnoticed": "drain_interval is 0s"}},
		"no duration": {
			cfg:  grace,
			vars: []string{"SERVICE_LIFECYCLE_DRAIN_INTERVAL=5"},
			want: map[string]string{"config-refused": `SERVICE_LIFECYCLE_DRAIN_INTERVAL is "5", want a duration with its unit`},
		},
		"no truth": {
			cfg:  grace,
			vars: []string{"SERVICE_LIFECYCLE_EXIT_ON_SIGNAL=perhaps"},
			want: map[string]string{"config-refused": "true or false"},
		},
		"no sense": {
			cfg:  grace,
			vars: []string{"SERVICE_LIFECYCLE_MEMORY_LIMIT_RATIO=3"},
			want: map[string]string{"config-refused": "lifecycle.memory_limit_ratio is 3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := check(tt.cfg, withEnv(tt.vars...))
			seen := map[string]bool{}
			for _, f := range r.Findings {
				seen[f.Rule] = true
				if words, ok := tt.want[f.Rule]; !ok || !strings.Contains(f.Reason, words) {
					t.Errorf("%s: %s; want %q", f.Rule, f.Reason, words)
				}
				if f.Rule == "config-refused" && !strings.Contains(strings.Split(withEnv(tt.vars...), "\n")[f.Line-1], "LIFECYCLE_") {
					t.Errorf("line %d is not that of the variable", f.Line)
				}
			}
			for rule := range tt.want {
				if !seen[rule] {
					t.Errorf("%s does not speak", rule)
				}
			}
		})
	}
}

// The variables of one workload say nothing about another.
func TestVariablesBelongToTheirWorkload(t *testing.T) {
	other := strings.NewReplacer("name: web", "name: other", "app: web", "app: other").Replace(clean)
	r := check(cleanConfig(), withEnv("SERVICE_LIFECYCLE_DRAIN_INTERVAL=26s", "SERVICE_LIFECYCLE_SHUTDOWN_GRACE=4s", "SERVICE_LIFECYCLE_TERMINATION_GRACE=40s")+"---\n"+other)
	if r.Objects != 2 {
		t.Fatalf("%d workloads", r.Objects)
	}
	for _, f := range r.Findings {
		if f.Object != "Deployment/web" {
			t.Errorf("%s of %s: %s", f.Rule, f.Object, f.Reason)
		}
	}
	if r.AtLeast(vet.Error) != 1 {
		t.Errorf("want one error, about the grace: %+v", r.Findings)
	}
}
