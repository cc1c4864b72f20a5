package kube

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/lifecycletest"
)

const (
	evictionPath = "/apis/lifecycle.k8s.io/v1alpha1/namespaces/demo/evictions/e-1"
	ownUID       = "7f6d3c1e-0000-4000-8000-000000000001"
	responder    = "lifecycle.pleme.io/app"
)

// boundToken is a service account's token, as the kubelet mounts one for a pod.
func boundToken(uid string) lifecycle.Secret {
	part := base64.RawURLEncoding.EncodeToString
	return lifecycle.Secret(part([]byte(`{"alg":"none"}`)) + "." + part([]byte(`{"kubernetes.io":{"pod":{"name":"web-1","uid":"`+uid+`"}}}`)) + "." + part([]byte("signature")))
}

// patchResponders merges the responders of a status by their names, with the API server's
// rules. It returns what it refuses.
func (f *fakeAPI) patchResponders(old, given fields) string {
	status := old["status"].(fields)
	for _, item := range given["status"].(fields)["responders"].([]any) {
		own := item.(fields)
		has := func(list string) int {
			all, _ := status[list].([]any)
			return slices.IndexFunc(all, func(r any) bool { return r.(fields)["name"] == own["name"] })
		}
		target, at := has("targetResponders"), has("responders")
		if target < 0 || status["targetResponders"].([]any)[target].(fields)["state"] != "Active" {
			return "status.responders: field is immutable"
		}
		stored := status["responders"].([]any)[at].(fields)
		if beat, ok := own["heartbeatTime"].(string); ok && beat < stored["startTime"].(string) {
			return "heartbeatTime: must occur after startTime"
		}
		for key, value := range own {
			stored[key] = value
		}
	}
	return ""
}

// evict stores an Eviction of a pod, with this state of the responder, as the controller of
// Kubernetes will. It keeps what the responder has reported.
func (f *fakeAPI) evict(uid, name, state string, change ...func(o fields)) {
	own := fields{"name": name}
	if old := f.get(evictionPath); old != nil {
		own = old["status"].(fields)["responders"].([]any)[0].(fields)
	}
	if state != "Inactive" && own["startTime"] == nil {
		own["startTime"] = time.Now().UTC().Format(time.RFC3339)
	}
	o := fields{
		"spec": fields{"target": fields{"pod": fields{"name": "web-1", "uid": uid}}},
		"status": fields{
			"requesters":       []any{fields{"name": "drain.example/kubectl", "intent": "Eviction"}, fields{"name": "old.example/descheduler", "intent": "Withdrawn"}},
			"targetResponders": []any{fields{"name": name, "priority": 20000, "state": state}, fields{"name": "imperative-eviction.k8s.io/evictor", "priority": 100, "state": "Inactive"}},
			"responders":       []any{own, fields{"name": "imperative-eviction.k8s.io/evictor"}},
		},
	}
	for _, c := range change {
		c(o)
	}
	f.set(evictionPath, o)
}

// told returns what the responder has reported.
func (f *fakeAPI) told(key string) string {
	text, _ := f.get(evictionPath)["status"].(fields)["responders"].([]any)[0].(fields)[key].(string)
	return text
}

// over is a change of an Eviction that ends it without the end of the pod.
func over(o fields) {
	o["status"].(fields)["conditions"] = []any{fields{"type": "Failed", "status": "True", "reason": "CanceledDueToNoRequesters"}}
}

// evicted runs an App with Evictions. work is what its Wait waits for.
type evicted struct {
	*lifecycletest.App
	api    *fakeAPI
	log    *logLines
	work   chan struct{}
	waits  int   // calls of Wait
	undone error // why Wait has returned before the end of the work
}

func newEvicted(t *testing.T, cfg lifecycle.Config, change func(*EvictionConfig), setup ...func(*lifecycletest.App)) *evicted {
	t.Helper()
	e := &evicted{api: newFake(), work: make(chan struct{})}
	c, lines := e.api.client(t, func(c *Config) { c.Token = boundToken(ownUID) })
	e.log = lines
	ec := EvictionConfig{Wait: func(ctx context.Context) error {
		e.waits++
		select {
		case <-e.work:
			return nil
		case <-ctx.Done():
			e.undone = context.Cause(ctx)
			return nil
		}
	}}
	if change != nil {
		change(&ec)
	}
	e.App = lifecycletest.New(t, cfg, c.Evictions(ec))
	for _, s := range setup {
		s(e.App)
	}
	e.Start()
	time.Sleep(time.Minute)
	return e
}

// ready wants readiness to be up or down.
func (e *evicted) ready(t *testing.T, want bool) {
	t.Helper()
	synctest.Wait()
	if code, text := e.Ask("/readyz"); (code == 200) != want {
		t.Errorf("/readyz answers %d, want ready %v: %s", code, want, text)
	}
}

