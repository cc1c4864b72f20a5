package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/c360studio/semstreams/natsclient"
	semstreams "github.com/c360studio/semstreams/pkg/lifecycle"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/bench/internal/cpu"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

// mission is a record of typical size.
type mission struct {
	ID    string `json:"id"    lifecycle:"id"`
	State string `json:"phase" lifecycle:"phase"`
	Org   string `json:"org"   lifecycle:"indexable"`
	Area  string `json:"area"`
	Count int    `json:"count"`
}

func (m *mission) EntityID() string       { return m.ID }
func (m *mission) Workflow() string       { return survey }
func (m *mission) Phase() string          { return m.State }
func (m *mission) IsTerminal() bool       { return false }
func (m *mission) KVBucket() string       { return "MISSIONS" }
func (m *mission) KVKey(id string) string { return id }
func (m *mission) ParentEntityID() string { return "" }

const (
	survey = "survey"
	area   = "47.3769 N 8.5417 E, 47.3811 N 8.5402 E, 47.3801 N 8.5489 E, 47.3765 N 8.5470 E"
)

var table = map[string][]string{"flying": {"capturing", "done"}, "capturing": {"flying"}, "done": {}}

// peer is one way to keep missions. Every writer has its own.
type peer struct {
	name string
	open func(b *testing.B, js jetstream.JetStream, url string) peerOps
}

type peerOps struct {
	create     func(ctx context.Context, id string) error
	get        func(ctx context.Context, id string) error
	transition func(ctx context.Context, id, to string) error // by the one writer of id
}

var peers = []peer{{"raw", raw}, {"lifecycle-go", ours}, {"lifecycle-go-without-view", blind}, {"semstreams", theirs}}

// raw is the floor: the same record in the same bucket, and each writer knows
// the revision of its key.
func raw(b *testing.B, js jetstream.JetStream, _ string) peerOps {
	kv, err := js.KeyValue(context.Background(), "MISSIONS")
	if err != nil {
		b.Fatal(err)
	}
	var revisions sync.Map
	return peerOps{
		func(ctx context.Context, id string) error {
			data, _ := json.Marshal(&mission{ID: id, State: "flying", Area: area})
			rev, err := kv.Create(ctx, id, data)
			revisions.Store(id, rev)
			return err
		},
		func(ctx context.Context, id string) error {
			entry, err := kv.Get(ctx, id)
			if err != nil {
				return err
			}
			return json.Unmarshal(entry.Value(), new(mission))
		},
		func(ctx context.Context, id, to string) error {
			data, _ := json.Marshal(&mission{ID: id, State: to, Area: area})
			rev, _ := revisions.Load(id)
			next, err := kv.Update(ctx, id, data, rev.(uint64))
			revisions.Store(id, next)
			return err
		},
	}
}

func manager(b *testing.B, js jetstream.JetStream) *workflow.Manager { return managerOf(b, js) }

func managerOf(b *testing.B, js jetstream.JetStream, opts ...workflow.RegisterOption) *workflow.Manager {
	m := workflow.NewManager(js, slog.New(slog.DiscardHandler))
	b.Cleanup(func() { _ = m.Close() })
	if err := m.Register(survey, func() workflow.Participant { return new(mission) }, table, opts...); err != nil {
		b.Fatal(err)
	}
	if err := m.Ready(context.Background()); err != nil {
		b.Fatal(err)
	}
	return m
}

func ours(b *testing.B, js jetstream.JetStream, _ string) peerOps { return opsOf(manager(b, js)) }

// blind is a process that follows no bucket.
func blind(b *testing.B, js jetstream.JetStream, _ string) peerOps {
	return opsOf(managerOf(b, js, workflow.WithoutView()))
}

func opsOf(m *workflow.Manager) peerOps {
	return peerOps{
		func(ctx context.Context, id string) error {
			return m.Create(ctx, &mission{ID: id, State: "flying", Area: area})
		},
		func(ctx context.Context, id string) error { _, err := m.Get(ctx, survey, id); return err },
		func(ctx context.Context, id, to string) error {
			return m.Transition(ctx, survey, id, to, workflow.TransitionSourceRule, "")
		},
	}
}

