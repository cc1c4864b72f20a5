package prove

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a kubectl that answers from the files of a folder. The files
// get-deployments.apps, get-services … have the output of "get". With a file error every call fails with its text, and with a
// file hang every call hangs. The file logs has what the load prints. The file calls lists
// the calls.
type fake struct {
	t      *testing.T
	folder string
}

const script = `#!/bin/sh
cd "${0%/*}" || exit 1
case "$*" in *"config view"*) echo team; exit ;; esac
echo "$*" >>calls
[ ! -e hang ] || exec sleep 60
if [ -e error ]; then cat error >&2; exit 1; fi
while case $1 in --*) true ;; *) false ;; esac; do shift 2; done
case $1 in
get)
	if [ -e "get-$4" ]; then cat "get-$4"; exit; fi
	echo "Error from server (NotFound): $4 not found" >&2
	exit 1 ;;
create)
	if [ -e create-error ]; then cat create-error >&2; exit 1; fi ;;
logs)
	cat logs ;;
esac
`

// newFake puts it in front of PATH, with a sound Deployment and its Service.
func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{t, t.TempDir()}
	if err := os.WriteFile(filepath.Join(f.folder, "kubectl"), []byte(script), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	t.Setenv("PATH", f.folder+string(os.PathListSeparator)+os.Getenv("PATH"))
	f.set("get-deployments.apps", webDeployment)
	f.set("get-services", `{"items": [`+webService+`]}`)
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

// change replaces a part of an answer.
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

func (f *fake) remove(name string) {
	f.t.Helper()
	if err := os.Remove(filepath.Join(f.folder, name)); err != nil {
		f.t.Fatal(err)
	}
}
