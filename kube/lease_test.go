package kube

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
)

const leasePath = "/apis/coordination.k8s.io/v1/namespaces/demo/leases/sync"

func newLease(t *testing.T, c *Client) *Lease {
	t.Helper()
	l, err := c.Lease(LeaseConfig{Name: "sync"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// acquire wants the lease to be granted, or not.
func acquire(t *testing.T, l *Lease, want bool) {
	t.Helper()
	granted, err := l.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if (granted == 15*time.Second) != want || !want && granted != 0 {
		t.Fatalf("granted %v, want that it is granted: %v", granted, want)
	}
}

func spec(f *fakeAPI) map[string]any { return f.get(leasePath)["spec"].(map[string]any) }

// The object is as client-go's leaderelection writes it, and what another client has
// put into its metadata stays.
func TestLeaseObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c, _ := f.client(t)
		l := newLease(t, c)
		acquire(t, l, true)
		s := spec(f)
		begun := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
		if s["holderIdentity"] != l.Identity() || s["leaseDurationSeconds"] != 15.0 || s["leaseTransitions"] != 0.0 || s["acquireTime"] != begun || s["renewTime"] != begun {
			t.Errorf("it has %v", s)
		}
		if token, valid := l.Token(); token != 1 || !valid {
			t.Errorf("token %d, %v", token, valid)
		}
		o := f.get(leasePath)
		o["metadata"].(map[string]any)["labels"] = map[string]any{"app": "web"}
		f.set(leasePath, o)

		time.Sleep(5 * time.Second)
		acquire(t, l, true) // after a conflict
		if o = f.get(leasePath); o["metadata"].(map[string]any)["labels"] == nil {
			t.Errorf("the label is lost: %v", o)
		}
		if s = spec(f); s["acquireTime"] != begun || s["renewTime"] == begun || s["leaseTransitions"] != 0.0 {
			t.Errorf("renewed: %v", s)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s = spec(f); s["holderIdentity"] != "" || s["leaseDurationSeconds"] != 1.0 {
			t.Errorf("released: %v", s)
		}
		if _, valid := l.Token(); valid {
			t.Error("the token is valid after the release")
		}
		other := newLease(t, c)
		acquire(t, other, true) // at once
		acquire(t, l, false)
		if token, valid := other.Token(); token != 2 || !valid {
			t.Errorf("token %d, %v, want a greater one", token, valid)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if who, err := l.Holder(t.Context()); who != other.Identity() || err != nil {
			t.Errorf("held by %q, %v", who, err)
		}
	})
}

// The lease of a holder that died is free when it has not changed for its duration by
// this process's clock. The times in it do not count. So is a deleted one.
func TestLeaseOfADeadHolder(t *testing.T) {
	for name, disturb := range map[string]func(f *fakeAPI){
		"kept":    func(*fakeAPI) {},
		"deleted": func(f *fakeAPI) { f.remove(leasePath) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.set(leasePath, map[string]any{"spec": map[string]any{
					"holderIdentity": "rival", "leaseDurationSeconds": 20, "leaseTransitions": 7,
					"acquireTime": "2001-01-01T00:00:00.000000Z", "renewTime": "2001-01-01T00:00:00.000000Z",
				}})
				c, _ := f.client(t)
				l := newLease(t, c)
				acquire(t, l, false)
				disturb(f)
				time.Sleep(20*time.Second - time.Millisecond)
				acquire(t, l, false)
				time.Sleep(time.Millisecond)
				acquire(t, l, true)
				if token, _ := l.Token(); token != 9 {
					t.Errorf("token %d, want 9, after that of transition 7", token)
				}
			})
		})
	}
}

// A renewal by the holder begins the time again.
func TestLeaseOfALivingHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c, _ := f.client(t)
		holder, rival := newLease(t, c), newLease(t, c)
		for range 20 {
			acquire(t, holder, true)
			acquire(t, rival, false)
			time.Sleep(10 * time.Second)
		}
	})
}

// After a lost answer the Lease finds out what the API server did.
func TestLeaseAnswersAreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c, _ := f.client(t)
		l, rival := newLease(t, c), newLease(t, c)
		f.onWrite(func(r *http.Request) { <-r.Context().Done() })
		lose := func(what string, fn func() error) {
			t.Helper()
			began := time.Now()
			if err := fn(); err == nil || !strings.Contains(err.Error(), "leases.coordination.k8s.io demo") || !strings.Contains(err.Error(), "no answer in 5s") {
				t.Errorf("%s: %v", what, err)
			}
			if took := time.Since(began); took != 5*time.Second {
				t.Errorf("%s took %v", what, took)
			}
		}
		lose("create", func() error { _, err := l.Acquire(t.Context()); return err })
		f.onWrite(nil)
		acquire(t, rival, false)
		acquire(t, l, true)
		f.onWrite(func(r *http.Request) { <-r.Context().Done() })
		lose("renew", func() error { _, err := l.Acquire(t.Context()); return err })
		f.onWrite(nil)
		acquire(t, l, true)
		acquire(t, rival, false)
		f.onWrite(func(r *http.Request) { <-r.Context().Done() })
		lose("release", func() error { return l.Release(t.Context()) })
		f.onWrite(nil)
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
		acquire(t, rival, true)
	})
}

