// Package wire is what a pool and its workers say to each other: messages, one
// JSON object on a line each (NDJSON), over a unix stream socket.
//
// The messages are the contract with workers in any language; docs/procpool-wire.md
// tells it in full, and [Validate] holds a line against the JSON Schema of its
// type. Payloads, contents and results are [json.RawMessage] and pass through
// unparsed: this package only looks where they begin and end.
package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Type says what a message is.
type Type string

// What the pool says to a worker.
const (
	Query       Type = "query"        // do this: requestId, payload
	Cancel      Type = "cancel"       // stop doing that: requestId
	Shutdown    Type = "shutdown"     // end; graceful: after the query that runs
	HealthCheck Type = "health_check" // say that you live
)

// What a worker says to the pool.
const (
	Ready       Type = "ready"        // the first message, once
	Session     Type = "session"      // the work has this id on your side: requestId, sessionId
	Message     Type = "message"      // a part of the answer: requestId, content
	Complete    Type = "complete"     // the end of the answer: requestId, result
	Error       Type = "error"        // it went wrong: requestId, error
	ShutdownAck Type = "shutdown_ack" // the last message
	HealthOK    Type = "health_ok"    // uptime in seconds, queriesProcessed
)

// What a worker finds in its environment.
const (
	EnvSocket   = "LIFECYCLE_WORKER_SOCKET"    // the path of the unix socket to connect to
	EnvName     = "LIFECYCLE_WORKER_NAME"      // its name in the pool, for its log
	EnvMaxFrame = "LIFECYCLE_WORKER_MAX_FRAME" // the longest line that may be sent, in bytes with its newline
)

// DefaultMaxFrame is the longest line unless a pool is configured otherwise:
// 16 MiB, the newline included.
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
}

var (
	// ErrNotJSON is wrapped by the error for a line that is not one JSON object
	// and for a payload that is not one JSON value.
	ErrNotJSON = errors.New("not JSON")

	// ErrField is wrapped by the error for a message with a field that is
	// missing or of the wrong type. The message's type is known then.
	ErrField = errors.New("bad field")
)

// Decode reads the line, with or without its newline, into e. What is in
// fields of type RawMessage is part of line and was not copied. Fields with
// other names are skipped. Of a field that is there twice the last one counts,
// as in most parsers.
//
// On an error e holds what was read before it: when a line was cut short, that
// may still say whose it was.
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
	raw := s.b[from:s.i:s.i]
	switch string(name) { // does not allocate
	case "type":
		t, err := text("type", raw)
		e.Type = known(t)
		return err
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
	}
	return err
}

// text returns what the string literal raw says.
func text(field string, raw []byte) (string, error) {
	if raw[0] != '"' {
		return "", fmt.Errorf("%w: %s is %s, want a string", ErrField, field, Excerpt(raw))
	}
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') < 0 && utf8.Valid(inner) && !hasControl(inner) {
		return string(inner), nil
	}
	var out string
	if err := json.Unmarshal(raw, &out); err != nil {
		return "", fmt.Errorf("%w: %s is %s: %w", ErrField, field, Excerpt(raw), err)
	}
	return out, nil
}

// known saves the copy of the types that there are.
func known(t string) Type {
	for _, k := range [...]Type{Query, Complete, Message, Error, Session, Ready, Cancel, Shutdown, HealthCheck, ShutdownAck, HealthOK} {
		if string(k) == t {
			return k
		}
	}
	return Type(t)
}

// check reports a field that the message's type needs and that is missing.
// Types that are not known need nothing.
func (e *Envelope) check() error {
	missing := ""
	switch e.Type {
	case "":
		missing = "type"
	case Query, Cancel, Session, Message, Complete:
		switch {
		case e.RequestID == "":
			missing = "requestId"
		case e.Type == Query && e.Payload == nil:
			missing = "payload"
		case e.Type == Session && e.SessionID == "":
			missing = "sessionId"
		case e.Type == Message && e.Content == nil:
			missing = "content"
		case e.Type == Complete && e.Result == nil:
			missing = "result"
		}
	case Error:
		if e.RequestID == "" {
			missing = "requestId"
		}
	}
	if missing == "" {
		return nil
	}
	if missing == "type" {
		return fmt.Errorf("%w: a message without type", ErrField)
	}
	return fmt.Errorf("%w: a %s without %s", ErrField, e.Type, missing)
}

// Excerpt is the beginning of what somebody sent, quoted, for an error or a
// log: at most 128 bytes of it.
func Excerpt(b []byte) string {
	if len(b) > 128 {
		return fmt.Sprintf("%q… (%d bytes)", b[:128], len(b))
	}
	return fmt.Sprintf("%q", b)
}
