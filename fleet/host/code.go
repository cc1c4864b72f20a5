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
// the same, so that nothing has to be counted to remove it.
type codes struct {
	chunks
	prefix string // "host.code."
}

func (s *codes) put(ctx context.Context, rec *Record, digest string, code []byte) error {
	return s.chunks.put(ctx, s.prefix+rec.ID+"."+rec.UID+"."+digest, code)
}

// get returns code. Who wants to be sure that it is whole verifies its digest.
func (s *codes) get(ctx context.Context, rec *Record, digest string) ([]byte, error) {
	return s.chunks.get(ctx, s.prefix+rec.ID+"."+rec.UID+"."+digest)
}

// drop removes every version of a worker's code.
func (s *codes) drop(ctx context.Context, rec *Record) error {
	return s.chunks.drop(ctx, s.prefix+rec.ID+"."+rec.UID)
}

// chunks is what is larger than a message, stored as NAME.0, NAME.1 and so on.
// (It is no object store of the client's: that one leaves a goroutine behind when
// a small object is stored quickly, and removes by listing those of all workers.)
type chunks struct {
	js     jetstream.JetStream
	stream jetstream.Stream
}

const (
	chunkSize    = 256 << 10
	headerChunks = "Lifecycle-Chunks" // how many there are, on each
)

// put stores data under name. The last chunk makes it whole.
func (s *chunks) put(ctx context.Context, name string, data []byte) error {
	size := int(min(chunkSize, s.js.Conn().MaxPayload()/2))
	n := max(1, (len(data)+size-1)/size)
	for i := range n {
		m := nats.NewMsg(name + "." + strconv.Itoa(i))
		m.Data = data[min(i*size, len(data)):min((i+1)*size, len(data))]
		m.Header.Set(headerChunks, strconv.Itoa(n))
		if _, err := s.js.PublishMsg(ctx, m); err != nil {
			return err
		}
	}
	return nil
}

// get returns what is stored under name.
func (s *chunks) get(ctx context.Context, name string) ([]byte, error) {
	var data bytes.Buffer
	for i, n := 0, 1; i < n; i++ {
		m, err := s.stream.GetLastMsgForSubject(ctx, name+"."+strconv.Itoa(i))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, fmt.Errorf("chunk %d is not there: %w", i, err)
		}
		if err != nil {
			return nil, err
		}
		if n, err = strconv.Atoi(m.Header.Get(headerChunks)); err != nil {
			return nil, fmt.Errorf("chunk %d: %w", i, err)
		}
		data.Write(m.Data)
	}
	return data.Bytes(), nil
}

// drop removes what is stored under name and below it.
func (s *chunks) drop(ctx context.Context, name string) error {
	return s.stream.Purge(ctx, jetstream.WithPurgeSubject(name+".>"))
}
