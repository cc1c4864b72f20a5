package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"mime"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/trace"
)

var (
	// ErrNoEngine is wrapped by the error of [Registry.Lookup] for a MIME type
	// that no engine takes.
	ErrNoEngine = errors.New("no engine for the MIME type")

	// ErrLimit is wrapped by every [LimitError].
	ErrLimit = errors.New("limit exceeded")

	// ErrBadCode is wrapped by the error of a Load whose code can never run:
	// it does not compile, has no handler, or fails while it is loaded.
	ErrBadCode = errors.New("bad code")
)

// Engine makes code runnable. All methods may be called concurrently.
type Engine interface {
	// MIMETypes returns the MIME types of the code that the engine takes, without
	// parameters.
	MIMETypes() []string
	// Load makes a program of code. It runs as little of the code as the language
	// allows, and runs it within the limits. An error that wraps [ErrBadCode] is
	// the code's own fault, and another Load fails too. After any other error,
	// another Load may succeed.
	Load(ctx context.Context, code []byte, cfg Config) (Program, error)
}

// Program is loaded code.
type Program interface {
	// Handle handles one message. The host never calls it concurrently or after
	// Close. ctx ends when the handler's time is over.
	Handle(ctx context.Context, m *Message, s State) ([]Output, error)
	// Close ends the program and returns when none of its code runs any more. A
	// second call does nothing.
	Close() error
}

// Config has the settings with which an engine loads a program.
type Config struct {
	// Worker is the id of the hosted worker, for error texts.
	Worker string
	// Limits bound each call. Zero fields have their defaults.
	Limits Limits
	// MaxCall is the largest value of state, or body of a request, that the code may give
	// to the host in one call, in bytes. Defaults to 1 MiB.
	MaxCall int64
	// Disposable says that the caller ends this process when a call takes too long. The
	// engine then need not be able to interrupt code, which costs time.
	Disposable bool
	// Env has variables that the code gets by name: an object or a dictionary with the
	// name env, and the environment for WebAssembly and Python. The values may be
	// secrets.
	Env map[string]string
	// Log gets the lines that the code prints, without their newlines. Handle and
	// Load call it. Nil drops the lines.
	Log func(line string)
}

// Limits bound the resources that code may use. A field that is zero has its
// default.
type Limits struct {
	// Time is how long one message may take. Defaults to 30 s.
	Time time.Duration `koanf:"time" json:"time,omitempty"`
	// Load is how long code may take to load. Defaults to 30 s.
	Load time.Duration `koanf:"load" json:"load,omitempty"`
	// Memory is how many bytes the code may hold. Defaults to 256 MiB.
	Memory int64 `koanf:"memory" json:"memory,omitempty"`
	// Output is how many bytes the handling of one message may produce: published
	// data, headers and topics, and printed text. Defaults to 1 MiB.
	Output int64 `koanf:"output" json:"output,omitempty"`
	// Outputs is how many messages a handler may publish for one message.
	// Defaults to 1000.
	Outputs int `koanf:"outputs" json:"outputs,omitempty"`
}

// WithDefaults returns a copy in which no field is zero.
func (l Limits) WithDefaults() Limits {
	l.Time = cmp.Or(l.Time, 30*time.Second)
	l.Load = cmp.Or(l.Load, 30*time.Second)
	l.Memory = cmp.Or(l.Memory, 256<<20)
	l.Output = cmp.Or(l.Output, 1<<20)
	l.Outputs = cmp.Or(l.Outputs, 1000)
	return l
}

// Validate returns an error that names each invalid field and the values that it
// takes.
func (l Limits) Validate() error {
	var errs []error
	check := func(name string, negative bool) {
		if negative {
			errs = append(errs, fmt.Errorf("limits.%s is negative: use 0 for the default, or a positive value", name))
		}
	}
	check("time", l.Time < 0)
	check("load", l.Load < 0)
	check("memory", l.Memory < 0)
	check("output", l.Output < 0)
	check("outputs", l.Outputs < 0)
	return errors.Join(errs...)
}

