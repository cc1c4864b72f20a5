package vet_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"unicode"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/vet"
)

// slowPod is a Pod whose stop is longer than its grace, as JSON.
func slowPod(name string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"containers":[{"name":"c","image":"i","args":["-lifecycle.drain-interval=60s"]}]}}`, name)
}

// findings returns the places and objects of a rule's findings.
func findings(r vet.Report, rule string) (all []string) {
	for _, f := range r.Findings {
		if f.Rule == rule {
			all = append(all, fmt.Sprintf("%d %s", f.Line, f.Object))
		}
	}
	return all
}

// No object of a stream is left out in silence.
func TestEveryObjectOfAStreamIsRead(t *testing.T) {
	a, b := slowPod("a"), slowPod("b")
	list := func(item string) string { return `{"apiVersion":"v1","kind":"List","items":[` + item + `]}` }
	for text, want := range map[string]string{
		a + "\n" + b:                    "[1 Pod/a 2 Pod/b]",
		a + b:                           "[1 Pod/a 1 Pod/b]",
		"\n" + a + "\n---\n" + b:        "[2 Pod/a 4 Pod/b]",
		a + "\n---\nkind: [\n---\n" + b: "[1 Pod/a 5 Pod/b]",
		list(list(a) + "," + b):         "[1 Pod/a 1 Pod/b]",
	} {
		if got := fmt.Sprint(findings(check(lifecycle.Config{}, text), "grace-too-short")); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// Variables and arguments that refer to each other could be longer than any memory.
func TestReferencesThatGrow(t *testing.T) {
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n    image: i\n"
	deep := pod + "    env:\n    - {name: A0, value: xxxxxxxxxx}\n"
	for i := range 6 {
		deep += fmt.Sprintf("    - {name: A%d, value: %s}\n", i+1, strings.Repeat(fmt.Sprintf("$(A%d)", i), 10))
	}
	many := pod + "    env:\n    - {name: A, value: " + strings.Repeat("x", 100<<10) + "}\n"
	for i := range 1000 {
		many += fmt.Sprintf("    - {name: A%d, value: $(A)}\n", i)
	}
	for name, text := range map[string]string{
		"deep":      deep + "    - {name: WEB_LIFECYCLE_NAME, value: $(A6)}\n",
		"many":      many + "    - {name: WEB_LIFECYCLE_NAME, value: $(A)}\n",
		"arguments": many + "    args:\n" + strings.Repeat("    - $(A)\n", 1000) + "    - -lifecycle.name=$(A)\n",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := check(lifecycle.Config{}, text)
		runtime.ReadMemStats(&after)
		if got := findings(r, "config-undecided"); len(got) != 1 || (after.TotalAlloc-before.TotalAlloc) > 100<<20 {
			t.Errorf("%s: %s, with %d bytes of memory", name, got, after.TotalAlloc-before.TotalAlloc)
		}
	}
}

// A file that the manifest names and that the service refuses is an error, also when no
// probe shows that lifecycle runs the service.
func TestRefusedFileOfAPodWithoutProbes(t *testing.T) {
	for text, rule := range map[string]string{
		"lifecycle: {drain_interval: 7}":      "config-refused",
		"lifecycle: {drain_intervall: 7s}":    "config-refused",
		"lifecycle: {rules: [1]}":             "not-compared", // another program's
		"lifecycle: [":                        "not-compared",
		"x: &a [*a]\nlifecycle: {linger: 1s}": "not-compared",
	} {
		r := check(lifecycle.Config{}, configMap("web", "service.yaml", text)+"---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n"+
			"  volumes: [{name: v, configMap: {name: web}}]\n  containers: [{name: c, image: i, args: [-config=/etc/web/service.yaml], volumeMounts: [{name: v, mountPath: /etc/web}]}]\n")
		if len(findings(r, rule)) != 1 {
			t.Errorf("%s: want %s, have %+v", text, rule, r.Findings)
		}
	}
}

// The text of a report has no control character of a manifest, which could steer the
// terminal or look like a line of the report.
func TestManifestSteersNoTerminal(t *testing.T) {
	r := check(lifecycle.Config{}, strings.ReplaceAll(slowPod("a"), `"a"`, `"a\u001b[31m\n::error::b"`))
	var b strings.Builder
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	if i := strings.IndexFunc(b.String(), func(c rune) bool { return c != '\n' && unicode.IsControl(c) }); i >= 0 || strings.Contains(b.String(), "\n::") || !strings.Contains(b.String(), "a [31m ::error::b") {
		t.Errorf("%q", b.String())
	}
}