// A request that the API server carries out long after it was given up does no harm:
// it is refused when the object has changed.
func TestLeaseLateWriteIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		c, _ := f.client(t)
		l, rival := newLease(t, c), newLease(t, c)
		acquire(t, l, true)
		acquire(t, rival, false)
		resume := make(chan struct{})
		f.failWith(func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPut {
				<-resume // carried out afterwards
			}
			return false
		})
		if _, err := l.Acquire(t.Context()); err == nil {
			t.Error("a renewal without an answer succeeded")
		}
		f.failWith(nil)
		time.Sleep(11 * time.Second)
		acquire(t, rival, true)
		close(resume)
		synctest.Wait()
		if who := spec(f)["holderIdentity"]; who != rival.Identity() {
			t.Errorf("held by %v, want the rival", who)
		}
		acquire(t, l, false)
	})
}

// Bad answers are errors that name the object, and for a refusal the missing rule.
func TestLeaseErrors(t *testing.T) {
	stored := func(change map[string]any) map[string]any {
		s := map[string]any{"holderIdentity": "rival", "leaseDurationSeconds": 15, "leaseTransitions": 1, "acquireTime": "2001-01-01T00:00:00.000000Z", "renewTime": "2001-01-01T00:00:00.000000Z"}
		for k, v := range change {
			if v == nil {
				delete(s, k)
			} else {
				s[k] = v
			}
		}
		return map[string]any{"spec": s}
	}
	raw := func(status int, text string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(text))
			return true
		}
	}
	for name, tt := range map[string]struct {
		stored map[string]any
		fault  func(http.ResponseWriter, *http.Request) bool
		says   []string
	}{
		"no permission to get":    {nil, forbid("GET"), []string{"get leases.coordination.k8s.io demo/sync: 403", `lacks the rule {apiGroups: ["coordination.k8s.io"], resources: ["leases"], verbs: ["get"]} in the namespace demo`}},
		"no permission to create": {nil, forbid("POST"), []string{"create leases.coordination.k8s.io demo: 403", `verbs: ["create"]`}},
		"no permission to update": {map[string]any{"spec": map[string]any{}}, forbid("PUT"), []string{"update", "demo/sync: 403", `verbs: ["update"]`}},
		"bad token": {nil, func(w http.ResponseWriter, _ *http.Request) bool {
			refuse(w, 401, "Unauthorized", "Unauthorized")
			return true
		}, []string{"401", "does not accept the service account's token"}},
		"no duration":       {stored(map[string]any{"leaseDurationSeconds": nil}), nil, []string{"demo/sync is held by \"rival\" without", "does not come from a leader election"}},
		"no renewal":        {stored(map[string]any{"renewTime": nil}), nil, []string{"does not come from a leader election"}},
		"negative duration": {stored(map[string]any{"leaseDurationSeconds": -1}), nil, []string{"does not come from a leader election"}},
		"coordinated":       {stored(map[string]any{"strategy": "OldestEmulationVersion"}), nil, []string{"strategy", "the API server selects"}},
		"wrong type":        {stored(map[string]any{"leaseDurationSeconds": "long"}), nil, []string{"demo/sync: the answer is not what the API describes"}},
		"a proxy's page":    {nil, raw(502, "<html>bad gateway</html>"), []string{"502", "<html>bad gateway"}},
		"no object":         {nil, raw(200, "{}"), []string{"demo/sync: the answer has no metadata"}},
		"not JSON":          {nil, raw(200, "ok"), []string{"the answer is not what the API describes"}},
		"a redirect": {nil, func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://elsewhere/", http.StatusFound)
			return true
		}, []string{"302"}},
		"no answer": {nil, hang, []string{"get leases.coordination.k8s.io demo/sync", "no answer in 5s"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				if tt.stored != nil {
					f.set(leasePath, tt.stored)
				}
				f.failWith(tt.fault)
				c, _ := f.client(t)
				l := newLease(t, c)
				granted, err := l.Acquire(t.Context())
				if err == nil || granted != 0 {
					t.Fatalf("granted %v, %v", granted, err)
				}
				for _, s := range tt.says {
					if !strings.Contains(err.Error(), s) {
						t.Errorf("%q does not say %q", err, s)
					}
				}
				if strings.Contains(err.Error(), "secret") {
					t.Errorf("the token is in %q", err)
				}
				if tt.stored != nil && name != "no permission to update" && spec(f)["holderIdentity"] != "rival" {
					t.Errorf("it was changed: %v", spec(f))
				}
			})
		})
	}
}