// Message is what a handler gets. It belongs to the handler until Handle returns;
// the host does not change it meanwhile.
type Message struct {
	// Worker is the id of the hosted worker.
	Worker string `json:"worker"`
	// ID is unique to the message, and the same for each of its deliveries.
	ID string `json:"id"`
	// Topic is the subject to which the message was published.
	Topic string `json:"topic"`
	// Attempt is 1 for the first delivery.
	Attempt int `json:"attempt"`
	// Fence is the fencing token: see [State].
	Fence  uint64              `json:"fence"`
	Header map[string][]string `json:"headers,omitempty"`
	Data   []byte              `json:"data"`
	// Timer is the timer that is due; nil for a message that was published.
	Timer *Fired `json:"-"`
}

// Trace returns the W3C trace context of the message's headers, none when it has no valid one.
// Code reads its traceparent as message.trace, which is empty without one. A host gives Go code
// a context with it, and gives it to each output that has none of its own.
func (m *Message) Trace() trace.Context { return trace.FromHeader(m.Header) }

// Output is a message to publish.
type Output struct {
	Topic  string              `json:"topic,omitempty"` // "" means the worker's output topic
	Header map[string][]string `json:"headers,omitempty"`
	Data   []byte              `json:"data,omitempty"`
}

// State is a worker's own memory: keys with values, which outlive the host.
//
// The writes of a handler take effect when it returns without an error: all of
// them or none, and once for each message, however often the message is
// delivered. A handler reads its own writes. The server accepts the writes only
// while the message's fencing token is the newest of the worker, or of its group.
// So a host that stalled and was replaced cannot write.
//
// A key consists of 1 to 128 letters, digits, "-", "_", "=", "/" and single dots.
// It does not begin or end with a dot. The methods return an error for any other
// key, and when ctx ends.
type State interface {
	// Get returns the value of key, and false when key has no value.
	Get(ctx context.Context, key string) ([]byte, bool, error)
	// Put sets the value of key.
	Put(ctx context.Context, key string, value []byte) error
	// Delete removes key. It returns nil when key does not exist.
	Delete(ctx context.Context, key string) error
}

// RejectError makes the message a dead letter with this reason. The host does not
// try the message again.
type RejectError struct{ Reason string }

// Error says that the message was rejected, and why.
func (e *RejectError) Error() string { return "rejected: " + e.Reason }

// Reject returns a [RejectError].
func Reject(reason string) error { return &RejectError{Reason: reason} }

// LimitError says which limit the code broke. It wraps [ErrLimit].
type LimitError struct {
	What  string // "time", "memory", "output", "outputs", "state", "timers" or "threads"
	Limit string // in the form that people write, such as "30s"
}

// Error names the limit.
func (e *LimitError) Error() string { return fmt.Sprintf("%s limit of %s exceeded", e.What, e.Limit) }

// Unwrap returns [ErrLimit].
func (e *LimitError) Unwrap() error { return ErrLimit }

// TimeLimit returns the error of a call that took too long.
func (l Limits) TimeLimit() error { return &LimitError{"time", l.Time.String()} }

// MemoryLimit returns the error of a call that used too much memory.
func (l Limits) MemoryLimit() error {
	return &LimitError{"memory", fmt.Sprintf("%d bytes", l.Memory)}
}

// OutputLimit returns the error of a call that printed or published too much.
func (l Limits) OutputLimit() error {
	return &LimitError{"output", fmt.Sprintf("%d bytes", l.Output)}
}

// Check checks the outputs of one call. It returns a [LimitError] when they
// exceed the limits, and an error that names the output when one cannot be
// published: a topic has no spaces or wildcards, and a header no line breaks.
func (l Limits) Check(outputs []Output) error {
	if len(outputs) > l.Outputs {
		return &LimitError{"outputs", fmt.Sprintf("%d messages", l.Outputs)}
	}
	var size int64
	for i, o := range outputs {
		size += int64(len(o.Topic)) + int64(len(o.Data))
		if o.Topic != "" && !ValidTopic(o.Topic) {
			return fmt.Errorf("output %d: %q is not a topic to publish to: want tokens between single dots, "+
				"without spaces and wildcards", i, o.Topic)
		}
		for name, values := range o.Header {
			if !validHeaderName(name) {
				return fmt.Errorf("output %d: %q is not a header name: want printable ASCII without spaces and colons", i, name)
			}
			for _, v := range values {
				size += int64(len(name)) + int64(len(v))
				if strings.ContainsAny(v, "\r\n") {
					return fmt.Errorf("output %d: the header %s contains a line break", i, name)
				}
			}
		}
	}
	if size > l.Output {
		return l.OutputLimit()
	}
	return nil
}

