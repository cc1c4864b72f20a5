package isolate

import (
	"encoding/json"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// ask is what the host asks of a child: the payload of a query of package procpool.
// One of its fields is set. With none it only asks whether the child answers.
type ask struct {
	Load *load `json:"load,omitempty"`
	// Handle has messages to handle in order, until one fails. The answers before the last
	// handled message's are parts of the query's answer.
	Handle []message `json:"handle,omitempty"`
}

// load has the child load code: the bytes beside the query. It must be the first ask that is not
// empty.
type load struct {
	MIMEType string        `json:"mime"`
	Worker   string        `json:"worker"`
	Limits   engine.Limits `json:"limits"`
	MaxCall  int64         `json:"maxCall"`

	Env map[string]string `json:"env,omitempty"`
}

// message is an [engine.Message] with its timer.
type message struct {
	*engine.Message
	Timer *timer `json:"timer,omitempty"` // that is due
	Trace string `json:"trace,omitempty"` // its traceparent
}

// timer is a timer without its data. Due is in milliseconds since 1970.
type timer struct {
	Name string  `json:"name"`
	Due  float64 `json:"due"`
}

// answer is the child's answer. All fields are empty for a load that succeeded and
// for a handler that returned nothing.
type answer struct {
	Outputs []engine.Output `json:"outputs,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"` // in place of Outputs: what an interpreter's handler returned
	Error   string          `json:"error,omitempty"`
	BadCode bool            `json:"badCode,omitempty"` // the error is the code's own fault
	Reject  string          `json:"reject,omitempty"`
	Limit   string          `json:"limit,omitempty"` // the What of a LimitError
	Empty   bool            `json:"empty,omitempty"` // the child has loaded no code
}

// part is a part of a query's answer: a line that the code prints, or the answer to a
// message that is not the last one.
type part struct {
	Print  *string `json:"print,omitempty"`
	Answer *answer `json:"answer,omitempty"`
}

// The methods of a child's calls, with their parameters.
const (
	callGet    = "get"
	callPut    = "put"
	callDelete = "delete"
	callFetch  = "fetch"

	callSet    = "timer.set"
	callCancel = "timer.cancel"
	callList   = "timer.list"
)

// access is the parameter of a call for state, timers or HTTP, and its result. The key of
// a timer is its name, and its value the data. It has either a delay or a time, in
// milliseconds.
type access struct {
	Index int    `json:"i,omitempty"` // of the message in its query
	Key   string `json:"key,omitempty"`
	Value []byte `json:"value,omitempty"`
	Found bool   `json:"found,omitempty"`

	After  *float64 `json:"after,omitempty"`
	At     *float64 `json:"at,omitempty"`
	Timers []timer  `json:"timers,omitempty"`

	Request  *engine.Request  `json:"request,omitempty"`
	Response *engine.Response `json:"response,omitempty"`
}

// The environment of a child.
const (
	envRole = "LIFECYCLE_ENGINE"      // one of the roles
	envSpec = "LIFECYCLE_ENGINE_SPEC" // a spec in JSON, for the role of a launcher
)

// The roles of a process that [Main] knows.
const (
	roleLaunch = "launch" // raises the floor, then becomes the program of its spec
	roleRun    = "run"    // runs code
	roleProbe  = "probe"  // raises the floor, and writes what is missing
)

// spec tells a launcher what to do.
type spec struct {
	Exec []string `json:"exec,omitempty"` // the program and its arguments; empty for the launcher's own, as an engine
	Env  []string `json:"env,omitempty"`  // of that program, beside the pool's
	Read []string `json:"read,omitempty"` // files and folders that it may read, and whose programs it may execute
	// Required makes the launcher fail when a part of the floor is missing.
	Required bool `json:"required,omitempty"`
}

func (s spec) encode() string {
	text, err := json.Marshal(s)
	if err != nil {
		return "" // a spec has only texts
	}
	return string(text)
}
