// Package python is the engine for Python, run by the system's python3 in a
// process of its own for each worker (package procpool).
//
// Code defines a function handle that takes a message:
//
//	def handle(message):
//	    seen = int(state.get("seen") or 0) + 1
//	    state.put("seen", str(seen))
//	    if not message.text:
//	        reject("an empty order")
//	    return {"topic": "orders.done", "data": message.text.upper(), "headers": {"Seen": str(seen)}}
//
// message has worker, id, topic, attempt, fence, headers (name to a list of
// texts), data (bytes) and text. The result is None, text or bytes for the
// worker's output topic, a dict with topic, data and headers, or a list of these.
// state.get returns text or None, state.get_bytes bytes or None; state.put and
// state.delete change the state. reject(reason), or raise Reject(reason), makes
// the message a dead letter; after any other exception the host tries the message
// again. fetch(url, method="GET", headers=None, body=None) sends an HTTP request that the
// worker's spec allows, and returns status, url, headers (name to a list of texts), data,
// text and json(). os.environ has the worker's variables. print writes to the log.
//
// timers.set(name, delay, data) sets a timer for the message's key, which is due after so
// many milliseconds; timers.set(name, at=time, data=data) sets one for a time: a datetime,
// or milliseconds since 1970. timers.cancel(name) removes one, and timers.list() returns a
// list of objects with name and due. When it is due, handle gets a message with this data
// whose timer has name, due (milliseconds since 1970) and attempt. message.timer of any
// other message is None.
//
// The code writes no file: what lasts belongs into state. Globals last from one message to the
// next, and are lost when the process ends. The memory
// of the code is the process's address space beyond what the interpreter takes (RLIMIT_AS,
// which macOS does not enforce).
//
// The code runs in a process of its own, also in a host that trusts it: the engine
// itself runs nothing. Package isolate says what such a process may do. In a host
// with [engine.Trusted], or on another system than Linux, this is not a sandbox: the
// code has all rights of the host's user, for files and for the network, and only its
// environment is its own.
//
// Begin with [New]. It uses packages isolate and procpool.
package python

import (
	"context"
	_ "embed" // embeds the runner
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/isolate"
	"github.com/pleme-io/lifecycle-go/procpool/sdk"
)

//go:embed runner.py
var runner string

// Engine runs Python.
type Engine struct {
	python string
	read   []string // what the interpreter reads
}

// New returns an engine that runs the python3 of the PATH, and an error when there is
// none. It runs the interpreter once, to learn where its files are.
func New() (*Engine, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	const paths = "import sys; print(sys.executable, sys.prefix, sys.base_prefix, sep='\\n')"
	cmd := exec.CommandContext(ctx, "python3", "-c", paths)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("python engine: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 3 {
		return nil, fmt.Errorf("python engine: python3 says %.200q, want its path and its prefixes", text)
	}
	program, err := filepath.EvalSymlinks(lines[0])
	if err != nil {
		return nil, fmt.Errorf("python engine: %w", err)
	}
	e := &Engine{python: lines[0], read: []string{lines[0], program}}
	for _, prefix := range lines[1:] { // they differ in a virtual environment
		for _, name := range []string{"lib", "lib64", "pyvenv.cfg"} {
			e.read = append(e.read, filepath.Join(prefix, name))
		}
	}
	return e, nil
}

// MIMETypes returns the MIME types of Python code.
func (*Engine) MIMETypes() []string { return []string{"text/x-python", "application/x-python"} }

// begin runs the runner and the module that it imports, which are in the environment: the
// process needs no folder of its own.
const begin = `import os, sys, types
module = sys.modules["lifecycle_worker"] = types.ModuleType("lifecycle_worker")
exec(compile(os.environ.pop("LIFECYCLE_MODULE"), "lifecycle_worker.py", "exec"), module.__dict__)
exec(compile(os.environ.pop("LIFECYCLE_RUNNER"), "runner.py", "exec"))
`

// Command returns the command that runs the runner.
func (e *Engine) Command() (argv, env, read []string) {
	// Isolated: neither the working folder nor the user's has modules. B: it writes no byte code.
	argv = []string{e.python, "-I", "-B", "-u", "-c", begin}
	env = []string{
		"LIFECYCLE_MODULE=" + sdk.Python,
		"LIFECYCLE_RUNNER=" + runner,
		"PATH=/usr/bin:/bin",
		"LANG=C.UTF-8",
		"HOME=/",
		// glibc reserves 64 MiB or more for each thread that allocates, and the limit counts them (mallopt(3)).
		"MALLOC_ARENA_MAX=1",
	}
	return argv, env, e.read
}

// Load starts the process, without a floor, and makes it load the code.
func (e *Engine) Load(ctx context.Context, code []byte, cfg engine.Config) (engine.Program, error) {
	return isolate.Bare(e.MIMETypes()[0], e).Load(ctx, code, cfg)
}

// LoadLater makes a program that does so when it is prepared.
func (e *Engine) LoadLater(code []byte, cfg engine.Config) engine.Program {
	return isolate.Bare(e.MIMETypes()[0], e).LoadLater(code, cfg)
}
