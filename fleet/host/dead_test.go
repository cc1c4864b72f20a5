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
// its stream removes answered messages. The message can be redriven, fail again and be
// redriven again, and leaves nothing behind.
func TestLetterThatIsTooLarge(t *testing.T) {
	for what, m := range map[string]*nats.Msg{
		"body":    {Subject: "queue.w", Data: []byte(strings.Repeat("x", 1<<20-60)), Header: nats.Header{"K": {"v"}}},
		"headers": {Subject: "queue.w", Data: []byte("x"), Header: nats.Header{"K": {"v"}, "Long": {strings.Repeat("y", 64<<10-60)}}},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			_, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "QUEUE", Subjects: []string{"queue.>"}, Retention: jetstream.WorkQueuePolicy})
			must(t, err)
			var fixed atomic.Bool
			fn := func(_ context.Context, got *engine.Message, _ engine.State) ([]engine.Output, error) {
				if !fixed.Load() {
					return nil, engine.Reject("too much")
				}
				if string(got.Data) != string(m.Data) || strings.Join(got.Header["Long"], "") != m.Header.Get("Long") {
					t.Errorf("a handler got %d bytes and %d headers", len(got.Data), len(got.Header))
				}
				return text(got.Header["K"][0]), nil
			}
			var held atomic.Int64 // bytes
			w, member := r.native("w", fn), r.native("member", func(_ context.Context, got *engine.Message, _ engine.State) ([]engine.Output, error) {
				held.Add(int64(len(got.Data) + len(strings.Join(got.Header["Long"], ""))))
				return nil, nil
			})
			w.Topic, member.Topic, member.Group = "queue.w", "queue.member", "g"
			h := r.startWith(w, member)
			stored := func() uint64 {
				s, err := r.js.Stream(t.Context(), "HOST_DEAD")
				must(t, err)
				info, err := s.Info(t.Context())
				must(t, err)
				return info.State.Msgs
			}
			_, err = r.js.PublishMsg(t.Context(), m)
			must(t, err)
			for range 2 { // the second time it fails after it was redriven
				d := r.letters(h, "w", 1)[0]
				if string(d.Data) != string(m.Data) || d.Header["K"][0] != "v" || d.Header[host.HeaderFor] != nil || d.Reason != "rejected: too much" || !strings.HasPrefix(d.Message, "QUEUE:") || d.Attempts != 1 {
					t.Errorf("dead letter with %d bytes, %d headers: %q, %s", len(d.Data), len(d.Header), d.Reason, d.Message)
				}
				if n, err := h.Redrive(t.Context(), "w", d.Seq); err != nil || n != 1 {
					t.Fatalf("redrive: %d, %v", n, err)
				}
				r.eventually("it is a letter again", func() bool {
					again, err := h.DeadLetters(t.Context(), "w", d.Seq+1, 10)
					must(t, err)
					return len(again) == 1
				})
			}
			fixed.Store(true)
			if n, err := h.Redrive(t.Context(), "w"); err != nil || n != 1 {
				t.Fatalf("redrive: %d, %v", n, err)
			}
			r.wantOutputs("out.w", "v")

			// The same for a message that is held for a stopped member of a group.
			must(t, h.StopWorker(t.Context(), "member"))
			other := member
			other.ID, other.Topic = "other", "queue.other"
			create(t, h, other)
			m.Subject = "queue.member"
			_, err = r.js.PublishMsg(t.Context(), m)
			must(t, err)
			r.publish("queue.member", "z") // behind the large one
			r.eventually("both are held", func() bool { return stored() >= 3 })
			must(t, h.StartWorker(t.Context(), "member"))
			want := int64(len(m.Data) + len(m.Header.Get("Long")) + 1)
			r.eventually("both are handled", func() bool { return held.Load() == want })
			r.eventually("nothing is left behind", func() bool { return stored() == 0 })
		})
	}
}

// TestHeaderNameThatTheClientRefuses checks that a message with a header name that NATS
// takes and its client refuses becomes a dead letter, and is redriven with the header.
func TestHeaderNameThatTheClientRefuses(t *testing.T) {
	b := brokertest.Embedded(t, broker.Config{Listen: "127.0.0.1:0"})
	r := rigOn(t, b, 1)
	var fixed atomic.Bool
	h := r.startWith(r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		if fixed.Load() {
			return text(string(m.Data) + m.Header["Größe"][0]), nil
		}
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
	fixed.Store(true)
	if n, err := h.Redrive(t.Context(), "w"); n != 1 || err != nil {
		t.Errorf("redrive: %d, %v", n, err)
	}
	r.wantOutputs("out.w", "message7")
}
