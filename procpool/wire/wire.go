// Package wire has the messages between a pool and its workers: one JSON object on
// a line each (NDJSON), over a unix stream socket.
//
// The messages are the contract with workers in any language. docs/reference/procpool-wire.md
// describes them in full, and [Validate] checks a line against the JSON Schema of
// its type. Payloads, contents and results are [json.RawMessage] and pass through
// unparsed: this package only finds where they begin and end.
package wire

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// Type is the type of a message.
type Type string

// Messages from the pool to a worker.
const (
	Query       Type = "query"        // do this: requestId, payload, timeoutMs, traceparent, tracestate, metadata, bytes
	Cancel      Type = "cancel"       // stop that query: requestId
	Shutdown    Type = "shutdown"     // end; graceful: after the running query
	HealthCheck Type = "health_check" // answer with health_ok
	Dump        Type = "dump"         // answer with stacks
	Reply       Type = "reply"        // the answer to a call: callId, and result or error
)

// Messages from a worker to the pool.
const (
	Ready       Type = "ready"        // the first message, once: version, capabilities, concurrency
	Session     Type = "session"      // the worker's own id of the work: requestId, sessionId
	Message     Type = "message"      // a part of the answer: requestId, content, bytes
	Complete    Type = "complete"     // the end of the answer: requestId, result, bytes
	Error       Type = "error"        // the query failed: requestId, error
	ShutdownAck Type = "shutdown_ack" // the last message
	HealthOK    Type = "health_ok"    // uptime in seconds, queriesProcessed
	Stacks      Type = "stacks"       // what each thread does, as text
	Call        Type = "call"         // a question to the pool's process: requestId, callId, method, params
)

// The environment variables of a worker.
const (
	EnvSocket   = "LIFECYCLE_WORKER_SOCKET"    // the path of the unix socket to connect to
	EnvFD       = "LIFECYCLE_WORKER_FD"        // the descriptor of the connection, when it is inherited and there is no socket to connect to
	EnvName     = "LIFECYCLE_WORKER_NAME"      // its name in the pool, for its log
	EnvMaxFrame = "LIFECYCLE_WORKER_MAX_FRAME" // the longest line with the bytes after it, in bytes including newlines
	EnvVersion  = "LIFECYCLE_WORKER_WIRE"      // the version of the contract that the pool speaks
	EnvLifeline = "LIFECYCLE_WORKER_LIFELINE"  // the descriptor of a pipe that ends when the pool's process does
)

// DefaultMaxFrame is the default limit of a line: 16 MiB, including the newline.
const DefaultMaxFrame = 16 << 20

// Envelope is a message of any type. Fields that its type does not have are
// zero.
type Envelope struct {
	Type             Type
	RequestID        string
	SessionID        string
	Payload          json.RawMessage // of a query
	Content          json.RawMessage // of a message
	Result           json.RawMessage // of a complete
	Error            string
	Graceful         bool
	Uptime           float64 // in seconds
	QueriesProcessed int64
	Offer            Offer // of a ready; its zero fields were not said
	About            About // of a query
	CallID           string
	Method           string
	Params           json.RawMessage // of a call
	Stacks           string          // of a stacks
	Length           int             // of the bytes that follow the line; see Reader.Bytes

	faults []fault // usually nil
}

// fault is a field of the wrong type. It matters only when the message's type has
// that field.
type fault struct {
	field string
	err   error
}

// Decode reads the line, with or without its newline, into e. Fields of type
// RawMessage are slices of line, not copies. In a worker's message the one that its
// type has is JSON in UTF-8. What a pool sends it has checked with [CheckValue]. Decode skips unknown fields. When a
// field occurs twice the last one counts, as in most parsers.
//
// Decode overwrites e. On an error e has the fields before it. The beginning of a truncated line may
// still say which request it belongs to.
func Decode(line []byte, e *Envelope) error {
	*e = Envelope{}
	s := scanner{b: line}
	if !s.byte('{') {
		return s.fail("want an object, which begins with {")
	}
	s.space()
	if s.peek() == '}' {
		s.i++
	} else {
		for {
			if err := e.field(&s); err != nil {
				return err
			}
			s.space()
			if s.peek() == ',' {
				s.i++
				continue
			}
			if s.peek() == '}' {
				s.i++
				break
			}
			return s.fail("want , or } after a field")
		}
	}
	if s.space(); s.i != len(line) {
		return s.fail("there is more after the object")
	}
	return e.check()
}

// field reads `"name": value`.
func (e *Envelope) field(s *scanner) error {
	s.space()
	name, err := s.string()
	if err != nil {
		return err
	}
	if !s.byte(':') {
		return s.fail("want : after the name of a field")
	}
	s.space()
	from := s.i
	if err := s.value(0); err != nil {
		return err
	}
	e.set(name, s.b[from:s.i:s.i])
	return nil
}

