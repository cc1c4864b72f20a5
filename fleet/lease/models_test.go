package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/internal/models"
)

// lossy is a bucket that records each write, and loses some answers.
type lossy struct {
	jetstream.KeyValue
	me      int
	history *history
}

// history is what happened to a lease.
type history struct {
	mu     sync.Mutex // held while the server writes
	events []models.Event
	used   [3]int // requests of a process, and answers that it lost
	long   bool   // more than the model has
}

// mayAsk reports whether the model's process can send one more request.
func (h *history) mayAsk(me int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.used[me] < 4-me
}

func (l *lossy) write(what string, send func() error) error {
	time.Sleep(rand.N(300 * time.Millisecond))
	h := l.history
	h.mu.Lock()
	defer h.mu.Unlock()
	h.long = h.long || h.used[l.me] >= 4-l.me
	h.used[l.me]++
	err := send()
	if err == nil {
		h.events = append(h.events, models.Event{Life: l.me, State: what})
	}
	if err == nil && rand.IntN(6) == 0 {
		h.used[l.me]++
		return errors.New("the answer is lost")
	}
	return err
}

func (l *lossy) Create(ctx context.Context, key string, value []byte, opts ...jetstream.KVCreateOpt) (revision uint64, err error) {
	err = l.write("takes", func() (err error) { revision, err = l.KeyValue.Create(ctx, key, value, opts...); return err })
	return revision, err
}

func (l *lossy) Update(ctx context.Context, key string, value []byte, last uint64) (revision uint64, err error) {
	err = l.write("takes", func() (err error) { revision, err = l.KeyValue.Update(ctx, key, value, last); return err })
	return revision, err
}

func (l *lossy) Delete(ctx context.Context, key string, opts ...jetstream.KVDeleteOpt) error {
	return l.write("releases", func() error { return l.KeyValue.Delete(ctx, key, opts...) })
}

// Two processes that want one lease, with answers that are lost, go along the model.
func TestLeasesConformToTheModel(t *testing.T) {
	b := brokertest.Server(t, broker.Config{Buckets: []jetstream.KeyValueConfig{Bucket("LEASES", time.Second)}})
	var records [][]models.Event
	var mu sync.Mutex // guards records
	var all sync.WaitGroup
	for i := range 20 {
		var h history
		var two sync.WaitGroup
		for me := 1; me <= 2; me++ {
			l, err := New(t.Context(), b.JetStream(), Config{Bucket: "LEASES", Key: fmt.Sprint("work", i), Holder: fmt.Sprint(me)})
			if err != nil {
				t.Fatal(err)
			}
			l.kv = &lossy{l.kv, me, &h}
			two.Go(func() { campaign(t, l, me, &h) })
		}
		all.Go(func() {
			two.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !h.long {
				records = append(records, h.events)
			}
		})
	}
	all.Wait()
	models.Conform(t, "lease", records)
}

// campaign asks for the lease, as often as the model does.
func campaign(t *testing.T, l *Lease, me int, h *history) {
	leaves := rand.IntN(2) == 0
	for round := 0; h.mayAsk(me); round++ {
		time.Sleep(rand.N(800 * time.Millisecond))
		if leaves && round == 3-me {
			_ = l.Release(t.Context())
			return
		}
		granted, err := l.Acquire(t.Context())
		h.mu.Lock()
		if granted == 0 && err == nil {
			h.used[me]++ // the model has fewer looks too
		}
		if _, valid := l.Token(); valid && granted > 0 {
			h.events = append(h.events, models.Event{Life: me, State: "granted"})
		}
		h.mu.Unlock()
	}
}
