package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// codes is where code is stored: host.code.ID.UID.DIGEST.CHUNK in a stream with
// one message a subject. A worker's code is its own, also when another one has
// the same, so that nothing has to be counted to remove it. (It is no object
// store of the client's: that one leaves a goroutine behind when a small object
// is stored quickly, and removes by listing everybody's.)
type codes struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	prefix string // "host.code."
}

const (
	chunkSize    = 256 << 10
	headerChunks = "Lifecycle-Chunks" // how many there are, on each
)

func (s *codes) subject(rec *Record, digest string) string {
	return s.prefix + rec.ID + "." + rec.UID + "." + digest + "."
}

// put stores code. The last chunk makes it whole.
func (s *codes) put(ctx context.Context, rec *Record, digest string, code []byte) error {
	size := int(min(chunkSize, s.js.Conn().MaxPayload()/2))
	n := max(1, (len(code)+size-1)/size)
	for i := range n {
		m := nats.NewMsg(s.subject(rec, digest) + strconv.Itoa(i))
		m.Data = code[min(i*size, len(code)):min((i+1)*size, len(code))]
		m.Header.Set(headerChunks, strconv.Itoa(n))
		if _, err := s.js.PublishMsg(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// get returns code. Who wants to be sure that it is whole verifies its digest.
func (s *codes) get(ctx context.Context, rec *Record, digest string) ([]byte, error) {
	var code bytes.Buffer
	for i, n := 0, 1; i < n; i++ {
		m, err := s.stream.GetLastMsgForSubject(ctx, s.subject(rec, digest)+strconv.Itoa(i))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, fmt.Errorf("chunk %d is not there: %w", i, err)
		}
		if err != nil {
			return nil, err
		}
		if n, err = strconv.Atoi(m.Header.Get(headerChunks)); err != nil {
			return nil, fmt.Errorf("chunk %d: %w", i, err)
		}
		code.Write(m.Data)
	}
	return code.Bytes(), nil
}

// drop removes every version of a worker's code.
func (s *codes) drop(ctx context.Context, rec *Record) error {
	return s.stream.Purge(ctx, jetstream.WithPurgeSubject(s.prefix+rec.ID+"."+rec.UID+".>"))
}
