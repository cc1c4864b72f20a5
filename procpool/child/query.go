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
	Bytes   []byte          // that the caller sent beside the payload, nil for none; the handler may keep them, unless ReuseBytes says otherwise
	About   About

	w   *server
	run *running
}

// errAnswered is returned to a goroutine that uses a query after its handler has
// returned.
var errAnswered = errors.New("the query has been answered")

// write sends one message of up to size bytes, unless the query has been answered.
func (q *Query) write(size int, send func(*wire.Writer) error) error {
	q.w.mu.Lock()
	defer q.w.mu.Unlock()
	q.w.out.room(size)
	if q.run.answered {
		return errAnswered
	}
	return send(q.w.writer)
}

// Session tells the pool the worker's own id of the work. It returns an error once
// the query is answered.
func (q *Query) Session(id string) error {
	return q.write(len(id), func(w *wire.Writer) error { return w.Session(q.ID, id) })
}

// Send sends a part of the answer, encoded as a result is. It waits while the
// pool's caller has enough to read. The pool drops what is sent after the query was
// cancelled. Send returns an error once the query is answered.
//
// A message that comes sooner after another than that took to write may be written after
// Send has returned, together with others: as soon as the write before it has ended. The
// first message of a query is written when Send returns.
func (q *Query) Send(content any) error {
	raw, data, err := q.w.encode(content)
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	size := len(raw) + len(data)
	q.w.mu.Lock()
	first := !q.run.streams
	q.run.streams = true
	q.w.mu.Unlock()
	if first {
		size = max(size, tooLarge) // it waits for what is written, and then does not wait
	}
	return q.write(size, func(w *wire.Writer) error {
		q.w.out.part(first, size)
		return w.MessageBytes(q.ID, raw, data)
	})
}

func marshal(v any) (json.RawMessage, error) {
	if raw, ok := v.(json.RawMessage); ok {
		return raw, wire.CheckValue(raw)
	}
	return json.Marshal(v)
}
