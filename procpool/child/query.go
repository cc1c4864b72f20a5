package child

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// Query is one query for a handler. Its methods may be called concurrently until
// the handler has returned.
type Query struct {
	ID      string
	Payload json.RawMessage // the handler may keep it
	// Bytes are the bytes that the caller sent beside the payload, nil for none. The handler may
	// keep them, unless ReuseBytes says otherwise.
	Bytes []byte
	About About

	w   *server
	run *running
}

// errAnswered is returned to a goroutine that uses a query after its handler has
// returned.
var errAnswered = errors.New("the query has been answered")

// write sends one message, unless the query has been answered.
func (q *Query) write(send func(*wire.Writer) error) error {
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	if q.run.answered {
		return errAnswered
	}
	return send(q.w.writer)
}

// Session tells the pool the worker's own id of the work. It returns an error once
// the query is answered.
func (q *Query) Session(id string) error {
	return q.write(func(w *wire.Writer) error { return w.Session(q.ID, id) })
}

// Send sends a part of the answer, encoded as a result is. It is written when Send returns.
// Send waits while the pool's caller has enough to read. The pool drops what is sent after
// the query was cancelled. Send returns an error once the query is answered.
func (q *Query) Send(content any) error {
	raw, data, err := encode(content)
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return q.write(func(w *wire.Writer) error { return w.Message(q.ID, raw, data) })
}

func marshal(v any) (json.RawMessage, error) {
	if raw, ok := v.(json.RawMessage); ok {
		return raw, wire.CheckValue(raw)
	}
	return json.Marshal(v)
}
