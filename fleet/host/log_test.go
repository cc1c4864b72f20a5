package host_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
)

// forgetful is a JetStream that publishes to far topics and loses the answers, while it
// is set.
type forgetful struct {
	jetstream.JetStream
	set  atomic.Bool
	lost atomic.Int64
}

func (f *forgetful) PublishMsg(ctx context.Context, m *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	ack, err := f.JetStream.PublishMsg(ctx, m, opts...)
	if strings.HasPrefix(m.Subject, "far.") && f.set.Load() {
		f.lost.Add(1)
		return nil, nats.ErrTimeout
	}
	return ack, err
}

// far returns the outputs on far.w, in order, from a stream with a short duplicate
// window.
func (r *rig) far() []string {
	r.t.Helper()
	stream, err := r.js.Stream(r.t.Context(), "FAR")
	must(r.t, err)
	var all []string
	for seq := uint64(1); ; {
		m, err := stream.GetMsg(r.t.Context(), seq, jetstream.WithGetMsgSubject("far.w"))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return all
		}
		must(r.t, err)
		all = append(all, string(m.Data))
		seq = m.Sequence + 1
	}
}

// TestOutputsBeyondTheWindow checks that outputs whose answers were lost are not
// published twice, although the stream of their topic has forgotten their ids: neither
// by the same host nor by the next one. It also checks that outputs wait for a stream
// that is away.
func TestOutputsBeyondTheWindow(t *testing.T) {
	const window = 200 * time.Millisecond
	r := newRig(t)
	farStream := jetstream.StreamConfig{Name: "FAR", Subjects: []string{"far.>"}, Duplicates: window, Replicas: r.replicas}
	_, err := r.js.CreateStream(t.Context(), farStream)
	must(t, err)
	lossy := &forgetful{JetStream: r.js}
	r.js = lossy
	r.tune = func(c *host.Config) { c.RetryBase, c.RetryMax = 2*window, 2*window }
	req := r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		return text(fmt.Sprint(string(m.Data), " ", m.Attempt)), nil
	})
	req.OutputTopic = "far.w"
	h := r.startWith(req)
	want := []string{}
	expect := func(data ...string) {
		t.Helper()
		r.publish("work.w", data...)
		for _, d := range data {
			want = append(want, d+" 1")
		}
	}

	lossy.set.Store(true)
	expect("a", "b")
	r.eventually("an answer is lost", func() bool { return lossy.lost.Load() >= 1 })
	r.eventually("the output is there", func() bool { return len(r.far()) >= 1 })
	lossy.set.Store(false)
	r.eventually("both are there", func() bool { return len(r.far()) >= 2 })

	lossy.set.Store(true)
	expect("c")
	r.eventually("the output is there", func() bool { return len(r.far()) >= 3 })
	r.stop(h) // it does not know that c was published
	lossy.set.Store(false)
	time.Sleep(window) // the stream forgets the id
	r.start("b")
	expect("d")
	r.eventually("the next one is there", func() bool { return len(r.far()) >= 4 })

	if got := r.far(); !slices.Equal(got, want) {
		t.Errorf("published %q, want %q", got, want)
	}
	must(t, r.js.DeleteStream(t.Context(), "FAR"))
	expect("e", "f")
	r.eventually("the messages are handled", func() bool {
		c, err := r.js.Consumer(t.Context(), "WORK", "HOST_w-w")
		must(t, err)
		return c.CachedInfo().NumPending == 0 && c.CachedInfo().NumAckPending == 0
	})
	time.Sleep(2 * window)
	_, err = r.js.CreateStream(t.Context(), farStream)
	must(t, err)
	r.eventually("they are published once the stream is back", func() bool { return len(r.far()) >= 2 })
	if got := r.far(); !slices.Equal(got, want[4:]) {
		t.Errorf("published %q, want %q", got, want[4:])
	}
}

