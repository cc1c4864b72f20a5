package vet_test

import (
	"io"
	"strings"
	"testing"

	"github.com/pleme-io/lifecycle-go/vet"
)

// FuzzManifest checks that Check reports on any file, that every finding has a
// rule, a reason, a fix and a line, and that each form of a report can be written.
func FuzzManifest(f *testing.F) {
	f.Add("m.yaml", clean)
	f.Add("m.yaml", jobManifest)
	for _, in := range inputs {
		f.Add("m.yaml", in.String())
	}
	for _, more := range []string{hpaV1, keda, operator} {
		f.Add("m.yaml", clean+more)
	}
	for _, line := range []string{
		"[/lifecycle-run, '--proxy=http://127.0.0.1:1', '--addr=:2', --, sh, -c, 'x --bind [::1]:3']",
		"[lifecycle-run, '--listen=:1', --, x, -b, tcp://a]",
	} {
		f.Add("m.yaml", strings.Replace(clean, "          startupProbe:", "          command: "+line+"\n          startupProbe:", 1))
	}
	f.Add("m.yaml", bomb())
	f.Add("Dockerfile", "FROM a\nSTOPSIGNAL SIGKILL\nCMD /app\n")
	f.Add("Dockerfile", "FROM a\nENTRYPOINT [\"lifecycle-run\", \"--\"]\nCMD [\"sh\", \\\n\"-c\", \"exec npm start\"]\n")
	for _, seed := range []string{
		"", "---", "--- a", "{}", "[]", "a: &a [*a]", "<<: *x", "? {a: b}\n: c", "kind: List\napiVersion: v1\nitems: [1, {kind: Pod, apiVersion: v1}]", "kind: PodList\napiVersion: v1\nitems: {}",
		"apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, livenessProbe: {httpGet: {path: x, port: y}}}]}",
		"apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: -1, strategy: {rollingUpdate: {maxUnavailable: 9%%}}, template: {spec: {containers: [{}]}}}",
		"apiVersion: a/b/c\nkind: Pod", "apiVersion: v1\nkind: Pod\nspec: {terminationGracePeriodSeconds: 1e400}", "a: {{ .b }}", "a: !!binary x", "%YAML 9\n---\na", "a: \xff", "\t",
		"apiVersion: v1\nkind: Pod\nspec:\n  x[0].y: 1\n  'a]': 1\n  containers: [{name: a, readinessProbe: {periodSeconds: 2147483647, failureThreshold: 2147483647}}]",
	} {
		f.Add("m.yaml", seed)
	}
	f.Fuzz(func(t *testing.T, name, text string) {
		r := vet.Checker{Config: cleanConfig()}.Check(vet.File{Name: name, Data: []byte(text)})
		for _, found := range r.Findings {
			if found.Rule == "" || found.Reason == "" || found.Fix == "" || found.Line < 1 {
				t.Errorf("%+v", found)
			}
		}
		for _, write := range []func(io.Writer) error{r.WriteText, r.WriteJSON, r.WriteSARIF} {
			if err := write(io.Discard); err != nil {
				t.Error(err)
			}
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	file := vet.File{Name: "m.yaml", Data: []byte(clean)}
	b.SetBytes(int64(len(clean)))
	b.ReportAllocs()
	for b.Loop() {
		if r := (vet.Checker{Config: cleanConfig()}).Check(file); len(r.Findings) > 0 {
			b.Fatal(r.Findings)
		}
	}
}