func theirs(b *testing.B, _ jetstream.JetStream, url string) peerOps {
	client, err := natsclient.NewClient(url, natsclient.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		b.Fatal(err)
	}
	if err := client.Connect(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = client.Close(context.Background()) })
	m := semstreams.NewManager(client, slog.New(slog.DiscardHandler))
	if err := m.Register(survey, func() semstreams.Participant { return new(mission) }, table); err != nil {
		b.Fatal(err)
	}
	return peerOps{
		func(ctx context.Context, id string) error {
			return m.Create(ctx, &mission{ID: id, State: "flying", Area: area})
		},
		func(ctx context.Context, id string) error { _, err := m.Get(ctx, survey, id); return err },
		func(ctx context.Context, id, to string) error {
			return m.Transition(ctx, survey, id, to, semstreams.TransitionSourceRule, "")
		},
	}
}

// serve starts a server, and gives every peer a connection over TCP, since
// semstreams takes no other.
func serve(b *testing.B, sync broker.Sync) (jetstream.JetStream, string) {
	srv := brokertest.Embedded(b, broker.Config{Sync: sync, Listen: "127.0.0.1:0", Buckets: []jetstream.KeyValueConfig{{Bucket: "MISSIONS", History: 8}}})
	return brokertest.Connect(b, broker.Config{URL: srv.ClientURL()}).JetStream(), srv.ClientURL()
}

// spread divides b.N operations among the writers, a goroutine each.
func spread(b *testing.B, writers int, op func(writer, i int) error) {
	var wg sync.WaitGroup
	var next atomic.Int64
	b.ReportAllocs()
	report := cpu.Measure(b)
	b.ResetTimer()
	for w := range writers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if err := op(w, int(i)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	report()
}

func BenchmarkWorkflow(b *testing.B) {
	ctx := context.Background()
	for _, mode := range []broker.Sync{broker.SyncInterval, broker.SyncAlways} {
		for _, writers := range []int{1, 16, 64} {
			for _, what := range []string{"Create", "Get", "Transition"} {
				if what == "Get" && mode == broker.SyncAlways {
					continue
				}
				for _, p := range peers {
					b.Run(fmt.Sprintf("op=%s/sync=%s/writers=%d/peer=%s", what, mode, writers, p.name), func(b *testing.B) {
						js, url := serve(b, mode)
						ops := p.open(b, js, url)
						id := func(w int) string { return fmt.Sprintf("m%d", w) }
						for w := range writers {
							if err := ops.create(ctx, id(w)); err != nil {
								b.Fatal(err)
							}
						}
						turns := make([]int, writers)
						spread(b, writers, func(w, i int) error {
							switch what {
							case "Create":
								return ops.create(ctx, fmt.Sprintf("n%d", i))
							case "Get":
								return ops.get(ctx, id(w))
							}
							turns[w]++
							return ops.transition(ctx, id(w), []string{"flying", "capturing"}[turns[w]%2])
						})
					})
				}
			}
		}
	}
}

// BenchmarkHotKey lets 64 writers update one entity. It reports how many of a
// hundred updates landed, and how long the slowest hundredth took.
func BenchmarkHotKey(b *testing.B) {
	ctx := context.Background()
	bump := func(m *mission) { m.Count++ }
	type updater func(ctx context.Context) error
	for _, managers := range []int{1, 4} {
		for name, open := range map[string]func(b *testing.B, js jetstream.JetStream, url string) updater{
			"lifecycle-go": func(b *testing.B, js jetstream.JetStream, _ string) updater {
				m := manager(b, js)
				return func(ctx context.Context) error {
					return m.Update(ctx, survey, "hot", func(p workflow.Participant) error { bump(p.(*mission)); return nil })
				}
			},
			"semstreams": func(b *testing.B, _ jetstream.JetStream, url string) updater {
				client, err := natsclient.NewClient(url, natsclient.WithLogger(slog.New(slog.DiscardHandler)))
				if err != nil {
					b.Fatal(err)
				}
				if err := client.Connect(ctx); err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = client.Close(ctx) })
				m := semstreams.NewManager(client, slog.New(slog.DiscardHandler))
				if err := m.Register(survey, func() semstreams.Participant { return new(mission) }, table); err != nil {
					b.Fatal(err)
				}
				return func(ctx context.Context) error {
					return m.Update(ctx, survey, "hot", func(p semstreams.Participant) error { bump(p.(*mission)); return nil })
				}
			},
		} {
			b.Run(fmt.Sprintf("writers=64/processes=%d/peer=%s", managers, name), func(b *testing.B) {
				js, url := serve(b, broker.SyncInterval)
				if err := raw(b, js, url).create(ctx, "hot"); err != nil {
					b.Fatal(err)
				}
				updaters := make([]updater, managers)
				for i := range updaters {
					updaters[i] = open(b, js, url)
				}
				var mu sync.Mutex
				var took []time.Duration
				failed := 0
				spread(b, 64, func(w, _ int) error {
					began := time.Now()
					err := updaters[w%managers](ctx)
					mu.Lock()
					defer mu.Unlock()
					took = append(took, time.Since(began))
					if err != nil {
						failed++
					}
					return nil
				})
				slices.Sort(took)
				b.ReportMetric(100*float64(len(took)-failed)/float64(len(took)), "landed-%")
				b.ReportMetric(float64(took[len(took)*99/100])/1e6, "p99-ms")
			})
		}
	}
}

