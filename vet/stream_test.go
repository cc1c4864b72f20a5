package vet_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/vet"
)

// A stream of JSON may have what YAML does not take: characters beyond the first 65,536 as
// two escapes, as Python writes them, and DEL.
func TestJSONIsReadAsJSON(t *testing.T) {
	const pod = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "annotations": {"a": "%s"}},
"spec": {"terminationGracePeriodSeconds": 20, "containers": [{"name": "main"}]}}`
	for name, text := range map[string]string{
		"two escapes":     `\ud83d\ude80`,
		"capital letters": `\uD83D\uDE80`,
		"one escape":      `\ud83d`,
		"no escape":       `\\ud83d`,
		"an escape after": `\\\ud83d\ude80`,
		"DEL":             "\x7f",
		"a slash":         `\/`,
		"many":            `é\u00e9\t\"`,
	} {
		for _, f := range (vet.Checker{Config: cleanConfig()}).Check(vet.File{Name: "m.json", Data: fmt.Appendf(nil, pod, text)}).Findings {
			if f.Rule == "not-yaml" {
				t.Errorf("%s: %s", name, f.Reason)
			}
			if f.Rule == "grace-too-short" && f.Line != 2 {
				t.Errorf("%s: line %d, want 2", name, f.Line)
			}
		}
	}
}

// Budgets and Services are compared with many workloads in time that the size of the
// stream bounds: a selector is read once, not once for each workload.
func TestSelectorsAreReadOnce(t *testing.T) {
	const n = 200
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d%d}\nspec: {replicas: 2, selector: {matchLabels: {a: d%d}}, template: {metadata: {labels: {a: d%d}}, spec: {containers: [{name: x}]}}}\n---\n", i, i, i)
		fmt.Fprintf(&b, "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: d%d}\nspec: {maxUnavailable: 1, selector: {matchLabels: {a: d%d}}}\n---\n", i, i)
	}
	half, whole := b.String()[:b.Len()/2], b.String()
	allocs := func(text string) float64 {
		return testing.AllocsPerRun(1, func() { check(cleanConfig(), text) })
	}
	if small, large := allocs(half), allocs(whole); large > 2.3*small {
		t.Errorf("%.0f allocations for half of the stream and %.0f for the whole, want about twice as many", small, large)
	}
}

// A value of a wrong type stands at its own line, in lists and maps too.
func TestWrongTypeStandsAtItsValue(t *testing.T) {
	env := "          env:\n            - {name: A, value: \"1\"}\n            - {name: B, value: %s}\n            - {name: C, value: 3}\n"
	for name, tt := range map[string]struct{ old, new, at, fix string }{
		"a number in a list":  {"          ports:\n", fmt.Sprintf(env, "2") + "          ports:\n", "name: B", "quotes"},
		"a truth value":       {"          ports:\n", fmt.Sprintf(env, "on") + "          ports:\n", "name: B", "quotes"},
		"of a map":            {"      labels: {app: web}\n", "      labels:\n        app: web\n        port: 80\n", "port: 80", "quotes"},
		"a word of a command": {"          ports:\n", "          command:\n            - /web\n            - 8080\n          ports:\n", "- 8080", "quotes"},
		"a text":              {"            periodSeconds: 1\n            failureThreshold: 2\n", "            periodSeconds: often\n", "often", "the type that it has"},
		"a map for a list":    {"          ports:\n            - {name: http, containerPort: 8080}\n            - {name: health, containerPort: 8081}\n", "          ports: {http: {a: 8080}}\n", "ports:", "the type that it has"},
	} {
		text := strings.Replace(clean, tt.old, tt.new, 1)
		found := false
		for _, f := range check(cleanConfig(), text).Findings {
			if f.Rule != "wrong-type" {
				continue
			}
			found = true
			if line := strings.Split(text, "\n")[f.Line-1]; !strings.Contains(line, tt.at) || !strings.Contains(f.Fix, tt.fix) {
				t.Errorf("%s: line %d %q, field %s, fix %q", name, f.Line, line, f.Field, f.Fix)
			}
		}
		if !found {
			t.Errorf("%s: no finding", name)
		}
	}
}
