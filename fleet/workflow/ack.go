package workflow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// answer is the server's answer to one message that writes: the revision or a refusal,
// or why there is none.
type answer struct {
	revision uint64
	err      error
}

// publish sends a message once.
func (b *bucket) publish(ctx context.Context, msg *nats.Msg) *answer {
	if end, ok := ctx.Deadline(); !ok || time.Until(end) > answerTime {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, answerTime)
		defer cancel()
	}
	// The caller retries. A client that retried by itself would take an answer to the
	// first message for one to the second.
	reply, err := b.nc.RequestMsgWithContext(ctx, msg)
	return answered(reply, err)
}

// answered reads the server's answer to a message that writes.
func answered(reply *nats.Msg, err error) *answer {
	if errors.Is(err, nats.ErrNoResponders) {
		return &answer{err: jetstream.ErrNoStreamResponse}
	}
	if err != nil {
		return &answer{err: err}
	}
	revision, err := acknowledged(reply.Data)
	return &answer{revision, err}
}

// acknowledged returns the revision of the server's answer to a write, or its refusal.
func acknowledged(answer []byte) (uint64, error) {
	// The usual answer, {"stream":"KV_MISSIONS","seq":17}, is read without package json.
	if revision, ok := plainAck(answer); ok {
		return revision, nil
	}
	var ack struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
		Seq    uint64              `json:"seq"`
	}
	if err := json.Unmarshal(answer, &ack); err != nil {
		return 0, fmt.Errorf("%w: %w", jetstream.ErrInvalidJSAck, err)
	}
	if ack.Error != nil {
		return 0, ack.Error
	}
	if ack.Stream == "" || ack.Seq == 0 {
		return 0, jetstream.ErrInvalidJSAck
	}
	return ack.Seq, nil
}

// plainAck reads an answer of the form {"stream":"…","seq":17} with nothing else that
// matters after the number.
func plainAck(answer []byte) (revision uint64, ok bool) {
	rest, ok := bytes.CutPrefix(answer, []byte(`{"stream":"`))
	if !ok {
		return 0, false
	}
	end := bytes.IndexByte(rest, '"') // the name of a bucket's stream has no escapes
	if end <= 0 {
		return 0, false
	}
	if rest, ok = bytes.CutPrefix(rest[end:], []byte(`","seq":`)); !ok || len(rest) > 18 { // more digits might overflow
		return 0, false
	}
	for i, c := range rest {
		switch {
		case c >= '0' && c <= '9':
			revision = revision*10 + uint64(c-'0')
		default:
			return revision, c == '}' && i == len(rest)-1 && revision > 0
		}
	}
	return 0, false
}
