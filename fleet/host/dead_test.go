package host_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

func (r *rig) letters(h *host.Host, id string, n int) []*host.DeadLetter {
	r.t.Helper()
	var found []*host.DeadLetter
	r.eventually(fmt.Sprint(id, " has ", n, " dead letters"), func() bool {
		var err error
		found, err = h.DeadLetters(r.t.Context(), id, 0, 100)
		must(r.t, err)
		return len(found) >= n
	})
	if len(found) != n {
		r.t.Fatalf("%s has %d dead letters, want %d", id, len(found), n)
	}
	return found
}

// noLetters is a JetStream that refuses dead letters a few times.
type noLetters struct {
	jetstream.JetStream
	left atomic.Int64
}

func (n *noLetters) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if strings.Contains(m.Subject, ".dead.") && n.left.Add(-1) >= 0 {
		return nil, errors.New("not now")
	}
	return n.JetStream.PublishMsg(ctx, m, opts...)
}

// TestLetterBeforeTheEnd checks that a message is terminated only once its dead letter
// is stored. Until then the server delivers it again.
func TestLetterBeforeTheEnd(t *testing.T) {
	r := newRig(t)
	refusing := &noLetters{JetStream: r.js}
	refusing.left.Store(3)
	r.js = refusing
	h := r.startWith(r.native("w", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) {
		return nil, engine.Reject("never")
	}))
	r.publish("work.w", "x")
	if d := r.letters(h, "w", 1)[0]; string(d.Data) != "x" || d.Attempts != 1 || refusing.left.Load() >= 0 {
		t.Errorf("dead letter %+v, %d refusals left", d, refusing.left.Load())
	}
}

// TestLetterThatIsTooLarge checks that a message becomes a whole dead letter when it
// fits into the server's limits by itself and not together with the reason, also when
// its stream removes answered messages. A redrive of it is refused and the letter stays;
// with less data it is redriven. It leaves nothing behind.
func TestLetterThatIsTooLarge(t *testing.T) {
	for what, m := range map[string]*nats.Msg{
		"body":    {Subject: "queue.w", Data: []byte(strings.Repeat("x", 1<<20-60)), Header: nats.Header{"K": {"v"}}},
		"headers": {Subject: "queue.w", Data: []byte("x"), Header: nats.Header{"K": {"v"}, "Long": {strings.Repeat("y", 64<<10-60)}}},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			_, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "QUEUE", Subjects: []string{"queue.>"}, Retention: jetstream.WorkQueuePolicy})
			must(t, err)
			w := r.native("w", func(_ context.Context, got *engine.Message, _ engine.State) ([]engine.Output, error) {
				if string(got.Data) != "less" {
					return nil, engine.Reject("too much")
				}
				return text(got.Header["K"][0]), nil
			})
			w.Topic = "queue.w"
			h := r.startWith(w)
			_, err = r.js.PublishMsg(t.Context(), m)
			must(t, err)
			d := r.letters(h, "w", 1)[0]
			isWhole := string(d.Data) == string(m.Data) && strings.Join(d.Header["Long"], "") == m.Header.Get("Long") && d.Header["K"][0] == "v"
			if !isWhole || d.Reason != "rejected: too much" || !strings.HasPrefix(d.Message, "QUEUE:") || d.Attempts != 1 {
				t.Errorf("dead letter with %d bytes, %d headers: %q, %s", len(d.Data), len(d.Header), d.Reason, d.Message)
			}
			if n, err := h.Redrive(t.Context(), "w", d.Seq); n != 0 || !errors.Is(err, host.ErrInvalid) || !strings.Contains(err.Error(), "max_payload") {
				t.Errorf("redrive: %d, %v", n, err)
			}
			r.letters(h, "w", 1)
			r.publish("queue.w", "small") // behind the large one
			r.letters(h, "w", 2)
			if n, err := h.Redrive(t.Context(), "w"); n != 1 || !errors.Is(err, host.ErrInvalid) {
				t.Errorf("redrive of all: %d, %v", n, err)
			}
			small := r.letters(h, "w", 2)[1]
			if n, err := h.Discard(t.Context(), "w", false, small.Seq); n != 1 || err != nil || small.Seq == d.Seq {
				t.Errorf("discard: %d, %v", n, err)
			}
			if what == "body" {
				_, err = h.RedriveEdited(t.Context(), "w", d.Seq, []byte("less"))
				must(t, err)
				r.wantOutputs("out.w", "v")
			} else if n, err := h.Discard(t.Context(), "w", false); n != 1 || err != nil {
				t.Errorf("discard: %d, %v", n, err)
			}
			r.eventually("nothing is left behind", func() bool { return r.stored() == 0 })
		})
	}
}

// A message that was held for a stopped member of a group, and that the server does not take again
// with Lifecycle-For, becomes a dead letter of the member.
func TestHeldMessageThatIsTooLarge(t *testing.T) {
	r := newRig(t)
	_, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "QUEUE", Subjects: []string{"queue.>"}, Retention: jetstream.WorkQueuePolicy})
	must(t, err)
	var handled atomic.Int64
	member := r.native("member", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) {
		handled.Add(1)
		return nil, nil
	})
	member.Topic, member.Group = "queue.member", "g"
	other := member
	other.ID, other.Topic = "other", "queue.other"
	h := r.startWith(member, other)
	must(t, h.StopWorker(t.Context(), "member"))
	large := strings.Repeat("x", 1<<20-60)
	r.publish("queue.member", large)
	r.publish("queue.member", "small")
	r.eventually("both are held", func() bool { return r.stored() >= 2 })
	must(t, h.StartWorker(t.Context(), "member"))
	d := r.letters(h, "member", 1)[0]
	if string(d.Data) != large || d.Topic != "queue.member" || !strings.Contains(d.Reason, "max_payload") {
		t.Errorf("dead letter with %d bytes of %s: %s", len(d.Data), d.Topic, d.Reason)
	}
	r.eventually("the other one is handled", func() bool { return handled.Load() == 1 })
	n, err := h.Discard(t.Context(), "member", false)
	if must(t, err); n != 1 {
		t.Errorf("%d letters", n)
	}
	r.eventually("nothing is left behind", func() bool { return r.stored() == 0 })
}

// TestHeaderNameThatTheClientRefuses checks that a message with a header name that NATS
// takes and its client refuses becomes a whole dead letter, whose redrive is refused.
func TestHeaderNameThatTheClientRefuses(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Listen: "127.0.0.1:0"})
	r := rigOn(t, b, 1)
	h := r.startWith(r.native("w", func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) {
		return nil, engine.Reject("no")
	}))
	raw, err := net.Dial("tcp", strings.TrimPrefix(b.ClientURL(), "nats://"))
	must(t, err)
	defer func() { _ = raw.Close() }()
	head := "NATS/1.0\r\nGröße: 7\r\n\r\n"
	_, err = fmt.Fprintf(raw, "CONNECT {\"headers\":true,\"verbose\":false}\r\nHPUB work.w %d %d\r\n%smessage\r\n", len(head), len(head)+7, head)
	must(t, err)
	d := r.letters(h, "w", 1)[0]
	if string(d.Data) != "message" || d.Header["Größe"][0] != "7" {
		t.Errorf("the letter: %v", d)
	}
	if n, err := h.Redrive(t.Context(), "w"); n != 0 || !errors.Is(err, host.ErrInvalid) {
		t.Errorf("redrive: %d, %v", n, err)
	}
	r.letters(h, "w", 1)
}
