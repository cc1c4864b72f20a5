package isolate_test

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/wasm"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	isolate.Main(js.New(), starlark.New(), wasm.New())
	goleak.VerifyTestMain(m)
}
