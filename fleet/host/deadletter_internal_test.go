package host

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go/jetstream"
)

// heldStream answers each deletion of a message with what the test says.
type heldStream struct {
	jetstream.Stream
	begun atomic.Int64
	say   chan error
}

func (s *heldStream) DeleteMsg(context.Context, uint64) error {
	s.begun.Add(1)
	return <-s.say
}

func (s *heldStream) GetMsg(context.Context, uint64, ...jetstream.GetMsgOpt) (*jetstream.RawStreamMsg, error) {
	return new(jetstream.RawStreamMsg), nil // it is still there
}

// TestManyLettersAreDiscardedTogether checks that a discard removes 32 letters at one time,
// begins no other after an error, and counts those that were on their way.
func TestManyLettersAreDiscardedTogether(t *testing.T) {
	for _, refused := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := &heldStream{say: make(chan error)}
			l := &letters{chunks: chunks{stream: s}}
			chosen := make([]*DeadLetter, 100)
			for i := range chosen {
				chosen[i] = &DeadLetter{Seq: uint64(i + 1)}
			}
			var n int
			var err error
			done := make(chan struct{})
			go func() { defer close(done); n, err = l.removeAll(t.Context(), chosen) }()
			synctest.Wait()
			if begun := s.begun.Load(); begun != 32 {
				t.Errorf("%d are removed at one time", begun)
			}
			left, want := 100, 100
			if refused {
				s.say <- errors.New("refused")
				synctest.Wait()
				left, want = 31, 31
			}
			for range left {
				s.say <- nil
			}
			<-done
			if begun := int(s.begun.Load()); n != want || (err != nil) != refused || refused && begun != 32 {
				t.Errorf("%d are removed, %v, of %d", n, err, begun)
			}
		})
	}
}