func TestLeaseConfigIsChecked(t *testing.T) {
	f := newFake()
	c, _ := f.client(t)
	for _, cfg := range []LeaseConfig{{}, {Name: "a/b/c"}, {Name: "/x"}, {Name: "x/"}, {Name: "x", Duration: 500 * time.Millisecond}, {Name: "x", Duration: 1500 * time.Millisecond}, {Name: "x", Duration: -time.Second}} {
		if _, err := c.Lease(cfg); err == nil || !strings.Contains(err.Error(), "lease ") {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	l, err := c.Lease(LeaseConfig{Name: "other/x"})
	if err != nil || l.object.namespace != "other" || l.object.name != "x" {
		t.Errorf("%v, %v", l, err)
	}
}

// Outside a cluster a program runs: the unit campaigns, one log line says why in vain.
func TestLeaseOutsideACluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{})
		if err != nil {
			t.Fatal(err)
		}
		l := newLease(t, c)
		if _, err := l.Acquire(t.Context()); !errors.Is(err, ErrNotInCluster) {
			t.Errorf("Acquire: %v", err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
		}
	})
}

// Of several Apps one leads at any time, while the API server refuses, hangs, and
// loses answers, and the Apps come and go.
func TestLeaseHasOneLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.failWith(func(w http.ResponseWriter, r *http.Request) bool {
			switch rand.N(12) {
			case 0:
				return hang(w, r)
			case 1:
				refuse(w, 500, "InternalError", "etcd is gone")
				return true
			case 2:
				select {
				case <-time.After(rand.N(4 * time.Second)):
				case <-r.Context().Done():
				}
			}
			return false
		})
		f.onWrite(func(r *http.Request) {
			if rand.N(12) == 0 {
				<-r.Context().Done()
			}
		})
		var mu sync.Mutex
		leading, terms, last, holder := 0, 0, uint64(0), ""
		lead := func(l *Lease) func(context.Context) error {
			return func(ctx context.Context) error {
				token, valid := l.Token()
				mu.Lock()
				if leading++; leading > 1 {
					t.Error("two lead")
				}
				if !valid || token < last || token == last && l.Identity() != holder {
					t.Errorf("token %d, %v after %d", token, valid, last)
				}
				terms, last, holder = terms+1, token, l.Identity()
				mu.Unlock()
				<-ctx.Done()
				time.Sleep(rand.N(2 * time.Second))
				mu.Lock()
				leading--
				mu.Unlock()
				return nil
			}
		}
		var all sync.WaitGroup
		end := time.Now().Add(time.Hour)
		for range 4 {
			c, _ := f.client(t)
			all.Go(func() {
				for time.Now().Before(end) {
					l := newLease(t, c)
					app := lifecycletest.New(t, lifecycle.Config{DrainInterval: lifecycle.Off})
					app.Lead("sync", l, lead(l))
					app.Start()
					time.Sleep(rand.N(5 * time.Minute))
					app.Stop(nil)
					app.WantClean()
				}
			})
		}
		all.Wait()
		if terms < 50 {
			t.Errorf("%d terms: it proves little", terms)
		}
	})
}

// When an operator deletes the object, two processes can lead until the first one renews:
// a third of Duration. docs/reference/guarantees/app.md says so.
func TestLeaseDeletedByAnOperator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		var mu sync.Mutex
		var both time.Time // since when two lead, or since the last deletion meanwhile
		leading, times, longest := 0, 0, time.Duration(0)
		lead := func(ctx context.Context) error {
			mu.Lock()
			if leading++; leading > 1 {
				times, both = times+1, time.Now()
			}
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			if leading > 1 {
				longest = max(longest, time.Since(both))
			}
			leading--
			return nil
		}
		var all sync.WaitGroup
		end, deletions := time.Now().Add(15*time.Minute), 0
		for range 4 {
			c, _ := f.client(t)
			all.Go(func() {
				for time.Now().Before(end) {
					l := newLease(t, c) // it has never seen the holder
					app := lifecycletest.New(t, lifecycle.Config{DrainInterval: lifecycle.Off})
					app.Lead("sync", l, lead)
					app.Start()
					time.Sleep(rand.N(5 * time.Minute))
					app.Stop(nil)
					_ = app.Wait() // WantClean says what is wrong
					c.Close()      // a campaign without success leaves its idle connection
					app.WantClean()
				}
			})
		}
		for ; time.Now().Before(end); deletions++ {
			time.Sleep(rand.N(30 * time.Second))
			mu.Lock()
			if leading > 1 { // each deletion may let two lead for as long again
				longest, both = max(longest, time.Since(both)), time.Now()
			}
			mu.Unlock()
			f.remove(leasePath)
		}
		all.Wait()
		t.Logf("%d deletions in 15 minutes: two led %d times, for %v at most after each", deletions, times, longest)
		if longest > 5*time.Second {
			t.Errorf("two led for %v, want a third of 15 s at most", longest)
		}
	})
}
