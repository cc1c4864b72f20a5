package kube

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/models"
)

// Two processes that want one lease, with requests that are late and answers that are lost, go along the model.
func TestLeasesConformToTheModel(t *testing.T) {
	var records [][]models.Event
	for i := range uint64(100) {
		synctest.Test(t, func(t *testing.T) { records = append(records, recordedLease(t, rand.New(rand.NewPCG(i, 0)))) })
	}
	models.Conform(t, "lease", records)
}

// recordedLease returns what happens to a lease in 20 seconds.
func recordedLease(t *testing.T, random *rand.Rand) (record []models.Event) {
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
	var all sync.WaitGroup
	for me := 1; me <= 2; me++ {
		c, _ := f.client(t)
		l := newLease(t, c)
		process[l.Identity()] = me
		end, last := time.Now().Add(20*time.Second), within(2) == 1
		all.Go(func() {
			// As in the model, an answer that is lost counts as a request.
			for requests := 4 - me; requests > 0; requests-- {
				time.Sleep(within(9 * time.Second))
				if !time.Now().Before(end) {
					return
				}
				if last && requests == 1 {
					_ = l.Release(t.Context())
					return
				}
				granted, err := l.Acquire(t.Context())
				if err != nil {
					requests--
				}
				if granted > 0 {
					mu.Lock()
					record = append(record, models.Event{Life: me, State: "granted"})
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	time.Sleep(time.Minute) // what is late happens
	return record
}
