package replay_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/internal/replay"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

// line is a connection that hangs once, for longer than a batch of nats.go waits,
// after so many more bytes as it is told.
type line struct {
	net.Conn
	after *atomic.Int64 // below 0 it is not told
	rest  []byte        // what has come and waits
}

func (l *line) Read(b []byte) (int, error) {
	if len(l.rest) > 0 {
		time.Sleep(1500 * time.Millisecond)
		n := copy(b, l.rest)
		l.rest = l.rest[n:]
		return n, nil
	}
	n, err := l.Conn.Read(b)
	left := l.after.Load()
	switch {
	case left < 0:
		return n, err
	case int64(n) <= left:
		l.after.Store(left - int64(n))
		return n, err
	}
	l.after.Store(-1)
	l.rest = slices.Clone(b[left:n])
	if left == 0 {
		return l.Read(b)
	}
	return int(left), err
}

type dialer struct{ after *atomic.Int64 }

func (d dialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	return &line{Conn: c, after: d.after}, err
}

// Every message comes once and in order, also when the connection hangs before the
// first message of a batch, and within one.
func TestAPauseIsNoEnd(t *testing.T) {
	var after atomic.Int64
	after.Store(-1)
	b := brokertest.Embedded(t, broker.Config{Listen: "127.0.0.1:0"})
	nc, err := nats.Connect(b.ClientURL(), nats.SetCustomDialer(dialer{&after}), nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := b.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.*"}})
	if err != nil {
		t.Fatal(err)
	}
	const messages = 1200
	for i := range messages {
		if _, err := b.JetStream().Publish(t.Context(), "s."+strconv.Itoa(i%2), fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
	if stream, err = js.Stream(t.Context(), "S"); err != nil {
		t.Fatal(err)
	}
	for name, bytes := range map[string]int64{"before a batch": 0, "within a batch": 3000} {
		t.Run(name, func(t *testing.T) {
			next := 1
			err := replay.Each(t.Context(), stream, jetstream.ConsumerConfig{FilterSubject: "s.1"}, math.MaxInt, func(m jetstream.Msg, _ *jetstream.MsgMetadata) (bool, error) {
				if string(m.Data()) != strconv.Itoa(next) {
					t.Fatalf("%s came, want %d", m.Data(), next)
				}
				if next == 999 { // the last one of the first batch
					after.Store(bytes)
				}
				next += 2
				return true, nil
			})
			if err != nil || next != messages+1 {
				t.Errorf("the next one is %d, want %d; %v", next, messages+1, err)
			}
			if after.Load() >= 0 {
				t.Error("the connection did not stand still")
			}
		})
	}
	t.Run("no more than the limit", func(t *testing.T) {
		for _, limit := range []int{0, 1, 500, 501, 600} {
			n := 0
			err := replay.Each(t.Context(), stream, jetstream.ConsumerConfig{FilterSubject: "s.1"}, limit, func(jetstream.Msg, *jetstream.MsgMetadata) (bool, error) { n++; return true, nil })
			if n != limit || err != nil {
				t.Errorf("%d messages, want %d; %v", n, limit, err)
			}
		}
	})
	t.Run("until it is told to stop", func(t *testing.T) {
		n, stop := 0, errors.New("stop")
		err := replay.Each(t.Context(), stream, jetstream.ConsumerConfig{OptStartSeq: 101}, math.MaxInt, func(_ jetstream.Msg, meta *jetstream.MsgMetadata) (bool, error) {
			n++
			return meta.Sequence.Stream < 200, nil
		})
		if n != 100 || err != nil {
			t.Errorf("%d messages, %v", n, err)
		}
		err = replay.Each(t.Context(), stream, jetstream.ConsumerConfig{}, math.MaxInt, func(jetstream.Msg, *jetstream.MsgMetadata) (bool, error) { return true, stop })
		if !errors.Is(err, stop) {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err = replay.Each(ctx, stream, jetstream.ConsumerConfig{}, math.MaxInt, func(jetstream.Msg, *jetstream.MsgMetadata) (bool, error) { cancel(); return true, nil })
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	t.Run("a consumer that the server does not know yet", func(t *testing.T) {
		for unknown, want := range []error{nil, nil, nil, replay.ErrStalled} {
			n := 0
			late := &lateStream{Stream: stream, unknown: unknown}
			count := func(jetstream.Msg, *jetstream.MsgMetadata) (bool, error) { n++; return true, nil }
			err := replay.Each(t.Context(), late, jetstream.ConsumerConfig{}, math.MaxInt, count)
			if !errors.Is(err, want) || want == nil && n != messages {
				t.Errorf("%d times unknown: %d messages, %v", unknown, n, err)
			}
		}
	})
	t.Run("without messages", func(t *testing.T) {
		if err := replay.Each(t.Context(), stream, jetstream.ConsumerConfig{FilterSubject: "s.2"}, 10, nil); err != nil {
			t.Error(err)
		}
	})
}

// lateStream makes consumers of which the server knows nothing, a few times.
type lateStream struct {
	jetstream.Stream
	unknown int
}

func (s *lateStream) CreateConsumer(ctx context.Context, by jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	c, err := s.Stream.CreateConsumer(ctx, by)
	if err == nil && s.unknown > 0 {
		s.unknown--
		err = s.DeleteConsumer(ctx, c.CachedInfo().Name)
	}
	return c, err
}