// TestOrderByKey checks that the messages of a key are handled, and their outputs
// published, in order and once each, although some fail at first and hosts take the slot
// from each other.
func TestOrderByKey(t *testing.T) {
	r := newRig(t)
	const keys, n = 5, 300
	req := r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		key := m.Header[host.HeaderKey][0]
		v, _, err := s.Get(ctx, key)
		if err != nil {
			return nil, err
		}
		count, _ := strconv.Atoi(string(v))
		if i, _ := strconv.Atoi(string(m.Data)); i%17 == 3 && m.Attempt == 1 {
			return nil, errors.New("not at the first attempt")
		}
		count++
		return text(fmt.Sprint(key, " ", string(m.Data), " ", count)), s.Put(ctx, key, []byte(strconv.Itoa(count)))
	})
	h := r.startWith(req)
	thief := r.host("b")
	for i := range n {
		m := nats.NewMsg("work.w")
		m.Data = []byte(strconv.Itoa(i))
		m.Header.Set(host.HeaderKey, fmt.Sprint("k", i%keys))
		_, err := r.js.PublishMsg(t.Context(), m)
		must(t, err)
		if i%60 == 30 {
			err := thief.Supersede(t.Context(), "w-w")
			for errors.Is(err, host.ErrStale) { // the host was faster, after the time before
				err = thief.Supersede(t.Context(), "w-w")
			}
			must(t, err)
		}
	}
	r.eventually("all is published", func() bool { return len(r.outputs("out.w")) >= n })
	got := make(map[string][]string)
	for _, o := range r.outputs("out.w") {
		key, rest, _ := strings.Cut(o, " ")
		got[key] = append(got[key], rest)
	}
	for k := range keys {
		var want []string
		for i := k; i < n; i += keys {
			want = append(want, fmt.Sprint(i, " ", len(want)+1))
		}
		if key := fmt.Sprint("k", k); !slices.Equal(got[key], want) {
			t.Errorf("%s: %q\nwant %q", key, got[key], want)
		}
	}
	r.letters(h, "w", 0)
}

// TestRetryHoldsItsKeyOnly checks that a message that waits for its next attempt holds
// up the messages behind it with its key, and no others.
func TestRetryHoldsItsKeyOnly(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) { c.MaxRetries = 100_000 }
	req := r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		if string(m.Data) == "bad" && (m.Attempt < 3 || len(r.outputs("out.w")) == 0) {
			return nil, errors.New("not yet")
		}
		return text(string(m.Data)), nil
	})
	req.Topic = "work.w.*"
	r.startWith(req)
	r.publish("work.w.a", "bad", "behind")
	r.publish("work.w.b", "beside")
	r.wantOutputs("out.w", "beside", "bad", "behind")
}

// TestLogIsTrimmed checks that the log of a slot does not grow with its messages, and
// that a commit that no message can hold is written, also for the next holder.
func TestLogIsTrimmed(t *testing.T) {
	r := newRig(t)
	const keys, size = 12, 500 << 10
	h := r.startWith(r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		switch string(m.Data) {
		case "large":
			for i := range keys {
				if err := s.Put(ctx, fmt.Sprint("k", i), []byte(strings.Repeat(strconv.Itoa(i%10), size))); err != nil {
					return nil, err
				}
			}
			return text(strings.Repeat("o", 900<<10)), nil
		case "sum":
			sum := 0
			for i := range keys {
				v, _, err := s.Get(ctx, fmt.Sprint("k", i))
				if err != nil {
					return nil, err
				}
				if string(v) == strings.Repeat(strconv.Itoa(i%10), size) {
					sum++
				}
			}
			return text(strconv.Itoa(sum)), nil
		}
		return text("x"), s.Put(ctx, "last", m.Data)
	}))
	r.publish("work.w", "large")
	must(t, r.host("thief").Supersede(t.Context(), "w-w"))
	r.publish("work.w", "sum")
	r.eventually("the sum is published", func() bool { return len(r.outputs("out.w")) == 2 })
	if out := r.outputs("out.w"); len(out[0]) != 900<<10 || out[1] != strconv.Itoa(keys) {
		t.Errorf("%d bytes and %.20q", len(out[0]), out[1])
	}
	logged := func() (n uint64) {
		stream, err := r.js.Stream(t.Context(), "HOST_LOG")
		must(t, err)
		return stream.CachedInfo().State.Msgs
	}
	for i := range 1000 {
		r.publish("work.w", strconv.Itoa(i))
	}
	r.eventually("all is published", func() bool { return len(r.outputs("out.w")) == 1002 })
	r.stop(h)
	if n := logged(); n > 3 {
		t.Errorf("after the stop the log has %d messages", n)
	}
	again := r.start("b")
	r.publish("work.w", "sum")
	r.eventually("the sum is published", func() bool { return len(r.outputs("out.w")) == 1003 })
	if out := r.outputs("out.w"); out[1002] != strconv.Itoa(keys) {
		t.Errorf("%.20q", out[1002])
	}
	if got := r.value(again, "w", "last"); got != "999" {
		t.Errorf("the last value is %q", got)
	}
	must(t, again.Delete(t.Context(), "w"))
	if n := logged(); n > 0 {
		t.Errorf("after the deletion the log has %d messages", n)
	}
}

