// Command engine is the program of the children in which a host runs the code of its
// workers: JavaScript, Starlark and WebAssembly, and the launcher for Python. A host
// whose own program calls host.EngineMain first does not need it.
//
//	host.Config{Isolation: isolate.Config{Program: "/usr/local/bin/engine"}}
//
// It runs only as a child of a host.
//
// Begin with package isolate, whose Main does all of the work.
package main

import (
	"fmt"
	"os"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/wasm"
)

func main() {
	isolate.Main(js.New(), starlark.New(), wasm.New())
	fmt.Fprintln(os.Stderr, "engine: a host starts this program to run the code of a worker; it does nothing by itself")
	os.Exit(2)
}
