package outcome_test

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/internal/outcome"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

const id = "Test-Id"

// subject is one subject of a stream that keeps three messages of it.
type subject struct {
	t      *testing.T
	js     jetstream.JetStream
	stream jetstream.Stream
}

func newSubject(t *testing.T) *subject {
	t.Helper()
	js := brokertest.Server(t, broker.Config{}).JetStream()
	s, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}, MaxMsgsPerSubject: 3})
	if err != nil {
		t.Fatal(err)
	}
	return &subject{t, js, s}
}

// put stores a message that expects to follow another one, or nothing for a negative
// number. It returns its sequence, 0 when the server refuses it.
func (s *subject) put(name string, follows int) uint64 {
	s.t.Helper()
	msg := &nats.Msg{Subject: "s.a", Header: nats.Header{id: {name}}}
	if follows >= 0 {
		msg.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.Itoa(follows)}
	}
	ack, err := s.js.PublishMsg(s.t.Context(), msg)
	if err != nil {
		return 0
	}
	return ack.Sequence
}

// find asks what became of a write.
func (s *subject) find(name string, follows uint64) (uint64, outcome.Outcome) {
	s.t.Helper()
	sequence, is, err := outcome.Write{Expected: follows, Header: id, ID: name}.Find(s.t.Context(), s.next)
	if err != nil {
		s.t.Fatal(err)
	}
	return sequence, is
}

func (s *subject) next(ctx context.Context, from uint64) (*jetstream.RawStreamMsg, error) {
	msg, err := s.stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject("s.a"))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil //nolint:nilnil // there is none
	}
	return msg, err
}

// TestFind stores writes one after the other, and asks after each what became of those
// that were sent on its predecessor.
func TestFind(t *testing.T) {
	s := newSubject(t)
	check := func(when, name string, follows, sequence uint64, want outcome.Outcome) {
		t.Helper()
		if got, is := s.find(name, follows); is != want || got != sequence {
			t.Errorf("%s: %s after %d: outcome %d at %d, want %d at %d", when, name, follows, is, got, want, sequence)
		}
	}
	check("nothing is stored", "first", 0, 0, outcome.Absent)
	first := s.put("first", 0)
	check("it is stored", "first", 0, first, outcome.Landed)
	check("it is stored", "other", 0, 0, outcome.Superseded)
	check("it is stored", "second", first, 0, outcome.Absent)
	if s.put("other", 0) != 0 {
		t.Error("the server takes a write that was superseded")
	}
	second := s.put("foreign", -1) // of a program that expects nothing
	check("a foreign one follows", "second", first, 0, outcome.Superseded)
	third := s.put("third", int(second))
	fourth := s.put("fourth", int(third)) // the first is gone
	check("the expected one is gone", "third", second, third, outcome.Landed)
	check("the first is gone", "first", 0, 0, outcome.Untraceable)
	s.put("fifth", int(fourth)) // the second too
	check("the expected one and its successor are gone", "second", first, 0, outcome.Untraceable)
	check("the expected one is gone, and its successor says what it followed", "other", second, 0, outcome.Superseded)
}

// TestFindWithoutAnAnswer says so.
func TestFindWithoutAnAnswer(t *testing.T) {
	away := errors.New("away")
	_, _, err := outcome.Write{Expected: 1, Header: id, ID: "a"}.Find(t.Context(), func(context.Context, uint64) (*jetstream.RawStreamMsg, error) {
		return nil, away
	})
	if !errors.Is(err, away) {
		t.Errorf("got %v", err)
	}
}