// set stores one field.
func (e *Envelope) set(name, raw []byte) {
	var err error
	switch string(name) { // does not allocate
	case "type":
		var t string
		t, err = text("type", raw)
		e.Type = Type(t)
	case "requestId":
		e.RequestID, err = text("requestId", raw)
	case "sessionId":
		e.SessionID, err = text("sessionId", raw)
	case "error":
		e.Error, err = text("error", raw)
	case "payload":
		e.Payload = raw
	case "content":
		e.Content = raw
	case "result":
		e.Result = raw
	case "graceful":
		switch string(raw) {
		case "true":
			e.Graceful = true
		case "false":
			e.Graceful = false
		default:
			err = fmt.Errorf("%w: graceful is %s, want true or false", ErrField, Excerpt(raw))
		}
	case "uptime":
		if json.Unmarshal(raw, &e.Uptime) != nil || raw[0] == 'n' {
			err = fmt.Errorf("%w: uptime is %s, want a number of seconds", ErrField, Excerpt(raw))
		}
	case "queriesProcessed":
		if json.Unmarshal(raw, &e.QueriesProcessed) != nil || raw[0] == 'n' {
			err = fmt.Errorf("%w: queriesProcessed is %s, want a whole number", ErrField, Excerpt(raw))
		}
	case "stacks":
		e.Stacks, err = text("stacks", raw)
	case "callId":
		e.CallID, err = text("callId", raw)
	case "method":
		e.Method, err = text("method", raw)
	case "params":
		e.Params = raw
	case "traceparent":
		e.About.Traceparent, err = text("traceparent", raw)
	case "tracestate":
		e.About.Tracestate, err = text("tracestate", raw)
	case "timeoutMs":
		e.About.TimeoutMs, err = whole("timeoutMs", raw, 0, int64(1)<<53)
	case "metadata":
		e.About.Metadata = nil
		if json.Unmarshal(raw, &e.About.Metadata) != nil || raw[0] == 'n' {
			err = fmt.Errorf("%w: metadata is %s, want an object of texts", ErrField, Excerpt(raw))
		}
	case "bytes":
		e.Length, err = whole("bytes", raw, 0, math.MaxInt32)
	case "version":
		e.Offer.Version, err = whole("version", raw, 1, Version)
	case "concurrency":
		e.Offer.Concurrency, err = whole("concurrency", raw, 1, MaxConcurrency)
	case "capabilities":
		e.Offer.Capabilities, err = capabilities(raw)
	default:
		return
	}
	e.faults = slices.DeleteFunc(e.faults, func(f fault) bool { return f.field == string(name) }) // the last one counts
	if err != nil {
		e.faults = append(e.faults, fault{string(name), err})
	}
}

// text returns the string of the string literal raw.
func text(field string, raw []byte) (string, error) {
	if raw[0] != '"' {
		return "", fmt.Errorf("%w: %s is %s, want a string", ErrField, field, Excerpt(raw))
	}
	if inner := raw[1 : len(raw)-1]; plain(inner) {
		return string(inner), nil
	}
	var out string
	if err := json.Unmarshal(raw, &out); err != nil {
		return "", fmt.Errorf("%w: %s is %s: %w", ErrField, field, Excerpt(raw), err)
	}
	return out, nil
}

// fields has the fields of each type, with those first that a message must have. Every type
// has "type" and "bytes": what has bytes after it cannot be read over without their length.
var fields = map[Type]struct{ required, optional []string }{
	Query:       {[]string{"requestId", "payload"}, []string{"traceparent", "tracestate", "timeoutMs", "metadata"}},
	Cancel:      {[]string{"requestId"}, nil},
	Shutdown:    {nil, []string{"graceful"}},
	Reply:       {[]string{"callId"}, []string{"result", "error"}},
	Ready:       {nil, []string{"version", "capabilities", "concurrency"}},
	Session:     {[]string{"requestId", "sessionId"}, nil},
	Message:     {[]string{"requestId", "content"}, nil},
	Complete:    {[]string{"requestId", "result"}, nil},
	Error:       {[]string{"requestId"}, []string{"error"}},
	HealthOK:    {nil, []string{"uptime", "queriesProcessed"}},
	Stacks:      {[]string{"stacks"}, nil},
	Call:        {[]string{"callId", "requestId", "method", "params"}, nil},
	HealthCheck: {},
	Dump:        {},
	ShutdownAck: {},
}

// lacks reports whether the message lacks a field that a type may require.
func (e *Envelope) lacks(field string) bool {
	switch field {
	case "requestId":
		return e.RequestID == ""
	case "sessionId":
		return e.SessionID == ""
	case "callId":
		return e.CallID == ""
	case "method":
		return e.Method == ""
	case "stacks":
		return e.Stacks == ""
	case "payload":
		return e.Payload == nil
	case "content":
		return e.Content == nil
	case "params":
		return e.Params == nil
	}
	return e.Result == nil
}

// check reports a missing or wrong field that the message's type needs. Unknown
// types need none.
func (e *Envelope) check() error {
	its := fields[e.Type]
	for _, f := range e.faults {
		if f.field == "type" || f.field == "bytes" || slices.Contains(its.required, f.field) || slices.Contains(its.optional, f.field) {
			return f.err
		}
	}
	if e.Type == "" {
		return fmt.Errorf("%w: a message without type", ErrField)
	}
	for _, field := range its.required {
		if e.lacks(field) {
			return fmt.Errorf("%w: a %s without %s", ErrField, e.Type, field)
		}
	}
	switch e.Type { //nolint:exhaustive // the others have no value of a worker's
	case Message:
		return checkStrings(e.Content)
	case Complete:
		return checkStrings(e.Result)
	case Call:
		return checkStrings(e.Params)
	}
	return nil
}
