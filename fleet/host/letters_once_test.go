package host_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/host"
)

// TestLetterOfACallThatDied checks that a letter whose message another call has published,
// and which died before it removed the letter, is gone after the next edit, so that no later
// call publishes it again.
func TestLetterOfACallThatDied(t *testing.T) {
	r := newRig(t)
	req, _ := picky(r, "w")
	h := r.startWith(req)
	r.keyed("work.w", "17")
	d := r.letters(h, "w", 1)[0]
	_, err := r.js.Publish(t.Context(), "work.other", []byte("17"), jetstream.WithMsgID(fmt.Sprint("redrive:$host.dead.", d.Seq)))
	must(t, err)
	if _, err := h.RedriveEdited(t.Context(), "w", d.Seq, []byte("18")); !errors.Is(err, host.ErrRedriven) {
		t.Errorf("the edit: %v", err)
	}
	if _, err := h.RedriveEdited(t.Context(), "w", d.Seq, []byte("18")); !errors.Is(err, host.ErrNoLetter) {
		t.Errorf("a second one: %v", err)
	}
	r.eventually("nothing is left behind", func() bool { return r.stored() == 0 })
}

// TestForgedLetterPublishesNothing checks that nothing is redriven to a topic that only the
// server or the hosts may use.
func TestForgedLetterPublishesNothing(t *testing.T) {
	r := newRig(t)
	req, _ := picky(r, "w")
	h := r.startWith(req)
	_, err := r.js.PublishMsg(t.Context(), &nats.Msg{
		Subject: "$host.dead.t-.w",
		Header: nats.Header{
			host.HeaderWorker: {"w"},
			host.HeaderTopic:  {"$JS.API.STREAM.DELETE.WORK"},
		},
	})
	must(t, err)
	d := r.letters(h, "w", 1)[0]
	if n, err := h.Redrive(t.Context(), "w", d.Seq); n != 0 || !errors.Is(err, host.ErrInvalid) {
		t.Errorf("%d redriven, %v", n, err)
	}
	if _, err := h.RedriveEdited(t.Context(), "w", d.Seq, []byte("x")); !errors.Is(err, host.ErrInvalid) {
		t.Errorf("the edit: %v", err)
	}
	if _, err := r.js.Stream(t.Context(), "WORK"); err != nil {
		t.Errorf("the stream: %v", err)
	}
}
