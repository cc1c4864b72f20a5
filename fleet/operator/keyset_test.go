package operator

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// hanging is a provider that accepts requests and never answers.
type hanging struct {
	mu    sync.Mutex // guards asked
	asked int
}

func (h *hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	h.mu.Lock()
	h.asked++
	h.mu.Unlock()
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// While a provider hangs, those who need its keys wait for one try together, and not one
// after the other.
func TestKeysOfAProviderThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(hanging)
		k := newKeySet(&http.Client{Transport: h, Timeout: providerTime}, "https://id.example.com/jwks")
		k.keys, k.at = nil, time.Now() // read once
		time.Sleep(keysAge + time.Second)
		begun := time.Now()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if _, _, err := k.fresh(context.Background(), time.Now().Add(-keysAge), keysMost); err != nil {
					t.Errorf("keys of ten minutes ago: %v", err)
				}
			})
		}
		all.Wait()
		if waited := time.Since(begun); waited > providerTime+time.Second || h.asked != 1 {
			t.Errorf("20 callers waited %v, and asked %d times", waited, h.asked)
		}
		time.Sleep(keysMost)
		if _, _, err := k.fresh(context.Background(), time.Now(), keysMost); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("keys that are too old: %v", err)
		}
	})
}
