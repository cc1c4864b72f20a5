package child

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/pleme-io/lifecycle-go/procpool/wire"
)

// Data is a value with bytes beside it, such as an image or an archive, which are sent
// as they are. A handler may return a Data and give one to [Query.Send]. The pool's
// caller gets both parts. Do not change the bytes afterwards.
type Data struct {
	Value any // encoded as a result is; nil for null
	Bytes []byte
}

// encode encodes what a handler returns or sends.
func encode(v any) (json.RawMessage, []byte, error) {
	d, ok := v.(Data)
	if !ok {
		raw, err := marshal(v)
		return raw, nil, err
	}
	raw, err := marshal(d.Value)
	return raw, d.Bytes, err
}

// next reads the pool's next message, with the bytes that follow it. The error comes from
// reading, or from a field of the wrong type (wire.ErrField).
func (s *server) next(e *wire.Envelope) ([]byte, error) {
	line, err := s.reader.Next()
	if err != nil {
		return nil, err
	}
	bad := wire.Decode(line, e)
	if e.Length == 0 {
		return nil, bad
	}
	if !s.reuses || !s.last.over() { // the last query still uses the memory
		data, err := s.reader.Bytes(e.Length, nil)
		return data, errors.Join(err, bad)
	}
	if cap(s.memory) <= e.Length {
		s.memory = make([]byte, e.Length+1)
	}
	data, err := s.reader.Bytes(e.Length, s.memory)
	return data, errors.Join(err, bad)
}

// over reports whether the handler of the query has returned and its answer is sent. It
// is true of no query.
func (r *running) over() bool {
	if r == nil {
		return true
	}
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// ReuseBytes reads the bytes of each query into the same memory: [Query.Bytes] are valid
// until the handler has returned. It saves the collection of garbage when queries have
// megabytes of them. With a [Concurrency] of more than 1 it has no effect.
func ReuseBytes() Option { return func(s *server) { s.reuses = true } }

// newQuery is the query of a message.
func (s *server) newQuery(e *wire.Envelope, data []byte, run *running) *Query {
	return &Query{ID: e.RequestID, Payload: slices.Clone(e.Payload), Bytes: data, About: aboutOf(&e.About), w: s, run: run}
}