// The App leaves readiness, waits for its work, reports how far it is, and completes. It
// stays out of service until the pod is deleted.
func TestEvictionIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEvicted(t, lifecycle.Config{}, nil)
		e.ready(t, true)
		e.api.evict(ownUID, responder, "Inactive")
		e.ready(t, true)
		began := time.Now()
		e.api.evict(ownUID, responder, "Active")
		e.ready(t, false)
		if s, _ := e.Suspended(); s.Reason != "the pod is to be evicted, asked by drain.example/kubectl" {
			t.Errorf("it is suspended because %q", s.Reason)
		}
		if want := began.Add(time.Hour).UTC().Format(time.RFC3339); e.api.told("expectedCompletionTime") != want || !strings.Contains(e.api.told("message"), "waiting since") {
			t.Errorf("it is expected at %s, want %s: %s", e.api.told("expectedCompletionTime"), want, e.api.told("message"))
		}
		first := e.api.told("heartbeatTime")
		time.Sleep(10 * time.Minute)
		if beat, err := time.Parse(time.RFC3339, e.api.told("heartbeatTime")); err != nil || time.Since(beat) > heartbeatPeriod+s || first == "" {
			t.Errorf("the last heartbeat was at %v (%v), and the first at %s", beat, err, first)
		}
		if e.api.told("completionTime") != "" {
			t.Error("it is complete before the work has ended")
		}
		close(e.work)
		e.ready(t, false)
		if e.api.told("completionTime") == "" || e.api.told("message") != "the work has ended" || e.waits != 1 {
			t.Errorf("it is not complete: %q; %d waits", e.api.told("message"), e.waits)
		}
		e.api.evict(ownUID, responder, "Completed")
		time.Sleep(10 * time.Minute)
		e.ready(t, false)
		e.Stop(nil) // the evictor has deleted the pod
		e.WantClean()
		if strings.Contains(e.log.String(), "not answered") {
			t.Error(e.log)
		}
	})
}

// Without work that takes longer than a stop the App waits for the drain window.
func TestEvictionWithoutWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEvicted(t, lifecycle.Config{DrainInterval: 5 * s}, func(c *EvictionConfig) { c.Wait = nil })
		e.api.evict(ownUID, responder, "Active")
		time.Sleep(4 * s)
		synctest.Wait()
		if e.api.told("completionTime") != "" {
			t.Error("it is complete before clients have noticed")
		}
		time.Sleep(2 * s)
		synctest.Wait()
		if e.api.told("completionTime") == "" {
			t.Errorf("it is not complete: %s", e.api.told("message"))
		}
		e.Stop(nil)
		e.WantClean()
	})
}

// A withdrawn eviction brings the App back into service, and the next one takes it out again.
func TestEvictionIsWithdrawn(t *testing.T) {
	for name, withdraw := range map[string]func(f *fakeAPI){
		"canceled":          func(f *fakeAPI) { f.evict(ownUID, responder, "Canceled") },
		"failed":            func(f *fakeAPI) { f.evict(ownUID, responder, "Interrupted", over) },
		"deleted":           func(f *fakeAPI) { f.remove(evictionPath) },
		"deleted, not seen": func(f *fakeAPI) { f.remove(evictionPath); f.forget() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEvicted(t, lifecycle.Config{}, nil)
				for round := 1; round <= 2; round++ {
					e.undone = nil
					e.api.evict(ownUID, responder, "Active")
					e.ready(t, false)
					time.Sleep(time.Minute)
					withdraw(e.api)
					time.Sleep(2 * s) // a watch that begins anew
					e.ready(t, true)
					if !errors.Is(e.undone, context.Canceled) || e.waits != round {
						t.Errorf("round %d: the wait has ended because of %v, after %d waits", round, e.undone, e.waits)
					}
					e.api.remove(evictionPath)
					synctest.Wait()
				}
				e.Stop(nil)
				e.WantClean()
			})
		})
	}
}

// One eviction may end while another one goes on.
func TestEvictionFollowsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEvicted(t, lifecycle.Config{}, nil)
		e.api.evict(ownUID, responder, "Active")
		e.ready(t, false)
		next := e.api.get(evictionPath)
		e.api.set(strings.Replace(evictionPath, "e-1", "e-2", 1), next)
		e.api.evict(ownUID, responder, "Canceled", over)
		e.ready(t, false)
		if e.waits != 2 {
			t.Errorf("there were %d waits, want one for each eviction", e.waits)
		}
		e.Stop(nil)
		e.WantClean()
	})
}

