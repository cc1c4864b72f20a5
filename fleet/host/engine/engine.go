// Package engine is what runs hosted code: an [Engine] makes a [Program] of
// bytes that arrived at run time, and a program handles one message after the
// other. Each engine is a package below this one; a [Registry] finds it by MIME
// type.
//
// The contract is the same for every language. Code gets a [Message] and a
// [State], and answers with nothing, with messages to publish, or with an error.
// An error is tried again within the worker's retry budget; one that is a
// [RejectError] is not, and the message goes to the dead letters at once.
//
// The caller of a program may rely on this: Handle returns once its context
// ends, within [Features] that say where a runtime cannot promise it; nothing
// that the code does panics in the caller; what breaks a limit is a
// [LimitError], after which the program can be called again.
package engine

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"slices"
	"strings"
	"time"
)

var (
	// ErrNoEngine is returned by [Registry.Lookup] for a MIME type that no
	// engine has.
	ErrNoEngine = errors.New("no engine for the MIME type")

	// ErrLimit is wrapped by every [LimitError].
	ErrLimit = errors.New("limit exceeded")

	// ErrBadCode is wrapped by the error of a Load whose code can never run:
	// it does not compile, has no handler, or fails while it is loaded.
	ErrBadCode = errors.New("bad code")
)

// Engine makes code runnable. All methods may be called concurrently.
type Engine interface {
	// MIMETypes are the types of code that it takes, without parameters.
	MIMETypes() []string
	// Features says what its runtime can promise.
	Features() Features
	// Load makes a program of code. It runs as little of it as its language
	// allows, and that within the limits. An error that wraps [ErrBadCode] is
	// the code's own fault and will come again; any other may pass.
	Load(ctx context.Context, code []byte, cfg Config) (Program, error)
}

// Program is loaded code.
type Program interface {
	// Handle handles one message. It is never called concurrently, and not
	// after Close. ctx ends when the handler's time is over.
	Handle(ctx context.Context, m *Message, s State) ([]Output, error)
	// Close ends the program and returns once nothing of it runs any more. A
	// second call does nothing.
	Close() error
}

// Features says what a runtime can promise and what it cannot.
type Features struct {
	// Interrupts says that code which never returns is ended when its time is
	// over. Without it the host leaves such a call behind and goes on with a
	// program loaded anew.
	Interrupts bool
	// MemoryLimit says that Limits.Memory is exact. Without it the limit is
	// watched for the process as a whole, or not at all, as Notes say.
	MemoryLimit bool
	// Isolated says that code which crashes its runtime takes nothing else down.
	Isolated bool
	// Notes say in a sentence what holds where one of these is false.
	Notes string
}

// Config is what a program is loaded with.
type Config struct {
	// Worker is the id of the hosted worker, for messages of errors.
	Worker string
	// Limits bound each call. Zero fields have their defaults.
	Limits Limits
	// Log gets what the code prints, line by line, without newlines. Nil
	// drops it. It is called from Handle and Load.
	Log func(line string)
}

// Limits bound what code may take. The zero value of a field is its default.
type Limits struct {
	// Time is how long one message may take. Defaults to 30 s.
	Time time.Duration `koanf:"time" json:"time,omitempty"`
	// Load is how long code may take to load. Defaults to 30 s.
	Load time.Duration `koanf:"load" json:"load,omitempty"`
	// Memory is how many bytes the code may hold. Defaults to 256 MiB.
	Memory int64 `koanf:"memory" json:"memory,omitempty"`
	// Output is how many bytes one message may make: published data, headers
	// and topics, and printed text. Defaults to 1 MiB.
	Output int64 `koanf:"output" json:"output,omitempty"`
	// Outputs is how many messages one message may publish. Defaults to 1000.
	Outputs int `koanf:"outputs" json:"outputs,omitempty"`
}

// WithDefaults returns a copy in which no field is zero.
func (l Limits) WithDefaults() Limits {
	if l.Time == 0 {
		l.Time = 30 * time.Second
	}
	if l.Load == 0 {
		l.Load = 30 * time.Second
	}
	if l.Memory == 0 {
		l.Memory = 256 << 20
	}
	if l.Output == 0 {
		l.Output = 1 << 20
	}
	if l.Outputs == 0 {
		l.Outputs = 1000
	}
	return l
}

// Validate names each field that makes no sense, with what would.
func (l Limits) Validate() error {
	var errs []error
	check := func(name string, negative bool) {
		if negative {
			errs = append(errs, fmt.Errorf("limit %s is negative: use 0 for the default, or a positive value", name))
		}
	}
	check("time", l.Time < 0)
	check("load", l.Load < 0)
	check("memory", l.Memory < 0)
	check("output", l.Output < 0)
	check("outputs", l.Outputs < 0)
	return errors.Join(errs...)
}

// Message is what a handler gets. It belongs to the handler until Handle
// returns, and no caller changes it meanwhile.
type Message struct {
	Worker  string              // the id of the hosted worker
	ID      string              // the same for every delivery of one message, unlike any other's
	Topic   string              // the subject that it was published to
	Attempt int                 // 1 for the first delivery
	Fence   uint64              // the fencing token: see [State]
	Header  map[string][]string // may be nil
	Data    []byte
}

// Output is a message to publish.
type Output struct {
	Topic  string // "" is the worker's output topic
	Header map[string][]string
	Data   []byte
}

