package kube

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// EvictionConfig shapes [Client.Evictions].
type EvictionConfig struct {
	// Responder is the name of the responder in the pod's spec.evictionResponders. Defaults
	// to "lifecycle.pleme.io/app".
	Responder string

	// Wait takes no new work and returns when the present work has ended or another process
	// has it: long tasks, games, sessions. It is called when the pod is to be evicted, at
	// most once at a time. Its context ends when the eviction is withdrawn: take new work
	// again and return. It ends also after Longest, and when the App is stopping, which waits
	// for its return as for a unit. An error or a panic ends the wait too, and the cluster
	// sees its text.
	Wait func(ctx context.Context) error

	// Longest bounds how long an eviction waits for this process. Defaults to 1 h.
	Longest time.Duration
}

// heartbeatPeriod is the time between two reports. The API asks for 20 s at least, and gives
// an eviction to the next responder after 20 minutes without one.
const heartbeatPeriod = 30 * time.Second

// Evictions lets the App answer for the eviction of its own pod, by the Eviction API of
// Kubernetes 1.37 (KEP-4563, alpha: lifecycle.k8s.io/v1alpha1). The pod names the responder:
//
//	spec:
//	  evictionResponders: [{name: lifecycle.pleme.io/app, priority: 20000}]
//
// When the cluster wants the pod to go and it is the responder's turn, the App leaves
// readiness ([lifecycle.App.Suspend]), unless DrainReadiness is serving. It then waits for
// what may take longer than a stop: until the drain window is over, the jobs of
// [lifecycle.App.Job] are done, and Wait has returned. Meanwhile it reports a heartbeat, the
// time by which it will be done, and what it waits for. Then it reports completion, and the
// cluster deletes the pod, which stops as always: requests and streams have their time there.
// So a drain of the node waits for a long job, without a PodDisruptionBudget that blocks.
//
// When the eviction is withdrawn, or fails, the App comes back into service. A process that
// starts anew in a pod that is being evicted goes on with the eviction.
//
// The pod's service account needs list and watch for evictions of lifecycle.k8s.io, and
// patch for evictions/status. The process knows its pod by the token of its service account.
// At rest Evictions costs one watch. In a cluster without the API it writes one log line and
// does nothing.
func (c *Client) Evictions(cfg EvictionConfig) lifecycle.Option {
	return lifecycle.WithSetup(func(a *lifecycle.App) error {
		if cfg.Longest < 0 {
			return fmt.Errorf("kube: Longest is %v, want 0 (its default) or more", cfg.Longest)
		}
		cfg.Longest = cmp.Or(cfg.Longest, time.Hour)
		cfg.Responder = cmp.Or(cfg.Responder, "lifecycle.pleme.io/app")
		e := &evictions{EvictionConfig: cfg, client: c, app: a, why: c.once("the pod's evictions are not answered"), turn: make(chan struct{}, 1)}
		a.Go("kube-eviction", e.run)
		return nil
	})
}

// eviction is the used part of an Eviction (lifecycle.k8s.io/v1alpha1).
type eviction struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Target struct {
			Pod struct {
				UID string `json:"uid"`
			} `json:"pod"`
		} `json:"target"`
	} `json:"spec"`
	Status struct {
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
		Requesters []struct {
			Name   string `json:"name"`
			Intent string `json:"intent"`
		} `json:"requesters"`
		TargetResponders []struct {
			Name  string `json:"name"`
			State string `json:"state"`
		} `json:"targetResponders"`
		Responders []responderStatus `json:"responders"`
	} `json:"status"`
}

// responderStatus is what a responder reports. The API's times have no fractions of a second.
type responderStatus struct {
	Name                   string     `json:"name"`
	StartTime              *time.Time `json:"startTime,omitempty"`
	HeartbeatTime          *time.Time `json:"heartbeatTime,omitempty"`
	ExpectedCompletionTime *time.Time `json:"expectedCompletionTime,omitempty"`
	CompletionTime         *time.Time `json:"completionTime,omitempty"`
	Message                string     `json:"message,omitempty"`
}

// state returns the state of a responder, or "" when the eviction does not have it.
func (ev eviction) state(responder string) string {
	for _, r := range ev.Status.TargetResponders {
		if r.Name == responder {
			return r.State
		}
	}
	return ""
}

// isUnderWay reports whether it is or was the responder's turn, and the cluster still wants
// the pod to go.
func (ev eviction) isUnderWay(responder string) bool {
	for _, c := range ev.Status.Conditions {
		if (c.Type == "Failed" || c.Type == "TargetEvicted") && c.Status == "True" {
			return false
		}
	}
	switch ev.state(responder) {
	case "Active", "Completed", "Interrupted":
		return true
	}
	return false
}

// requesters names those who want the pod to go.
func (ev eviction) requesters() string {
	var names []string
	for _, r := range ev.Status.Requesters {
		if r.Intent == "Eviction" {
			names = append(names, r.Name)
		}
	}
	return strings.Join(names, ", ")
}

