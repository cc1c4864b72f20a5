package prove

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "kubectl" {
		os.Exit(fakeKubectl(os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// fake is a kubectl that answers from a folder: get-deployments, get-services … hold
// what "get" prints, the file denied has verbs that the user must not use, and the
// file hang makes it hang. The file calls lists what it was asked.
type fake struct {
	t      *testing.T
	folder string
}

const fakeFolder = "FAKE_KUBECTL"

// newFake puts it in front of PATH, with a sound Deployment, its Service and its
// endpoint.
func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{t, t.TempDir()}
	bin := t.TempDir()
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, filepath.Join(bin, "kubectl"))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	t.Setenv(fakeFolder, f.folder)
	f.set("get-deployments.apps", webDeployment)
	f.set("get-services", `{"items": [`+webService+`]}`)
	f.set("get-endpointslices.discovery.k8s.io", `{"items": [{"endpoints": [{"conditions": {"ready": true}}]}]}`)
	f.set("get-pods", `{"items": []}`)
	return f
}

const webDeployment = `{"metadata": {"name": "web", "labels": {"lifecycle.pleme.io/prove": "allowed"}},
	"spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
	"spec": {"containers": [{"name": "main", "ports": [{"containerPort": 8080}], "readinessProbe": {"periodSeconds": 1}}]}}},
	"status": {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}}`

const webService = `{"metadata": {"name": "web"}, "spec": {"clusterIP": "10.0.0.1", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}}`

func (f *fake) set(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.folder, name), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// change replaces words of what an answer has.
func (f *fake) change(name, old, new string) {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join(f.folder, name))
	if err != nil || !strings.Contains(string(text), old) {
		f.t.Fatalf("%s has no %q (%v)", name, old, err)
	}
	f.set(name, strings.ReplaceAll(string(text), old, new))
}

func (f *fake) calls() string {
	text, _ := os.ReadFile(filepath.Join(f.folder, "calls")) // there may be none
	return string(text)
}

func fakeKubectl(args []string) int {
	folder := os.Getenv(fakeFolder)
	read := func(name string) (string, bool) {
		text, err := os.ReadFile(filepath.Join(folder, name))
		return string(text), err == nil
	}
	fail := func(format string, a ...any) int {
		fmt.Fprintf(os.Stderr, format+"\n", a...)
		return 1
	}
	calls, err := os.OpenFile(filepath.Join(folder, "calls"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fail("%v", err)
	}
	defer calls.Close()
	fmt.Fprintln(calls, strings.Join(args, " "))
	if _, hang := read("hang"); hang {
		time.Sleep(time.Minute)
	}
	if said, ok := read("error"); ok {
		return fail("%s", said)
	}
	for len(args) > 1 && strings.HasPrefix(args[0], "--") {
		args = args[2:]
	}
	switch args[0] {
	case "get":
		kind := args[3] // get --output json KIND
		text, ok := read("get-" + kind)
		if !ok {
			return fail("Error from server (NotFound): %s %q not found", kind, args[len(args)-1])
		}
		fmt.Println(text)
	case "create":
		denied, _ := read("denied")
		in := json.NewDecoder(os.Stdin)
		for {
			var o map[string]any
			if err := in.Decode(&o); err == io.EOF {
				break
			} else if err != nil {
				return fail("error: %v", err)
			}
			if spec, ok := o["spec"].(map[string]any); ok && o["kind"] == "SelfSubjectAccessReview" {
				verb, _ := spec["resourceAttributes"].(map[string]any)["verb"].(string)
				o["status"] = map[string]any{"allowed": !strings.Contains(denied, verb)}
			} else if refusal, ok := read("create-error"); ok {
				return fail("%s", refusal)
			}
			text, err := json.Marshal(o)
			if err != nil {
				return fail("%v", err)
			}
			fmt.Println(string(text))
		}
	}
	return 0
}

func (f *fake) remove(name string) {
	f.t.Helper()
	if err := os.Remove(filepath.Join(f.folder, name)); err != nil {
		f.t.Fatal(err)
	}
}