// State is a worker's own memory: keys and values that outlive its host.
//
// What a handler writes takes effect when it returns without an error, all of
// it or nothing, and once for each message however often that is delivered. It
// reads what it wrote before. The server takes the writes only while the
// message's fencing token is the newest that was given out for the worker, or
// for its group: a host that was stalled, and has been replaced, cannot write.
//
// A key is 1 to 128 letters, digits, "-", "_", "=", "/" and ".", and begins and
// ends with none of the dots. Methods fail for any other, and when ctx ends.
type State interface {
	// Get returns the value of key, and false when there is none.
	Get(ctx context.Context, key string) ([]byte, bool, error)
	// Put sets it.
	Put(ctx context.Context, key string, value []byte) error
	// Delete removes it; to remove what is not there is no error.
	Delete(ctx context.Context, key string) error
}

// RejectError is an error for good: the message is not tried again and goes to
// the dead letters with the reason.
type RejectError struct{ Reason string }

// Error says that and why it was rejected.
func (e *RejectError) Error() string { return "rejected: " + e.Reason }

// Reject returns a [RejectError].
func Reject(reason string) error { return &RejectError{Reason: reason} }

// LimitError says which limit was broken. It wraps [ErrLimit].
type LimitError struct {
	What  string // "time", "memory", "output" or "outputs"
	Limit string // as a reader would write it
}

// Error says which limit it was.
func (e *LimitError) Error() string { return fmt.Sprintf("%s limit of %s exceeded", e.What, e.Limit) }

// Unwrap returns [ErrLimit].
func (e *LimitError) Unwrap() error { return ErrLimit }

// TimeLimit is the error of a call whose time was over.
func (l Limits) TimeLimit() error { return &LimitError{"time", l.Time.String()} }

// MemoryLimit is the error of a call that took too much memory.
func (l Limits) MemoryLimit() error {
	return &LimitError{"memory", fmt.Sprintf("%d bytes", l.Memory)}
}

// OutputLimit is the error of a call that printed or published too much.
func (l Limits) OutputLimit() error {
	return &LimitError{"output", fmt.Sprintf("%d bytes", l.Output)}
}

// Check checks the outputs of one call against the limits, and against what can
// be published at all: a topic without spaces and wildcards, a header without
// line breaks. What it finds is a [LimitError], or an error that says which
// output is wrong.
func (l Limits) Check(outputs []Output) error {
	if len(outputs) > l.Outputs {
		return &LimitError{"outputs", fmt.Sprintf("%d messages", l.Outputs)}
	}
	var size int64
	for i, o := range outputs {
		size += int64(len(o.Topic)) + int64(len(o.Data))
		if o.Topic != "" && !ValidTopic(o.Topic) {
			return fmt.Errorf("output %d: %q is no topic to publish to: it takes tokens between single dots, without spaces and wildcards", i, o.Topic)
		}
		for name, values := range o.Header {
			if !validHeaderName(name) {
				return fmt.Errorf("output %d: %q is no name of a header: it takes printable ASCII without spaces and colons", i, name)
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

// ValidTopic reports whether something can be published to topic.
func ValidTopic(topic string) bool {
	if len(topic) > 512 {
		return false
	}
	for token := range strings.SplitSeq(topic, ".") {
		if token == "" || strings.ContainsAny(token, "*>") || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return false
		}
	}
	return true
}

func validHeaderName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' })
}

// BadCode wraps err as one that is the code's own fault.
func BadCode(err error) error { return fmt.Errorf("%w: %w", ErrBadCode, err) }

// Registry finds an engine by MIME type. Fill it before the first read; after
// that it may be used concurrently. The zero value is empty.
type Registry struct {
	byType map[string]Engine
}

// NewRegistry returns a registry of engines. Two that take the same type are an
// error.
func NewRegistry(engines ...Engine) (*Registry, error) {
	r := &Registry{byType: make(map[string]Engine)}
	for i, e := range engines {
		if e == nil {
			return nil, fmt.Errorf("engine %d is nil", i)
		}
		for _, t := range e.MIMETypes() {
			base, _, err := mime.ParseMediaType(t)
			if err != nil || base != t {
				return nil, fmt.Errorf("engine %T: %q is no MIME type in lower case without parameters", e, t)
			}
			if other, taken := r.byType[t]; taken {
				return nil, fmt.Errorf("engines %T and %T both take %s", other, e, t)
			}
			r.byType[t] = e
		}
	}
	return r, nil
}

// Lookup returns the engine for mimeType, whose parameters do not count. The
// error wraps [ErrNoEngine] and says which types there are.
func (r *Registry) Lookup(mimeType string) (Engine, error) {
	base, _, err := mime.ParseMediaType(mimeType)
	if err != nil {
		return nil, fmt.Errorf("%w: %q is no MIME type: %w", ErrNoEngine, mimeType, err)
	}
	if e := r.byType[base]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("%w %s: there is one for %s", ErrNoEngine, base, strings.Join(r.MIMETypes(), ", "))
}

// MIMETypes returns every type that there is an engine for, sorted.
func (r *Registry) MIMETypes() []string {
	types := make([]string, 0, len(r.byType))
	for t := range r.byType {
		types = append(types, t)
	}
	slices.Sort(types)
	return types
}

// CheckKey says what is wrong with a key of [State], if anything is.
func CheckKey(key string) error {
	bad := strings.ContainsFunc(key, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-_=/.", r)
	})
	if bad || key == "" || len(key) > 128 || key[0] == '.' || key[len(key)-1] == '.' || strings.Contains(key, "..") {
		return fmt.Errorf("state key %.200q: it takes 1 to 128 letters, digits, \"-\", \"_\", \"=\", \"/\" and single dots inside", key)
	}
	return nil
}
