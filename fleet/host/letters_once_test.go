package host_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
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

// TestLargeLetterKeepsItsKey checks that a message which is redriven by reference, because
// it fits into no message with the header that says for whom it is, is one of its key.
func TestLargeLetterKeepsItsKey(t *testing.T) {
	var fixed atomic.Bool
	for what, header := range map[string]string{"the usual header": host.HeaderKey, "a header of the worker": "Customer"} {
		t.Run(what, func(t *testing.T) {
			fixed.Store(false)
			r := newRig(t)
			req := r.native("w", func(ctx context.Context, _ *engine.Message, s engine.State) ([]engine.Output, error) {
				if !fixed.Load() {
					return nil, engine.Reject("not yet")
				}
				return nil, engine.TimersOf(s).SetTimer(ctx, engine.Timer{Name: "t", After: time.Hour})
			})
			req.Key = strings.TrimPrefix(header, host.HeaderKey)
			h := r.startWith(req)
			_, err := r.js.PublishMsg(t.Context(), &nats.Msg{Subject: "work.w", Header: nats.Header{header: {"k"}}, Data: make([]byte, 1<<20-50)})
			must(t, err)
			r.letters(h, "w", 1)
			fixed.Store(true)
			n, err := h.Redrive(t.Context(), "w")
			if n != 1 || err != nil {
				t.Fatalf("%d redriven, %v", n, err)
			}
			r.wantTimers(h, "w", "k/t")
		})
	}
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