// Evictions that are not about this process change nothing.
func TestEvictionOfOthers(t *testing.T) {
	for name, evict := range map[string]func(f *fakeAPI){
		"another pod of this name": func(f *fakeAPI) { f.evict("7f6d3c1e-0000-4000-8000-000000000002", responder, "Active") },
		"another responder":        func(f *fakeAPI) { f.evict(ownUID, "shop.example/app", "Active") },
		"not its turn":             func(f *fakeAPI) { f.evict(ownUID, responder, "Inactive") },
		"over before it began":     func(f *fakeAPI) { f.evict(ownUID, responder, "Canceled", over) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEvicted(t, lifecycle.Config{}, nil)
				evict(e.api)
				time.Sleep(time.Hour)
				e.ready(t, true)
				if e.api.told("heartbeatTime") != "" || e.waits != 0 {
					t.Error("it has answered")
				}
				e.Stop(nil)
				e.WantClean()
			})
		})
	}
}

// The cluster deletes the pod when the longest time is over, whatever the work does.
func TestEvictionEndsInTime(t *testing.T) {
	for name, wait := range map[string]func(context.Context) error{
		"work that watches its context": nil,
		"work that does not":            func(context.Context) error { time.Sleep(3 * time.Hour); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEvicted(t, lifecycle.Config{}, func(c *EvictionConfig) {
					c.Longest = 20 * time.Minute
					if wait != nil {
						c.Wait = wait
					}
				})
				e.api.evict(ownUID, responder, "Active")
				time.Sleep(19 * time.Minute)
				if e.api.told("completionTime") != "" {
					t.Error("it is complete too early")
				}
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if got := e.api.told("message"); e.api.told("completionTime") == "" || !strings.Contains(got, errLongest.Error()) && wait != nil {
					t.Errorf("it is not complete: %s", got)
				}
				time.Sleep(3 * time.Hour)
				e.Stop(nil)
				e.WantClean()
			})
		})
	}
}

// A job is waited for without a Wait, and its end is the end of the process.
func TestEvictionOfAJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEvicted(t, lifecycle.Config{}, func(c *EvictionConfig) { c.Wait = nil }, func(app *lifecycletest.App) {
			app.Job("import", func(ctx context.Context) error {
				select {
				case <-time.After(30 * time.Minute):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		})
		e.api.evict(ownUID, responder, "Active")
		time.Sleep(20 * time.Minute)
		if got := e.api.told("message"); e.api.told("completionTime") != "" || !strings.Contains(got, "job import runs") {
			t.Errorf("it says %q", got)
		}
		time.Sleep(9 * time.Minute)
		e.WantClean()
	})
}

// With DrainReadiness serving the App stays in service while it waits.
func TestEvictionOfASingleReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEvicted(t, lifecycle.Config{DrainReadiness: lifecycle.ReadinessServing}, nil)
		e.api.evict(ownUID, responder, "Active")
		time.Sleep(time.Minute)
		e.ready(t, true)
		close(e.work)
		synctest.Wait()
		if e.api.told("completionTime") == "" {
			t.Error("it is not complete")
		}
		e.Stop(nil)
		e.WantClean()
	})
}

// The suspension of an operator is the operator's to end.
func TestEvictionOfASuspendedApp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEvicted(t, lifecycle.Config{}, nil)
		e.Suspend("an operator looks at it")
		e.api.evict(ownUID, responder, "Active")
		time.Sleep(time.Minute)
		e.api.evict(ownUID, responder, "Canceled")
		e.ready(t, false)
		if s, _ := e.Suspended(); s.Reason != "an operator looks at it" {
			t.Errorf("it is suspended because %q", s.Reason)
		}
		e.Stop(nil)
		e.WantClean()
	})
}

// A process that begins in a pod that is being evicted goes on with it: the time that has
// passed counts, and what is complete stays so.
func TestEvictionGoesOn(t *testing.T) {
	for name, state := range map[string]string{"waits": "Active", "has told": "Active", "is done": "Completed"} {
		isDone := name != "waits"
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEvicted(t, lifecycle.Config{}, nil)
				began := time.Now().Add(-30 * time.Minute).UTC().Format(time.RFC3339)
				e.api.evict(ownUID, responder, state, func(o fields) {
					own := o["status"].(fields)["responders"].([]any)[0].(fields)
					own["startTime"] = began
					if isDone {
						own["completionTime"] = began
					}
				})
				e.ready(t, false)
				time.Sleep(31 * time.Minute)
				synctest.Wait()
				switch isOver := e.undone != nil; {
				case !isDone && (!isOver || e.api.told("completionTime") == ""):
					t.Errorf("after an hour it still waits: %s", e.api.told("message"))
				case isDone && e.waits != 0:
					t.Error("it waits again")
				}
				e.Stop(nil)
				e.WantClean()
			})
		})
	}
}

