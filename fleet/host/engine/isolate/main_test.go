package isolate_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/python"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/wasm"
	"github.com/pleme-io/lifecycle-go/fleet/host/internal/attacks"
	"go.uber.org/goleak"
)

// language is an engine, and a handler in it that does nothing.
type language struct {
	name, mime, nothing string
	engine              engine.Engine
}

// languages are the languages that the machine has.
func languages() []language {
	all := []language{
		{"js", "text/javascript", "function handle(message) {}", js.New()},
		{"starlark", "text/x-starlark", "def handle(message): pass", starlark.New()},
		{"wasm", wasm.MIMEType, attacks.Module(nil, ""), wasm.New()},
	}
	if py, err := python.New(); err == nil {
		all = append(all, language{"python", "text/x-python", "def handle(message): pass", py})
	}
	return all
}

// program is fleet/cmd/engine, because the tests themselves, with the race detector, take far
// longer to start as a child. In a pod, where there is no Go to build it with, it is "": the tests
// themselves.
var program string

func TestMain(m *testing.M) {
	isolate.Main(js.New(), starlark.New(), wasm.New())
	if _, err := exec.LookPath("go"); err != nil {
		goleak.VerifyTestMain(m)
		return
	}
	dir, err := os.MkdirTemp("", "engine")
	if err != nil {
		panic(err)
	}
	program = filepath.Join(dir, "engine")
	if out, err := exec.Command("go", "build", "-o", program, "../../../cmd/engine").CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v\n%s", err, out))
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // children of another user run it
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(dir)
		os.Exit(code)
	}))
}