// ValidTopic reports whether a message can be published to topic.
func ValidTopic(topic string) bool {
	if len(topic) > 512 {
		return false
	}
	for token := range strings.SplitSeq(topic, ".") {
		if token == "" || strings.ContainsAny(token, "*>") || strings.ContainsFunc(token, isBlank) {
			return false
		}
	}
	return true
}

// isBlank reports whether r is a space or a control character of ASCII.
func isBlank(r rune) bool { return r <= ' ' || r == 0x7f }

func validHeaderName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' })
}

// BadCode returns an error that wraps err and [ErrBadCode]: the code's own fault.
func BadCode(err error) error { return fmt.Errorf("%w: %w", ErrBadCode, err) }

// Registry finds an engine by MIME type. Fill it before the first read; after
// that it may be used concurrently. The zero value is empty.
type Registry struct {
	byType map[string]Engine
}

// NewRegistry returns a registry of engines. It returns an error when two engines
// take the same type.
func NewRegistry(engines ...Engine) (*Registry, error) {
	r := &Registry{byType: make(map[string]Engine)}
	for i, e := range engines {
		if e == nil {
			return nil, fmt.Errorf("engine %d is nil", i)
		}
		for _, t := range e.MIMETypes() {
			base, _, err := mime.ParseMediaType(t)
			if err != nil || base != t {
				return nil, fmt.Errorf("engine %T: %q is not a MIME type in lower case without parameters", e, t)
			}
			if other, taken := r.byType[t]; taken {
				return nil, fmt.Errorf("engines %T and %T both take %s", other, e, t)
			}
			r.byType[t] = e
		}
	}
	return r, nil
}

// Lookup returns the engine for mimeType. It ignores the type's parameters. The
// error wraps [ErrNoEngine] and lists the types that have an engine.
func (r *Registry) Lookup(mimeType string) (Engine, error) {
	base, _, err := mime.ParseMediaType(mimeType)
	if err != nil {
		return nil, fmt.Errorf("%w: %q is not a MIME type: %w", ErrNoEngine, mimeType, err)
	}
	if e := r.byType[base]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("%w %s: the host has engines for %s", ErrNoEngine, base, strings.Join(r.MIMETypes(), ", "))
}

// MIMETypes returns every type that has an engine, sorted.
func (r *Registry) MIMETypes() []string {
	types := make([]string, 0, len(r.byType))
	for t := range r.byType {
		types = append(types, t)
	}
	slices.Sort(types)
	return types
}

// Each returns a copy of the registry in which every engine is replaced by what change
// returns for it. It calls change once for each MIME type.
func (r *Registry) Each(change func(mimeType string, e Engine) Engine) *Registry {
	changed := &Registry{byType: make(map[string]Engine, len(r.byType))}
	for t, e := range r.byType {
		changed.byType[t] = change(t, e)
	}
	return changed
}

// CheckName returns an error that says what is wrong with a name in [Config].Env, and
// nil for a valid name.
func CheckName(name string) error {
	for i, r := range name {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && r != '_' && (i == 0 || r < '0' || r > '9') {
			return fmt.Errorf("%.200q is not a name of a variable: want letters, digits and _, and no digit first", name)
		}
	}
	if name == "" || len(name) > 128 || strings.HasPrefix(name, "LIFECYCLE_") {
		return fmt.Errorf("%.200q is not a name of a variable: want 1 to 128 letters, digits and _, "+
			"not beginning with LIFECYCLE_", name)
	}
	return nil
}

// CheckKey returns an error that says what is wrong with a key of [State], and
// nil for a valid key.
func CheckKey(key string) error {
	bad := strings.ContainsFunc(key, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_=/.", r)
	})
	if bad || key == "" || len(key) > 128 || key[0] == '.' || key[len(key)-1] == '.' || strings.Contains(key, "..") {
		return fmt.Errorf("state key %.200q: want 1 to 128 letters, digits, \"-\", \"_\", \"=\", \"/\" "+
			"and single dots inside", key)
	}
	return nil
}
