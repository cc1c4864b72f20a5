package vet_test

import (
	"fmt"
	"slices"
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
		r := vet.Checker{Config: cleanConfig()}.Check(vet.File{Name: "m.json", Data: fmt.Appendf(nil, pod, text)})
		if !slices.ContainsFunc(r.Findings, func(f vet.Finding) bool { return f.Rule == "grace-too-short" }) {
			t.Errorf("%s: the short grace is not found: %+v", name, r.Findings)
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