// evictions is the unit of Evictions. Its goroutine alone uses the fields below why.
type evictions struct {
	EvictionConfig
	client *Client
	app    *lifecycle.App
	why    func(error)
	turn   chan struct{} // has a token while Wait runs

	pod     string              // its UID
	known   map[string]eviction // of this pod, by name
	name    string              // of the Eviction that asks for the pod; "" for none
	since   time.Time           // when this responder's turn began
	reason  string              // of the suspension, "" when another suspended the App
	active  bool                // it is this responder's turn
	ended   string              // how the wait has ended, "" before
	told    bool                // the cluster knows that it has
	waiting context.CancelFunc
	waited  chan error
}

func (e *evictions) all() object {
	return object{group: "lifecycle.k8s.io", version: "v1alpha1", resource: "evictions", namespace: e.client.cfg.Namespace}
}

func (e *evictions) run(ctx context.Context) error {
	defer e.client.Close()
	uid, err := e.client.podUID()
	if err != nil {
		e.why(err)
		return nil
	}
	e.pod, e.waiting = uid, func() {}
	defer func() { e.turn <- struct{}{} }() // once Wait has returned
	var others sync.WaitGroup
	defer others.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	changes := make(chan func())
	others.Go(func() { e.observe(ctx, changes) })
	beat := time.NewTicker(heartbeatPeriod)
	defer beat.Stop()
	defer func() { e.waiting() }()
	for draining := e.app.Reached(lifecycle.PhaseDraining); ; {
		select {
		case change := <-changes:
			change()
			if e.waited == nil && e.active && e.ended == "" {
				e.begin(ctx, &others)
			}
		case err := <-e.waited:
			e.waited = nil
			e.waiting()
			e.ended = "the work has ended"
			if err != nil {
				e.ended = "the wait has ended: " + err.Error()
			}
			e.report(ctx)
		case <-draining:
			draining = nil
			e.report(ctx)
		case <-beat.C:
			e.report(ctx)
		case <-ctx.Done():
			return nil
		}
	}
}

// observe passes on what the cluster says about the pod's eviction, until ctx ends.
func (e *evictions) observe(ctx context.Context, changes chan<- func()) {
	pass := func(change func()) {
		select {
		case changes <- change:
		case <-ctx.Done():
		}
	}
	observe(ctx, e.client, observed[eviction]{
		object: e.all(),
		read: func(ctx context.Context) (string, error) {
			all, err := list[eviction](ctx, e.client, e.all(), nil)
			if err != nil {
				return "", err
			}
			pass(func() {
				e.known = make(map[string]eviction)
				for _, ev := range all.Items {
					e.see("", ev)
				}
				e.decide()
			})
			return all.Metadata.ResourceVersion, nil
		},
		take: func(kind string, ev eviction) {
			pass(func() {
				e.see(kind, ev)
				e.decide()
			})
		},
		trouble: func(err error) { pass(func() { e.why(err) }) },
	})
}

// see takes over what an Eviction of this pod says now.
func (e *evictions) see(kind string, ev eviction) {
	switch {
	case ev.Spec.Target.Pod.UID != e.pod:
	case kind == "DELETED":
		delete(e.known, ev.Metadata.Name)
	default:
		e.known[ev.Metadata.Name] = ev
	}
}

// decide takes the pod out of service, or brings it back, as its Evictions say.
func (e *evictions) decide() {
	if e.name != "" && !e.known[e.name].isUnderWay(e.Responder) {
		e.withdraw()
	}
	for _, name := range slices.Sorted(maps.Keys(e.known)) {
		if ev := e.known[name]; e.name == "" && ev.isUnderWay(e.Responder) {
			e.leave(ev)
		}
	}
	e.active = e.known[e.name].state(e.Responder) == "Active"
}

// leave takes the pod out of service.
func (e *evictions) leave(ev eviction) {
	e.name, e.since = ev.Metadata.Name, time.Now()
	for _, r := range ev.Status.Responders {
		if r.Name != e.Responder {
			continue
		}
		if r.StartTime != nil {
			e.since = *r.StartTime
		}
		if r.CompletionTime != nil {
			e.ended, e.told = "the work has ended", true
		}
	}
	reason := "the pod is to be evicted"
	if by := ev.requesters(); by != "" {
		reason += ", asked by " + by
	}
	e.client.cfg.Logger.Info(reason, "eviction", e.name)
	_, isSuspended := e.app.Suspended()
	if e.app.Config().DrainReadiness != lifecycle.ReadinessServing && !isSuspended {
		e.app.Suspend(reason)
		s, _ := e.app.Suspended()
		e.reason = s.Reason
	}
}

// withdraw brings the pod back into service.
func (e *evictions) withdraw() {
	e.client.cfg.Logger.Info("the eviction is over, and the pod is not deleted", "eviction", e.name)
	e.waiting()
	if s, suspended := e.app.Suspended(); suspended && s.Reason == e.reason {
		e.app.Resume()
	}
	e.name, e.reason, e.ended = "", "", ""
	e.told, e.waited = false, nil
}

