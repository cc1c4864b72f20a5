package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Exit is how an instance of a worker ended.
type Exit struct {
	Status Status `json:"status,omitempty"`
	Error  string `json:"error,omitempty"` // the text of its error, "" for none
	PID    int    `json:"pid,omitempty"`   // of a process
	// Code is the exit code of a process or container. It is -1 when there is none: a signal
	// ended it, or it is a function that failed.
	Code   int    `json:"code"`
	Signal string `json:"signal,omitempty"` // the signal that ended it: SIGSEGV
	OOM    bool   `json:"oom,omitempty"`    // the kernel killed it for lack of memory, as far as the worker can tell
	// Cut says that the worker stopped reading the program's output before its end: another
	// process kept it open, its Writer did not take it, or the engine of a container did not give it.
	Cut bool      `json:"cut,omitempty"`
	At  time.Time `json:"at,omitzero"` // when it ended
}

// Handover is what a supervisor gives to a new instance of a child before it starts.
type Handover struct {
	// Session is the same for every instance of one child, as long as its
	// outermost supervisor lives. An instance can store its unfinished work under
	// this id for the next one.
	Session string
	// Restarts is the number of instances before this one.
	Restarts int
	// Previous is how the previous instance ended, nil for the first.
	Previous *Exit
}

// The variables in which a process finds its [Handover].
const (
	EnvSession  = "LIFECYCLE_SESSION"
	EnvRestarts = "LIFECYCLE_RESTARTS"
	EnvPrevious = "LIFECYCLE_PREVIOUS_EXIT" // an Exit as JSON; not set for the first instance
)

// maxHandoverError bounds the previous error in the environment, in bytes: the
// kernel takes 128 KiB for one variable, and refuses to start a program with
// more.
const maxHandoverError = 4096

type handoverKey struct{}

// WithHandover returns a context that passes h to the worker that is started with
// it.
func WithHandover(ctx context.Context, h Handover) context.Context {
	return context.WithValue(ctx, handoverKey{}, h)
}

// HandoverFrom returns the [Handover] that a supervisor has passed to the
// function that got ctx.
func HandoverFrom(ctx context.Context) (Handover, bool) {
	switch h := ctx.Value(handoverKey{}).(type) {
	case Handover:
		return h, true
	case *instance:
		return Handover{Session: h.child.s.sessionOf(h.child.name), Restarts: h.restarts, Previous: h.previous}, true
	}
	return Handover{}, false
}

// sessionOf returns the session id of the child of that name.
func (s *Supervisor) sessionOf(name string) string {
	sum := sha256.Sum256([]byte(s.session + "\x00" + name))
	return hex.EncodeToString(sum[:16])
}

// Environ returns h as variables, in the form of [os.Environ].
func (h Handover) Environ() []string {
	// The empty variable hides the handover of this process itself.
	previous := ""
	if h.Previous != nil {
		exit := *h.Previous
		exit.Error = text.Head(exit.Error, maxHandoverError)
		if text, err := json.Marshal(exit); err == nil { // never fails for times of this program
			previous = string(text)
		}
	}
	return []string{
		EnvSession + "=" + strings.ReplaceAll(h.Session, "\x00", ""),
		EnvRestarts + "=" + strconv.Itoa(h.Restarts),
		EnvPrevious + "=" + previous,
	}
}

// HandoverFromEnv returns the [Handover] that a supervisor has passed to this
// process. ok is false when there is none. The error names a variable with an
// invalid value.
func HandoverFromEnv() (h Handover, ok bool, err error) {
	return parseHandover(os.LookupEnv)
}

func parseHandover(lookup func(string) (string, bool)) (h Handover, ok bool, err error) {
	h.Session, ok = lookup(EnvSession)
	if !ok || h.Session == "" {
		return Handover{}, false, nil
	}
	if text, _ := lookup(EnvRestarts); text != "" {
		if h.Restarts, err = strconv.Atoi(text); err != nil || h.Restarts < 0 {
			return Handover{}, false, fmt.Errorf("%s is %q, want a number of restarts", EnvRestarts, text)
		}
	}
	if text, _ := lookup(EnvPrevious); text != "" {
		var exit Exit
		if err := json.Unmarshal([]byte(text), &exit); err != nil {
			return Handover{}, false, fmt.Errorf("%s is not the JSON of an exit: %w", EnvPrevious, err)
		}
		h.Previous = &exit
	}
	return h, true, nil
}

type stopCauseKey struct{}

// withStopCause returns a context for Stop. A worker that is stopped with it sees
// cause as its context.Cause.
func withStopCause(ctx context.Context, cause error) context.Context {
	if cause == nil {
		return ctx
	}
	return context.WithValue(ctx, stopCauseKey{}, cause)
}

func stopCause(ctx context.Context) error {
	if cause, ok := ctx.Value(stopCauseKey{}).(error); ok {
		return cause
	}
	return ErrStopRequested
}
