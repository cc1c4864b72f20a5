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

// While a provider hangs, callers that need its keys wait for one try together, and not one
// after the other. They get what is known of it, for an hour.
func TestKeysOfAProviderThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := new(hanging)
		auth, err := OIDC(OIDCConfig{Issuer: "https://id.example.com", ClientID: "x", Grants: []Grant{{Subject: "group:ops", Role: RoleViewer}}})
		if err != nil {
			t.Fatal(err)
		}
		o, ok := auth.(*oidcAuth)
		if !ok {
			t.Fatalf("it is a %T", auth)
		}
		o.client.Transport = h
		known := &provider{at: time.Now()}
		o.last = answer{found: known, at: time.Now()}
		time.Sleep(providerAge + time.Second)
		begun := time.Now()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if p, err := o.provider(context.Background(), time.Now().Add(-providerAge)); p != known || err != nil {
					t.Errorf("what was known ten minutes ago: %v %v", p, err)
				}
			})
		}
		all.Wait()
		if waited := time.Since(begun); waited > providerTime+time.Second || h.asked != 1 {
			t.Errorf("20 callers waited %v, and asked %d times", waited, h.asked)
		}
		time.Sleep(providerMost)
		if _, err := o.provider(context.Background(), time.Now()); err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("keys that are too old: %v", err)
		}
	})
}
