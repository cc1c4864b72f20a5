package engine

import (
	"context"
	"fmt"
)

// Preparer is a [Program] that needs time before it can handle a message: its code
// runs in a process that has to start first. The host calls Prepare before each
// Handle. The time that Prepare takes does not count against the message's time limit.
// An error is handled like a failed load: the message does not count as tried. Prepare
// returns once ctx ends. When the program is prepared already, a call costs nothing.
type Preparer interface {
	Prepare(ctx context.Context) error
}

// Forerunner is a [Program] that may handle messages before the host asks for them, as
// a processor runs instructions ahead. The next call of Handle calls next, unless the
// program is ahead already. next returns the messages that the host will ask for after
// that one, in this order, unless something comes between. A message that needs state
// waits for it: the host gives the state when it calls Handle for that message. The host
// may ask for other messages instead; then what the program has done ahead is dropped.
type Forerunner interface {
	Ahead(next func() []*Message)
}

// LateLoader is an [Engine] that can make a program without loading its code. The
// first [Preparer.Prepare] loads the code.
type LateLoader interface {
	LoadLater(code []byte, cfg Config) Program
}

// KilledError says that the code ended the process that ran it, or that the process
// had to be ended to end the code. The program starts another process for the next
// message.
type KilledError struct {
	During string // "load" or "message"
	Err    error  // how the process ended
}

// Error says when and how the process ended.
func (e *KilledError) Error() string {
	return fmt.Sprintf("the process of the code ended during the %s: %v", e.During, e.Err)
}

// Unwrap returns Err.
func (e *KilledError) Unwrap() error { return e.Err }

// Trusted returns e as an engine whose code the host runs in its own process. Such
// code can end the host: by memory that runs out, by a stack that overflows, by any
// fault of the interpreter. Use it for code that you trust as you trust the host's
// own. [IsTrusted] tells such an engine from others.
func Trusted(e Engine) Engine { return trusted{e} }

type trusted struct{ Engine }

func (trusted) RunsInProcess() {}

// IsTrusted reports whether the host runs the engine's code in its own process: an
// engine of [Trusted], or one with a method RunsInProcess.
func IsTrusted(e Engine) bool {
	_, is := e.(interface{ RunsInProcess() })
	return is
}
