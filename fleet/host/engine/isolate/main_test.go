package isolate_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/python"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/wasm"
	"go.uber.org/goleak"
)

// language is an engine, and a handler in it that does nothing.
type language struct {
	name, mime, nothing string
	engine              engine.Engine
}

// languages are those that the machine has.
func languages() []language {
	all := []language{
		{"js", "text/javascript", "function handle(message) {}", js.New()},
		{"starlark", "text/x-starlark", "def handle(message): pass", starlark.New()},
		{"wasm", wasm.MIMEType, module(nil, ""), wasm.New()},
	}
	if py, err := python.New(); err == nil {
		all = append(all, language{"python", "text/x-python", "def handle(message): pass", py})
	}
	return all
}

func TestMain(m *testing.M) {
	isolate.Main(js.New(), starlark.New(), wasm.New())
	goleak.VerifyTestMain(m)
}