// TestOutputLetter checks that an output that no stream takes becomes a letter behind
// which its key waits, and that redrive publishes it for every reader of its topic.
func TestOutputLetter(t *testing.T) {
	r := newRig(t)
	r.tune = func(c *host.Config) { c.OutputPatience = 5 * time.Second } // the output of the other key is published before
	req := r.native("w", func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
		topic, data, _ := strings.Cut(string(m.Data), " ")
		return []engine.Output{{Topic: topic, Header: map[string][]string{"K": {"v"}}, Data: []byte(data)}}, nil
	})
	req.Topic = "work.w.*"
	h := r.startWith(req)
	r.publish("work.w.a", "late.w 1", "out.w 2")
	r.publish("work.w.b", "out.w 3")
	r.wantOutputs("out.w", "3", "2")
	d := r.letters(h, "w", 1)[0]
	if d.Topic != "late.w" || string(d.Data) != "1" || d.Output == "" || d.Header["K"][0] != "v" || d.Worker != "w" || !strings.HasPrefix(d.Message, "WORK:") || !strings.HasPrefix(d.Reason, "publish output to late.w: ") {
		t.Errorf("%+v", d)
	}
	_, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "LATE", Subjects: []string{"late.>"}})
	must(t, err)
	if n, err := h.Redrive(t.Context(), "w"); n != 1 || err != nil {
		t.Fatalf("redrive: %d, %v", n, err)
	}
	late, err := r.js.Stream(t.Context(), "LATE")
	must(t, err)
	m, err := late.GetLastMsgForSubject(t.Context(), "late.w")
	must(t, err)
	if string(m.Data) != "1" || m.Header.Get(host.HeaderFor) != "" || m.Header.Get("K") != "v" {
		t.Errorf("%q %v", m.Data, m.Header)
	}
	r.letters(h, "w", 0)
}

// TestResultWithoutTopic checks that what a handler returns is dropped and counted when
// the worker has no output topic. It does not become a dead letter.
func TestResultWithoutTopic(t *testing.T) {
	r := newRig(t)
	h := r.start("a")
	create(t, h, host.Spec{ID: "w", Topic: "work.w", Code: prefix("")})
	r.publish("work.w", "1", "2")
	r.eventually("both are handled", func() bool {
		return slices.Equal(h.Tallies(), []host.Tally{{Worker: "w", Generation: 1, Succeeded: 2, Discarded: 2}})
	})
	r.letters(h, "w", 0)
}

// TestRedeliveredWhileItsCommitWaits checks that a message that the server delivers again
// while its commit is under way is not taken for one that is done: the commit may be
// refused.
func TestRedeliveredWhileItsCommitWaits(t *testing.T) {
	r := newRig(t)
	var calls atomic.Int64
	r.tune = func(c *host.Config) { c.AckWait = 2 * time.Second }
	h := r.startWith(r.native("w", func(ctx context.Context, m *engine.Message, s engine.State) ([]engine.Output, error) {
		return text(string(m.Data)), s.Put(ctx, "n", strconv.AppendInt(nil, calls.Add(1), 10))
	}))
	r.publish("work.w", "first")
	r.wantOutputs("out.w", "first")
	// The server takes no write of the log for longer than AckWait, and then another
	// host has the slot.
	logs, err := r.js.Stream(t.Context(), "HOST_LOG")
	must(t, err)
	cfg := logs.CachedInfo().Config
	away := cfg
	away.Subjects = []string{"away.>"}
	_, err = r.js.UpdateStream(t.Context(), away)
	must(t, err)
	r.publish("work.w", "second")
	c, err := r.js.Consumer(t.Context(), "WORK", "HOST_w-w")
	must(t, err)
	r.eventually("the second message is delivered again", func() bool {
		info, err := c.Info(t.Context())
		must(t, err)
		return info.NumRedelivered > 0 || info.NumPending == 0 && info.NumAckPending == 0
	})
	_, err = r.js.UpdateStream(t.Context(), cfg)
	must(t, err)
	b := r.host("b")
	for err = b.Supersede(t.Context(), "w-w"); errors.Is(err, host.ErrStale); {
		err = b.Supersede(t.Context(), "w-w")
	}
	must(t, err)
	r.eventually("both are published", func() bool { return len(r.outputs("out.w")) >= 2 })
	if got := r.outputs("out.w"); !slices.Equal(got, []string{"first", "second"}) {
		t.Errorf("published %q", got)
	}
	r.letters(h, "w", 0)
}
