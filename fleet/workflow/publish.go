package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/worker"
)

// answerTime is how long a write waits for the server's answer before the writer looks for the
// write in the bucket.
const answerTime = 3 * time.Second

// maxConflicts bounds how often a write to a replicated bucket retries a conflict
// with a write that it cannot find. That takes about a second: as long as a replaced
// leader may not know that it was replaced.
const maxConflicts = 20

// retryPause is the wait before another attempt of a write, or of a question to a server that is
// away. It is anything from 0 up to a bound that doubles to 100 ms, so that writers that collided
// do not collide again.
var retryPause = worker.Backoff{Min: time.Millisecond, Max: 100 * time.Millisecond, Jitter: 1}

var errUntraceable = errors.New("there are later writes, and the bucket's history is too short to find this one")

// errConflict says that the record has changed since it was read.
var errConflict = errors.New("conflict")

// answer is the server's answer to one message that writes: the revision, or why there is
// none.
type answer struct {
	revision uint64
	err      error
	unsent   bool // the message was not sent, and will not be
}

// publish sends a message once, and notes in b.doubtful whether the server may take no writes.
func (b *bucket) publish(ctx context.Context, msg *nats.Msg) *answer {
	got := b.send(ctx, msg)
	switch {
	case got.err == nil && b.doubtful.Load():
		b.doubtful.Store(false)
	case got.isDoubtful():
		b.doubtful.Store(true)
	}
	return got
}

// isDoubtful reports whether the server may take no writes at all: it has not answered a message
// that was sent, or it could not store it.
func (a *answer) isDoubtful() bool {
	switch {
	case a.err == nil, a.unsent, isUnsent(a.err), natserr.Conflict(a.err):
		return false
	}
	return isStoreFault(a.err) || !isRefusal(a.err)
}

// send sends a message once. The client library would send it again when no answer comes, and
// could take an answer to the first message for an answer to the second.
func (b *bucket) send(ctx context.Context, msg *nats.Msg) *answer {
	if ctx.Err() != nil {
		return &answer{err: b.over(ctx), unsent: true}
	}
	if b.nc.IsClosed() {
		return &answer{err: nats.ErrConnectionClosed, unsent: true}
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	reply, err := b.nc.RequestMsgWithContext(ctx, msg)
	if denied := b.denied(msg.Subject); err != nil && denied != nil {
		return &answer{err: denied, unsent: true}
	}
	if err != nil {
		return &answer{err: natserr.Plain(err)}
	}
	return answerOf(reply)
}

// over returns the error of a write whose time ended before it was sent. It says when the server
// was away.
func (b *bucket) over(ctx context.Context) error {
	if b.nc.IsConnected() {
		return context.Cause(ctx)
	}
	return fmt.Errorf("%w: %w", context.Cause(ctx), nats.ErrDisconnected)
}

// answerOf reads the server's answer.
func answerOf(reply *nats.Msg) *answer {
	if len(reply.Data) == 0 && reply.Header.Get("Status") == "503" {
		return &answer{err: jetstream.ErrNoStreamResponse}
	}
	var ack struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
		Seq    uint64              `json:"seq"`
	}
	err := json.Unmarshal(reply.Data, &ack)
	switch {
	case err == nil && ack.Error != nil:
		return &answer{err: ack.Error}
	case err == nil && ack.Seq > 0 && ack.Stream != "":
		return &answer{revision: ack.Seq}
	}
	return &answer{err: fmt.Errorf("%w: %.100q", jetstream.ErrInvalidJSAck, reply.Data)}
}

// resolve returns the revision of an attempt that publish did not get a revision for. It
// returns errConflict when the record has changed since it was read, and ErrOutcomeUnknown
// when ctx ended or the connection was closed before the outcome was known. After any
// other error nothing was written.
//
// When there is no answer, or a replaced leader may have given it, resolve looks for the
// message in the bucket: see fate.
func (b *bucket) resolve(ctx context.Context, key string, a *attempt, got *answer) (uint64, error) {
	fail := func(errs ...error) (uint64, error) {
		return 0, fmt.Errorf("write %s/%s: %w", b.name, key, join(errs...))
	}
	sent := false       // a server may have a message
	unanswered := false // a message got no answer
	conflicts := 0
	for n := 1; got.err != nil; n++ {
		switch {
		case natserr.Conflict(got.err):
			if !sent && b.traits.single.Load() {
				return 0, errConflict
			}
			sent = true
			conflicts++
		case !sent && (got.unsent || isRefusal(got.err)):
			return fail(b.explain(a.msg, got.err))
		case !isUnsent(got.err):
			sent, unanswered = true, true
		}
		if sent {
			revision, is, err := b.fate(ctx, key, a)
			switch {
			case err != nil:
				return fail(ErrOutcomeUnknown, err, got.err)
			case is == landed:
				return revision, nil
			case is == superseded:
				return 0, errConflict
			case is == untraceable && unanswered:
				return fail(ErrOutcomeUnknown, errUntraceable)
			case is == untraceable: // every message was answered with a conflict, so none was stored
				return 0, errConflict
			case !unanswered && conflicts >= maxConflicts:
				// After so many conflicts with a write that is not there, the bucket was restored from
				// a backup.
				return 0, errConflict
			}
		} else if _, err := b.last(ctx, key); errors.Is(err, jetstream.ErrBucketNotFound) {
			return 0, err // no server answers because the bucket is missing, not because a server has just started
		}
		why := got.err
		if retryPause.Sleep(ctx, n) == nil {
			got = b.publish(ctx, a.msg)
			if !got.unsent || ctx.Err() == nil {
				continue
			}
		}
		// There is no time for another attempt: the last one says why there is no revision.
		if sent {
			return fail(ErrOutcomeUnknown, context.Cause(ctx), why)
		}
		return fail(context.Cause(ctx), why)
	}
	return got.revision, nil
}