// While the App stops, the cluster hears when that will be over, and why it stops.
func TestEvictionOfAnAppThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEvicted(t, lifecycle.Config{}, nil, func(app *lifecycletest.App) {
			app.Serve("http", &http.Server{Handler: http.NotFoundHandler()}, lifecycle.WithListener(lifecycletest.NewListener()))
		})
		e.api.evict(ownUID, responder, "Active")
		time.Sleep(time.Minute)
		t0 := time.Now()
		e.StopBecause("an operator stops it")
		e.WantClean()
		want := t0.Add(27 * s).UTC().Format(time.RFC3339)
		if got := e.api.told("expectedCompletionTime"); got != want || !strings.Contains(e.api.told("message"), "the process stops: an operator stops it") {
			t.Errorf("it is expected at %s, want %s: %s", got, want, e.api.told("message"))
		}
	})
}

// An App that stops waits for Wait to return, before its hooks.
func TestEvictionWaitOfAnAppThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		returned, before := false, false
		e := newEvicted(t, lifecycle.Config{}, func(c *EvictionConfig) {
			c.Wait = func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(3 * s) // hand the sessions over
				returned = true
				return nil
			}
		}, func(app *lifecycletest.App) {
			app.OnShutdown("database", func(context.Context) error { before = returned; return nil })
		})
		e.api.evict(ownUID, responder, "Active")
		time.Sleep(time.Minute)
		e.Stop(nil)
		e.WantClean()
		if !before {
			t.Error("the hook was called before Wait has returned")
		}
	})
}

// Wait is called again only once the call before has returned.
func TestEvictionWaitsOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, calls int
		e := newEvicted(t, lifecycle.Config{}, func(c *EvictionConfig) {
			c.Wait = func(ctx context.Context) error {
				now, calls = now+1, calls+1
				most = max(most, now)
				<-ctx.Done()
				time.Sleep(time.Minute)
				now--
				return nil
			}
		})
		for range 2 {
			e.api.evict(ownUID, responder, "Active")
			time.Sleep(10 * s)
			e.api.evict(ownUID, responder, "Canceled")
			time.Sleep(2 * s)
		}
		e.api.evict(ownUID, responder, "Active")
		time.Sleep(2 * time.Minute)
		e.api.evict(ownUID, responder, "Canceled")
		time.Sleep(2 * time.Minute)
		e.Stop(nil)
		e.WantClean()
		if most != 1 || calls != 2 {
			t.Errorf("%d calls at once, %d in all", most, calls)
		}
	})
}

// What the API server refuses is tried again; without the API, a permission or a token of a
// pod one log line says so.
func TestEvictionsWithoutAnAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		token lifecycle.Secret
		fault func(http.ResponseWriter, *http.Request) bool
		says  string
	}{
		"no API": {boundToken(ownUID), func(w http.ResponseWriter, _ *http.Request) bool {
			refuse(w, 404, "NotFound", "not found")
			return true
		}, "list evictions.lifecycle.k8s.io demo: 404"},
		"no permission": {boundToken(ownUID), forbid(http.MethodGet), `lacks the rule {apiGroups: [\"lifecycle.k8s.io\"], resources: [\"evictions\"], verbs: [\"list\"]}`},
		"no patch":      {boundToken(ownUID), forbid(http.MethodPatch), `resources: [\"evictions/status\"], verbs: [\"patch\"]`},
		"another token": {"secret", nil, "does not name a pod"},
		"half a token":  {"a.!.c", nil, "does not name a pod"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				c, log := f.client(t, func(c *Config) { c.Token = tt.token })
				app := lifecycletest.New(t, lifecycle.Config{}, c.Evictions(EvictionConfig{}))
				app.Start()
				synctest.Wait() // the watch has begun
				f.failWith(tt.fault)
				f.forget() // the watch ends
				f.evict(ownUID, responder, "Active")
				time.Sleep(10 * time.Minute)
				app.Stop(nil)
				app.WantClean()
				if n := strings.Count(log.String(), "not answered"); n != 1 || !strings.Contains(log.String(), tt.says) {
					t.Errorf("the log has %d lines, want one that says %q:\n%s", n, tt.says, log)
				}
			})
		})
	}
	t.Run("for a while", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newEvicted(t, lifecycle.Config{}, nil)
			e.api.evict(ownUID, responder, "Active")
			synctest.Wait()
			e.api.failWith(hang)
			close(e.work)
			time.Sleep(time.Minute)
			e.api.failWith(nil)
			time.Sleep(time.Minute)
			if e.api.told("completionTime") == "" {
				t.Errorf("it is not complete:\n%s", e.log)
			}
			e.Stop(nil)
			e.WantClean()
		})
	})
	t.Run("a wrong Config", func(t *testing.T) {
		c, _ := newFake().client(t)
		_, err := lifecycle.New(lifecycle.Config{HealthAddr: lifecycle.HealthOff}, c.Evictions(EvictionConfig{Longest: -1}))
		if err == nil || !strings.Contains(fmt.Sprint(err), "Longest is -1ns") {
			t.Errorf("New returns %v", err)
		}
	})
}
