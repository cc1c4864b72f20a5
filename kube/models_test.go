package kube

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/models"
)

// Two processes that want one lease, with requests that are late and answers that are lost, go along the model.
func TestLeasesConformToTheModel(t *testing.T) {
	var records [][]models.Event
	for i := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			if record, fits := recordedLease(t, rand.New(rand.NewPCG(i, 0))); fits {
				records = append(records, record)
			}
		})
	}
	models.Conform(t, "lease", records)
}

// counting counts the requests that change something, and the answers that are lost.
type counting struct {
	*http.Transport
	n    atomic.Int64
	most int64 // of the model
	over *atomic.Bool
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return c.Transport.RoundTrip(r)
	}
	if c.n.Add(1) > c.most {
		c.over.Store(true)
	}
	resp, err := c.Transport.RoundTrip(r)
	if err != nil {
		c.n.Add(1)
	}
	return resp, err
}

// recordedLease returns what happens to a lease in 20 seconds, and whether that were no more requests than in the model.
func recordedLease(t *testing.T, random *rand.Rand) (record []models.Event, fits bool) {
	f := newFake()
	var mu sync.Mutex // guards what follows, and random
	holder, process, writes := "", map[string]int{}, 0
	within := func(most time.Duration) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return time.Duration(1 + random.Int64N(int64(most)))
	}
	rarely := func() bool { return within(8) == 1 }
	f.failWith(func(http.ResponseWriter, *http.Request) bool {
		if rarely() {
			time.Sleep(within(8 * time.Second)) // it may be carried out when its client has given up
		}
		return false
	})
	f.onWrite(func(r *http.Request) {
		mu.Lock()
		if now := spec(f)["holderIdentity"].(string); len(f.history) > writes && now == "" {
			record = append(record, models.Event{Life: process[holder], State: "releases"})
		} else if len(f.history) > writes {
			record = append(record, models.Event{Life: process[now], State: "takes"})
			holder = now
		}
		writes = len(f.history)
		mu.Unlock()
		if rarely() {
			<-r.Context().Done()
		}
	})
	var over atomic.Bool
	var all sync.WaitGroup
	for me := 1; me <= 2; me++ {
		c, _ := f.client(t)
		l := newLease(t, c)
		process[l.Identity()] = me
		sent := &counting{Transport: c.http.Transport.(*http.Transport), most: int64(4 - me), over: &over}
		c.http.Transport = sent
		end, leaves := time.Now().Add(20*time.Second), within(2) == 1
		all.Go(func() {
			for round := 0; sent.n.Load() < sent.most; round++ {
				time.Sleep(within(9 * time.Second))
				if !time.Now().Before(end) {
					return
				}
				if leaves && round == 2 {
					_ = l.Release(t.Context())
					return
				}
				if granted, _ := l.Acquire(t.Context()); granted > 0 {
					mu.Lock()
					record = append(record, models.Event{Life: me, State: "granted"})
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	time.Sleep(time.Minute) // what is late happens
	return record, !over.Load()
}