// fate is what became of an attempt. Its message expects to follow another one of its key, and a
// message has one successor. When the successor is the attempt, it was carried out. When it is another
// message, the server has refused the attempt and always will. When there is no successor yet, the
// attempt may still be stored, and the caller sends it again: the server accepts one of the two.
type fate int

const (
	undecided   fate = iota // nothing follows the expected message yet
	landed                  // it was carried out
	superseded              // another message follows the expected one
	untraceable             // the bucket no longer has the successor, but later messages
)

// fate asks what became of an attempt until the server answers. It returns the revision of one that has
// landed, and an error when ctx ends or the connection is closed for good.
func (b *bucket) fate(ctx context.Context, key string, a *attempt) (uint64, fate, error) {
	for n := 1; ; n++ {
		revision, is, err := b.find(ctx, key, &a.d)
		switch {
		case err == nil:
			return revision, is, nil
		case b.nc.IsClosed():
			return 0, is, nats.ErrConnectionClosed
		case retryPause.Sleep(ctx, n) != nil:
			return 0, is, join(context.Cause(ctx), err)
		}
	}
}

// find is one question of fate. It asks the stream's leader: a replica or a mirror may lag.
func (b *bucket) find(ctx context.Context, key string, d *decision) (uint64, fate, error) {
	msg, err := b.get(ctx, getRequest{Seq: d.on + 1, Next: b.subject(key)})
	after, err := b.entry(msg, err)
	switch {
	case isNotFound(err):
		return 0, undecided, nil
	case err != nil:
		return 0, undecided, err
	case after.op == d.op:
		return after.revision, landed, nil
	case after.chained && after.on == d.on, msg.Header.Get(headerExpected) == strconv.FormatUint(d.on, 10):
		return 0, superseded, nil
	case d.on == 0:
		return 0, untraceable, nil
	}
	// The message found may be a later one, or the successor, written by a program that
	// expected nothing. It is the successor if the expected message is still there.
	before, err := b.next(ctx, key, d.on)
	switch {
	case err != nil && !isNotFound(err):
		return 0, undecided, err
	case err == nil && before.revision == d.on:
		return 0, superseded, nil
	}
	return 0, untraceable, nil
}

// join returns an error that wraps all, on one line.
func join(errs ...error) error {
	err := errs[0]
	for _, next := range errs[1:] {
		err = fmt.Errorf("%w: %w", err, next)
	}
	return err
}

// isRefusal reports whether the server did not and will not take the message, or
// the client did not send it. A server that is electing a leader answers 503.
func isRefusal(err error) bool {
	if isStoreFault(err) {
		return true
	}
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return api.Code != 503
	}
	return isAnyOf(err, nats.ErrMaxPayload, nats.ErrConnectionDraining, nats.ErrBadSubject, nats.ErrHeadersNotSupported)
}

// isStoreFault reports whether the server could not store the message.
func isStoreFault(err error) bool {
	return natserr.Is(err, natserr.StoreFailed,
		natserr.StorageExceeded, natserr.MemoryExceeded, natserr.InsufficientResources)
}

// isUnsent reports whether no server can have received the message: there was no
// connection, or no stream listens.
func isUnsent(err error) bool {
	return isAnyOf(err, nats.ErrReconnectBufExceeded, nats.ErrNoResponders, jetstream.ErrNoStreamResponse)
}

func isAnyOf(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// explain adds the missing detail to a refusal.
func (b *bucket) explain(msg *nats.Msg, err error) error {
	switch {
	case natserr.TooLarge(err):
		return fmt.Errorf("the record has %d bytes, %d with its headers; the server takes %d: %w",
			len(msg.Data), msg.Size(), b.nc.MaxPayload(), err)
	case natserr.Is(err, natserr.HeadersTooLarge):
		return fmt.Errorf("the record's headers (its note, timers and idempotency keys) have %d bytes; the server takes 65535: %w",
			msg.Size()-len(msg.Subject)-len(msg.Data), err)
	}
	return err
}
