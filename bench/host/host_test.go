package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/host"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/js"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/native"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/python"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/starlark"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine/wasm"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	host.EngineMain(starlark.New(), js.New(), wasm.New())
	if url := os.Getenv(hostEnv); url != "" {
		fmt.Fprintln(os.Stderr, runProcess(url))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

// tiny is a module whose _start does nothing (WebAssembly 2.0, chapter 5).
const tiny = "\x00asm\x01\x00\x00\x00\x01\x04\x01\x60\x00\x00\x03\x02\x01\x00\x05\x03\x01\x00\x01" +
	"\x07\x13\x02\x06_start\x00\x00\x06memory\x02\x00\x0a\x04\x01\x02\x00\x0b"

// peers are handlers that do nothing. "raw" is not a host:
// an iterator of the same client, and an acknowledgement.
var peers = []struct{ name, mime, code string }{
	{"raw", "", ""},
	{"go", native.MIMEType, "none"},
	{"starlark", "text/x-starlark", "def handle(message): pass"},
	{"js", "text/javascript", "function handle(message) {}"},
	{"wasm", wasm.MIMEType, tiny},
	{"wasm-kept", wasm.MIMEType, strings.Replace(tiny, "_start", "handle", 1)}, // one instance for all messages
	{"python", "text/x-python", "def handle(message): pass"},
}

// bed is a NATS with a stream of one topic, and a host.
type bed struct {
	js      jetstream.JetStream
	host    *host.Host
	trusted bool // the host runs the code of all engines in its own process
}

func newBed(b *testing.B) *bed { return newBedOf(b, broker.Config{}) }

func newBedOf(b *testing.B, cfg broker.Config) *bed { return new(bed).make(b, cfg) }

func (bd *bed) make(b *testing.B, cfg broker.Config) *bed {
	b.Helper()
	cfg.Streams = []jetstream.StreamConfig{{Name: "WORK", Subjects: []string{"work.>"}}, {Name: "OUT", Subjects: []string{"out.>"}}}
	bd.js = brokertest.Embedded(b, cfg).JetStream()
	bd.host = bd.start(b, "a")
	return bd
}

func (bd *bed) start(b *testing.B, id string) *host.Host {
	b.Helper()
	engines := []engine.Engine{starlark.New(), js.New(), wasm.New(), native.New(map[string]native.Func{
		"none":   func(context.Context, *engine.Message, engine.State) ([]engine.Output, error) { return nil, nil },
		"count":  count(1),
		"counts": count(100),
		"echo": func(_ context.Context, m *engine.Message, _ engine.State) ([]engine.Output, error) {
			return []engine.Output{{Data: m.Data}}, nil
		},
	})}
	if py, err := python.New(); err == nil {
		engines = append(engines, py)
	}
	if bd.trusted {
		for i, e := range engines {
			engines[i] = engine.Trusted(e)
		}
	}
	registry, err := engine.NewRegistry(engines...)
	check(b, err)
	h, err := host.New(bd.js, host.Config{HostID: id, Engines: registry, Logger: slog.New(slog.DiscardHandler)})
	check(b, err)
	check(b, h.Start(context.Background()))
	b.Cleanup(func() { stop(b, h) })
	for h.Check(b.Context()) != nil {
		time.Sleep(time.Millisecond)
	}
	return h
}

func stop(b *testing.B, h *host.Host) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	check(b, h.Stop(ctx))
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// publish puts n messages of 100 bytes on the topic.
func (bd *bed) publish(b *testing.B, n int) {
	b.Helper()
	data := []byte(strings.Repeat("x", 100))
	for i := range n {
		_, err := bd.js.PublishAsync("work.x", data)
		check(b, err)
		if i%1000 == 999 || i == n-1 {
			<-bd.js.PublishAsyncComplete()
		}
	}
}

// raw handles n messages with only a consumer. It calls each with
// the work for a message.
func (bd *bed) raw(b *testing.B, cfg jetstream.ConsumerConfig, n int, each func() error) {
	b.Helper()
	cfg.Durable, cfg.FilterSubjects, cfg.AckPolicy, cfg.AckWait = "raw", []string{"work.x"}, jetstream.AckExplicitPolicy, 30*time.Second
	c, err := bd.js.CreateConsumer(b.Context(), "WORK", cfg)
	check(b, err)
	bd.publish(b, n)
	b.ResetTimer()
	it, err := c.Messages(jetstream.PullMaxMessages(128))
	check(b, err)
	for range n {
		m, err := it.Next()
		check(b, err)
		check(b, each())
		check(b, m.Ack())
	}
	bd.settled(b, "raw")
	b.StopTimer()
	it.Stop()
}

// settled waits until the server has every acknowledgement.
func (bd *bed) settled(b *testing.B, consumer string) {
	b.Helper()
	c, err := bd.js.Consumer(b.Context(), "WORK", consumer)
	check(b, err)
	for {
		info, err := c.Info(b.Context())
		check(b, err)
		if info.NumPending == 0 && info.NumAckPending == 0 {
			return
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// hosted has a worker handle n messages.
func (bd *bed) hosted(b *testing.B, req host.Spec, n int) { bd.hostedAfter(b, req, 0, n) }

// hostedAfter has a worker handle first messages. Then another life of its slot, which has
// no value in memory, handles n messages. Only these are measured.
func (bd *bed) hostedAfter(b *testing.B, req host.Spec, first, n int) {
	b.Helper()
	req.ID, req.Topic = "w", "work.x"
	_, err := bd.host.Create(b.Context(), req)
	check(b, err)
	slot := "HOST_w-w"
	if req.Group != "" {
		slot = "HOST_g-" + req.Group
	}
	if first > 0 {
		bd.publish(b, first)
		bd.settled(b, slot)
	}
	// The messages wait when the worker starts, as for a raw consumer.
	check(b, bd.host.StopWorker(b.Context(), "w"))
	bd.publish(b, n)
	b.ResetTimer()
	check(b, bd.host.StartWorker(b.Context(), "w"))
	bd.settled(b, slot)
	b.StopTimer()
}

func rate(b *testing.B) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
}

// BenchmarkNoop measures the cost of a message. For hosted handlers it includes the load of
// the code, once.
func BenchmarkNoop(b *testing.B) {
	for _, p := range peers {
		b.Run("peer="+p.name, func(b *testing.B) {
			if p.name == "python" {
				if _, err := exec.LookPath("python3"); err != nil {
					b.Skip("there is no python3 here")
				}
			}
			bd := newBed(b)
			if p.mime == "" {
				bd.raw(b, jetstream.ConsumerConfig{MaxAckPending: 256}, b.N, func() error { return nil })
			} else {
				bd.hosted(b, host.Spec{MIMEType: p.mime, Code: []byte(p.code)}, b.N)
			}
			rate(b)
		})
	}
}

// BenchmarkIsolation measures what the child process of a worker costs beside the same
// code in the host's process: when messages wait, so that the child goes ahead of the
// host, and one message alone, when each is published once the one before is handled.
func BenchmarkIsolation(b *testing.B) {
	for _, p := range peers[2:] {
		for _, trusted := range []bool{false, true} {
			where := map[bool]string{false: "child", true: "host"}[trusted]
			b.Run("language="+p.name+"/load=waiting/peer="+where, func(b *testing.B) {
				bd := (&bed{trusted: trusted}).make(b, broker.Config{})
				bd.hosted(b, host.Spec{MIMEType: p.mime, Code: []byte(p.code)}, b.N)
				rate(b)
			})
			b.Run("language="+p.name+"/load=alone/peer="+where, func(b *testing.B) {
				bd := (&bed{trusted: trusted}).make(b, broker.Config{})
				_, err := bd.host.Create(b.Context(), host.Spec{ID: "w", MIMEType: p.mime, Topic: "work.x", Code: []byte(p.code)})
				check(b, err)
				handled := func(n int) {
					for bd.host.Tallies()[0].Succeeded < uint64(n) {
						runtime.Gosched()
					}
				}
				bd.publish(b, 1)
				handled(1) // its child has started
				b.ResetTimer()
				for i := range b.N {
					bd.publish(b, 1)
					handled(i + 2)
				}
				b.StopTimer()
			})
		}
	}
}

// BenchmarkGroup measures what it costs to handle one message at a time among hosts: with
// the consumer of a group, and with a lock, which is a key that is created and deleted for
// each message.
func BenchmarkGroup(b *testing.B) {
	one := jetstream.ConsumerConfig{MaxAckPending: 1}
	b.Run("peer=raw", func(b *testing.B) {
		newBed(b).raw(b, one, b.N, func() error { return nil })
		rate(b)
	})
	b.Run("peer=host", func(b *testing.B) {
		newBed(b).hosted(b, host.Spec{MIMEType: native.MIMEType, Code: []byte("none"), Group: "g"}, b.N)
		rate(b)
	})
	b.Run("peer=kv-lock", func(b *testing.B) {
		bd := newBed(b)
		kv, err := bd.js.CreateKeyValue(b.Context(), jetstream.KeyValueConfig{Bucket: "LOCKS"})
		check(b, err)
		bd.raw(b, jetstream.ConsumerConfig{MaxAckPending: 256}, b.N, func() error {
			_, err := kv.Create(b.Context(), "lock", []byte("me"))
			return errors.Join(err, kv.Delete(b.Context(), "lock"))
		})
		rate(b)
	})
}

// BenchmarkRecovery measures the time from the start of a host until all its workers
// run again.
func BenchmarkRecovery(b *testing.B) {
	n := 1000
	if testing.Short() {
		n = 50
	}
	b.Run(fmt.Sprint("workers=", n), func(b *testing.B) {
		bd := newBed(b)
		for i := range n {
			_, err := bd.host.Create(b.Context(), host.Spec{ID: fmt.Sprint("w", i), MIMEType: "text/x-starlark", Topic: fmt.Sprint("work.", i), Code: []byte("def handle(message): pass")})
			check(b, err)
		}
		stop(b, bd.host)
		b.ResetTimer()
		for i := range b.N {
			h := bd.start(b, fmt.Sprint("b", i))
			b.StopTimer()
			if got := len(h.Local()); got != n {
				b.Fatalf("%d of %d workers run", got, n)
			}
			stop(b, h)
			b.StartTimer()
		}
	})
}