// errLongest is the cause of the end of a wait.
var errLongest = errors.New("the longest time to wait is over")

// begin begins the wait.
func (e *evictions) begin(ctx context.Context, others *sync.WaitGroup) {
	ctx, e.waiting = context.WithDeadlineCause(ctx, e.since.Add(e.Longest), errLongest)
	waited := make(chan error, 1)
	e.waited = waited
	others.Go(func() { waited <- e.wait(ctx) })
	e.report(ctx)
}

// wait returns when no work is left for which the eviction has to wait, or ctx has ended.
func (e *evictions) wait(ctx context.Context) (err error) {
	window := time.After(max(e.app.Config().DrainInterval, 0))
	if e.Wait != nil {
		select {
		case e.turn <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		err = call.Within(ctx, "kube.EvictionConfig.Wait", call.Settle, func() error {
			defer func() { <-e.turn }()
			return e.Wait(ctx)
		})
	}
	if len(jobs(e.app.Status())) > 0 {
		<-ctx.Done() // the App ends with its last job
	}
	if err == nil {
		select {
		case <-window:
		case <-ctx.Done():
		}
	}
	return cmp.Or(context.Cause(ctx), err)
}

// report tells the cluster how far this responder is. Only the responder whose turn it is may.
func (e *evictions) report(ctx context.Context) {
	if !e.active || e.told {
		return
	}
	// The API refuses a heartbeat before the start, which another clock has written.
	now := time.Now()
	if now.Before(e.since) {
		now = e.since
	}
	now = now.UTC().Truncate(time.Second)
	expected := e.since.Add(e.Longest).UTC().Truncate(time.Second)
	own := responderStatus{Name: e.Responder, HeartbeatTime: &now, Message: e.message()}
	t0 := e.app.EnteredAt(lifecycle.PhaseDraining)
	switch {
	case e.ended != "":
		own.CompletionTime = &now
	case !t0.IsZero():
		expected = t0.Add(budget(e.app.Config())).UTC().Truncate(time.Second)
		own.ExpectedCompletionTime = &expected
	case expected.After(now):
		own.ExpectedCompletionTime = &expected
	}
	o := e.all()
	o.name, o.sub = e.name, "status"
	body := map[string]any{"status": map[string]any{"responders": []responderStatus{own}}}
	var stored struct{}
	switch err := e.client.do(ctx, http.MethodPatch, "patch", o, nil, body, &stored); {
	case err == nil:
		e.told = e.ended != ""
	case ctx.Err() == nil && status(err) != http.StatusNotFound: // the eviction is gone
		e.why(err)
	}
}

// maxEvictionMessage is what the API takes, in characters.
const maxEvictionMessage = 4000

// message says what the eviction waits for.
func (e *evictions) message() string {
	shown := e.app.Status()
	var parts []string
	switch t0 := e.app.EnteredAt(lifecycle.PhaseDraining); {
	case !t0.IsZero():
		parts = append(parts, "the process stops: "+shown.Report.Reason)
		if shown.Waiting != "" {
			parts = append(parts, "waiting for "+shown.Waiting)
		}
	case e.ended != "":
		parts = append(parts, e.ended)
	default:
		parts = append(parts, "waiting since "+e.since.UTC().Format(time.RFC3339))
	}
	for _, job := range jobs(shown) {
		parts = append(parts, "job "+job+" runs")
	}
	for _, s := range shown.Servers {
		if s.InFlight > 0 || s.Hijacked > 0 {
			text := fmt.Sprintf("%s: %d requests in flight, %d connections taken over", s.Name, s.InFlight, s.Hijacked)
			parts = append(parts, text)
		}
	}
	text := strings.Join(parts, "; ")
	return strings.ToValidUTF8(text[:min(len(text), maxEvictionMessage)], "")
}

// jobs returns the names of the jobs that run.
func jobs(s lifecycle.Status) (names []string) {
	for _, u := range s.Units {
		if u.Kind == "job" && u.Status == "Running" {
			names = append(names, u.Name)
		}
	}
	return names
}

// podUID returns the UID of the pod of this process, which the token of its service account
// has.
func (c *Client) podUID() (string, error) {
	if c.none != nil {
		return "", c.none
	}
	token, err := c.token()
	if err != nil {
		return "", err
	}
	var claims struct {
		Kubernetes struct {
			Pod struct {
				UID string `json:"uid"`
			} `json:"pod"`
		} `json:"kubernetes.io"`
	}
	if parts := strings.Split(token, "."); len(parts) == 3 {
		text, err := base64.RawURLEncoding.DecodeString(parts[1])
		if err == nil {
			_ = json.Unmarshal(text, &claims) // what it does not have is missing
		}
	}
	if claims.Kubernetes.Pod.UID == "" {
		return "", errors.New("kube: the service account's token does not name a pod: want the one that the kubelet mounts")
	}
	return claims.Kubernetes.Pod.UID, nil
}
