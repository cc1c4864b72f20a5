// Package outcome finds out what became of a write whose answer was lost.
//
// The write is a message that expects to follow another one of its subject
// (Nats-Expected-Last-Subject-Sequence). One of its headers has an id that no other message
// has. A message has one successor on its subject. When the successor is the write, the write
// was carried out. When it is another message, the server has refused the write and always
// will. When there is no successor yet, the write may still be stored, and the caller sends it
// again: the server accepts one of the two.
//
// Begin with [Write.Find]. The caller passes a function that reads its bucket or stream.
package outcome

import (
	"context"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"
)

// Outcome is what became of a write.
type Outcome int

const (
	// Absent says that nothing follows the expected message yet: send the write again.
	Absent Outcome = iota
	// Landed says that the write was carried out.
	Landed
	// Superseded says that another message follows the expected one: the write was not
	// carried out and never will be.
	Superseded
	// Untraceable says that the stream no longer has the successor, but later messages.
	Untraceable
)

// Write identifies a write.
type Write struct {
	// Expected is the sequence that it expects to follow, 0 for the first of its subject.
	Expected uint64
	// Header is the name of the header that identifies it, and ID the value.
	Header, ID string
}

// Next returns the oldest message of the subject that the stream still has, beginning at
// a sequence, and nil when there is none. It must ask the stream's leader: a replica or a
// mirror may not have the message yet.
type Next func(ctx context.Context, from uint64) (*jetstream.RawStreamMsg, error)

// Find returns what became of a write, and the sequence of one that has landed. After an
// error the outcome is not known: ask again.
func (w Write) Find(ctx context.Context, next Next) (sequence uint64, is Outcome, err error) {
	after, err := next(ctx, w.Expected+1)
	switch {
	case err != nil:
		return 0, Absent, err
	case after == nil:
		return 0, Absent, nil
	case after.Header.Get(w.Header) == w.ID:
		return after.Sequence, Landed, nil
	case after.Header.Get(jetstream.ExpectedLastSubjSeqHeader) == strconv.FormatUint(w.Expected, 10):
		return 0, Superseded, nil
	case w.Expected == 0:
		return 0, Untraceable, nil
	}
	// The message found may be a later one, or the successor, written by a program that
	// expected nothing. It is the successor if the expected message is still there.
	before, err := next(ctx, w.Expected)
	switch {
	case err != nil:
		return 0, Absent, err
	case before != nil && before.Sequence == w.Expected:
		return 0, Superseded, nil
	}
	return 0, Untraceable, nil
}
