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

// codes stores code under $host.code.ID.UID.DIGEST.CHUNK, in a stream with one
// message for each subject. Workers do not share code, even when it is the same, so that
// the removal of a worker's code needs no reference count.
type codes struct {
	chunks
	prefix string // "$host.code."
}

func (s *codes) put(ctx context.Context, rec *Record, digest string, code []byte) error {
	return s.chunks.put(ctx, s.prefix+rec.ID+"."+rec.UID+"."+digest, code)
}

// get returns code. It does not verify the digest; the caller does.
func (s *codes) get(ctx context.Context, rec *Record, digest string) ([]byte, error) {
	return s.chunks.get(ctx, s.prefix+rec.ID+"."+rec.UID+"."+digest)
}

// drop removes every version of a worker's code.
func (s *codes) drop(ctx context.Context, rec *Record) error {
	return s.chunks.drop(ctx, s.prefix+rec.ID+"."+rec.UID)
}

// dropVersion removes one version of a worker's code.
func (s *codes) dropVersion(ctx context.Context, rec *Record, digest string) error {
	return s.chunks.drop(ctx, s.prefix+rec.ID+"."+rec.UID+"."+digest)
}

// chunks stores data that does not fit into one message, as NAME.0, NAME.1 and so
// on. (It does not use the client's object store, which leaves a goroutine running
// when it stores a small object quickly, and lists the objects of all workers to
// remove some.)
type chunks struct {
	js     jetstream.JetStream
	stream jetstream.Stream
}

const (
	chunkSize    = 256 << 10
	headerChunks = "Lifecycle-Chunks" // the number of chunks, on each chunk
)

// put stores data under name. Until it has stored the last chunk, get returns an
// error.
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

// get returns the data stored under name.
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

// drop removes every message below name.
func (s *chunks) drop(ctx context.Context, name string) error {
	return s.stream.Purge(ctx, jetstream.WithPurgeSubject(name+".>"))
}