// BenchmarkList lists a hundred of many entities, by the indexes of the view. It also
// reports what the view costs: memory for each entity, and the time until it is ready.
func BenchmarkList(b *testing.B) {
	ctx := context.Background()
	for _, size := range sizes() {
		var js jetstream.JetStream
		var m *workflow.Manager
		var url string
		perEntity, ready := 0.0, time.Duration(0)
		b.Run(fmt.Sprintf("entities=%d", size), func(b *testing.B) {
			js, url = serve(b, broker.SyncInterval)
			fill(b, js, size)
			before := heap()
			began := time.Now()
			m = manager(b, js)
			ready = time.Since(began)
			perEntity = float64(heap()-before) / float64(size)
			for by, opts := range map[string]workflow.ListOptions{
				"all": {Limit: 100}, "phase": {Phase: "capturing", Limit: 100}, "indexed": {Match: map[string]any{"org": "org-7"}, Limit: 100},
				"active": {Active: true, Limit: 100, After: "m0005"},
			} {
				b.Run("by="+by+"/peer=lifecycle-go", func(b *testing.B) {
					report := cpu.Measure(b)
					for b.Loop() {
						list, err := m.List(ctx, survey, opts)
						if err != nil || len(list) != 100 {
							b.Fatal(len(list), err)
						}
					}
					report()
					b.ReportMetric(perEntity, "B/entity")
					b.ReportMetric(float64(ready.Milliseconds()), "start-ms")
				})
			}
			if size > 10_000 {
				return // for each list, semstreams sends a request for every record
			}
			b.Run("by=phase/peer=semstreams", func(b *testing.B) {
				client, err := natsclient.NewClient(url, natsclient.WithLogger(slog.New(slog.DiscardHandler)))
				if err != nil {
					b.Fatal(err)
				}
				if err := client.Connect(ctx); err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = client.Close(ctx) })
				m := semstreams.NewManager(client, slog.New(slog.DiscardHandler))
				if err := m.Register(survey, func() semstreams.Participant { return new(mission) }, table); err != nil {
					b.Fatal(err)
				}
				report := cpu.Measure(b)
				for b.Loop() {
					list, err := m.List(ctx, survey, semstreams.ListOptions{Phase: "capturing", Limit: 100})
					if err != nil || len(list) != 100 {
						b.Fatal(len(list), err)
					}
				}
				report()
			})
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// fill writes size records. One in a hundred is capturing, and each of 97 orgs has about
// one in a hundred.
func fill(b *testing.B, js jetstream.JetStream, size int) {
	for i := range size {
		m := mission{ID: fmt.Sprintf("m%07d", i), State: "flying", Org: fmt.Sprintf("org-%d", i%97), Area: area}
		if i%100 == 0 {
			m.State = "capturing"
		}
		data, _ := json.Marshal(&m)
		if _, err := js.PublishAsync("$KV.MISSIONS."+m.ID, data, jetstream.WithStallWait(time.Minute)); err != nil {
			b.Fatal(err)
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(10 * time.Minute):
		b.Fatal(errors.New("the records were not stored in time"))
	}
}

// BenchmarkWatchLag measures the time from the beginning of a write until a watcher sees
// it. The watcher has a connection of its own, as another process has.
func BenchmarkWatchLag(b *testing.B) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	js, url := serve(b, broker.SyncInterval)
	ops := ours(b, js, url)
	watcher := manager(b, brokertest.Connect(b, broker.Config{URL: url}).JetStream())
	events, err := watcher.WatchEvents(ctx, survey)
	if err != nil {
		b.Fatal(err)
	}
	if err := ops.create(ctx, "m"); err != nil {
		b.Fatal(err)
	}
	for told, synced := false, false; !told || !synced; {
		e := <-events
		told, synced = told || e.Kind == workflow.EventPut, synced || e.Kind == workflow.EventSynced
	}
	report := cpu.Measure(b)
	n := 0
	for b.Loop() {
		n++
		if err := ops.transition(ctx, "m", []string{"flying", "capturing"}[n%2]); err != nil {
			b.Fatal(err)
		}
		<-events
	}
	report()
	cancel()
	for range events {
	}
}
