package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// pod is the known state of a pod, by the clock of this machine.
type pod struct {
	name, uid string
	container string    // id of the latest one
	ready     bool      // now
	stopped   time.Time // when its deletion was seen: about T0
	gone      time.Time
	ends      []end // of its containers
}

// end is how a container ended.
type end struct {
	ID       string `json:"containerID"`
	ExitCode int    `json:"exitCode"`
	Reason   string `json:"reason"`
	Message  string `json:"message"` // the content of its termination log
	seen     time.Time
}

func (e end) String() string {
	return fmt.Sprintf("exit status %d (%s): %q", e.ExitCode, e.Reason, e.Message)
}

// pods follows the pods of a Deployment. A pod's termination message is in its status
// only for a moment before the pod is gone, so pods watches.
type pods struct {
	log    *logs  // nil: nothing reads them
	onStop func() // called for each T0, may be nil; set it before the first

	mu      sync.Mutex // guards the fields below
	all     []*pod
	changed chan struct{} // closed and replaced with every change
}

// podObject is the used part of a pod.
type podObject struct {
	Metadata struct {
		Name              string     `json:"name"`
		UID               string     `json:"uid"`
		DeletionTimestamp *time.Time `json:"deletionTimestamp"`
	} `json:"metadata"`
	Status struct {
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
		ContainerStatuses []struct {
			ID    string `json:"containerID"`
			State struct {
				Terminated *end `json:"terminated"`
			} `json:"state"`
			LastState struct {
				Terminated *end `json:"terminated"`
			} `json:"lastState"`
		} `json:"containerStatuses"`
	} `json:"status"`
}

// watchPods follows the pods with this label, and their logs, until the test
// ends. Then it prints their account.
func (c *cluster) watchPods(t *testing.T, selector string) *pods {
	t.Helper()
	p := &pods{log: c.followLogs(t), changed: make(chan struct{})}
	watch(t, c, []string{"pods", "--selector", selector}, p.take)
	t.Cleanup(func() { t.Logf("pods of %s:\n%s", selector, p) })
	return p
}

func (p *pods) take(kind string, o podObject) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.all, func(known *pod) bool { return known.uid == o.Metadata.UID })
	if i < 0 {
		i = len(p.all)
		p.all = append(p.all, &pod{name: o.Metadata.Name, uid: o.Metadata.UID})
	}
	one := p.all[i]
	if o.Metadata.DeletionTimestamp != nil && one.stopped.IsZero() {
		one.stopped = now
		if p.onStop != nil {
			p.onStop()
		}
	}
	if kind == "DELETED" {
		one.gone = now
	}
	for _, c := range o.Status.Conditions {
		if c.Type == "Ready" {
			one.ready = c.Status == "True"
		}
	}
	for _, c := range o.Status.ContainerStatuses {
		one.container = strings.TrimPrefix(c.ID, "containerd://")
		for _, e := range []*end{c.LastState.Terminated, c.State.Terminated} {
			if e != nil && !slices.ContainsFunc(one.ends, func(known end) bool { return known.ID == e.ID }) {
				e.seen = now
				one.ends = append(one.ends, *e)
			}
		}
	}
	if p.log != nil {
		p.log.follow(one.name, one.uid)
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// await waits until ok returns true for the pods. The pods are copies.
func (p *pods) await(t *testing.T, what string, ok func([]*pod) bool) []*pod {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		if all := p.list(); ok(all) {
			return all
		}
		select {
		case <-changed:
		case <-deadline.C:
			t.Fatalf("waited %v for %s:\n%s", patience, what, p)
		case <-t.Context().Done():
			t.Fatalf("gave up on %s", what)
		}
	}
}

func (p *pods) list() []*pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*pod, len(p.all))
	for i, one := range p.all {
		c := *one
		c.ends = slices.Clone(one.ends)
		all[i] = &c
	}
	return all
}

// running returns the pods that are ready and not terminating.
func (p *pods) running() []*pod {
	return slices.DeleteFunc(p.list(), func(one *pod) bool { return !one.ready || !one.stopped.IsZero() || !one.gone.IsZero() })
}

// only returns the only running pod.
func (p *pods) only(t *testing.T) *pod {
	t.Helper()
	p.await(t, "one pod", func([]*pod) bool { return len(p.running()) == 1 })
	return p.running()[0]
}

// ended waits until a container of the pod has ended, and returns how.
func (p *pods) ended(t *testing.T, uid string) end {
	t.Helper()
	find := func(all []*pod) *pod {
		return all[slices.IndexFunc(all, func(one *pod) bool { return one.uid == uid })]
	}
	all := p.await(t, "the end of a container", func(all []*pod) bool {
		one := find(all)
		return len(one.ends) > 0 || !one.gone.IsZero()
	})
	one := find(all)
	if len(one.ends) == 0 {
		t.Fatalf("pod %s is gone, and its status never said how its container ended", one.name)
	}
	return one.ends[0]
}

func (p *pods) isGone(uid string) bool {
	return slices.ContainsFunc(p.list(), func(one *pod) bool { return one.uid == uid && !one.gone.IsZero() })
}

// stops lists the T0 of the stopped pods.
func (p *pods) stops() []stop {
	var all []stop
	for _, one := range p.list() {
		if !one.stopped.IsZero() {
			all = append(all, stop{one.name, one.stopped})
		}
	}
	return all
}

func (p *pods) String() string {
	var b strings.Builder
	for _, one := range p.list() {
		if one.stopped.IsZero() && len(one.ends) == 0 {
			continue
		}
		fmt.Fprintf(&b, "  %s:", one.name)
		for _, e := range one.ends {
			if !one.stopped.IsZero() {
				fmt.Fprintf(&b, " T0+%v", e.seen.Sub(one.stopped).Round(100*time.Millisecond))
			}
			fmt.Fprintf(&b, " %s", e)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// endpoints follows the EndpointSlices of a Service,
// which kube-proxy and load balancers use.
type endpoints struct {
	onUnready func() // may be nil

	mu      sync.Mutex // guards the fields below
	ready   map[string]bool
	unready map[string]time.Time // when a ready pod was first seen unready
}

type sliceObject struct {
	Endpoints []struct {
		Conditions struct {
			Ready *bool `json:"ready"`
		} `json:"conditions"`
		TargetRef struct {
			UID string `json:"uid"`
		} `json:"targetRef"`
	} `json:"endpoints"`
}

// watchEndpoints follows the Service until the test ends. onUnready, which may
// be nil, is called when a pod becomes unready.
func (c *cluster) watchEndpoints(t *testing.T, service string, onUnready func()) *endpoints {
	t.Helper()
	e := &endpoints{onUnready: onUnready, ready: make(map[string]bool), unready: make(map[string]time.Time)}
	watch(t, c, []string{"endpointslices", "--selector", "kubernetes.io/service-name=" + service}, e.take)
	return e
}

func (e *endpoints) take(_ string, o sliceObject) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ep := range o.Endpoints {
		uid, ready := ep.TargetRef.UID, ep.Conditions.Ready == nil || *ep.Conditions.Ready
		if e.ready[uid] && !ready && e.unready[uid].IsZero() {
			e.unready[uid] = now
			if e.onUnready != nil {
				e.onUnready()
			}
		}
		e.ready[uid] = ready
	}
}

// isReady returns the latest state.
func (e *endpoints) isReady(uid string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ready[uid]
}

// unreadySince waits until the pod is not ready, and returns when that was seen.
func (e *endpoints) unreadySince(t *testing.T, uid string) (since time.Time) {
	t.Helper()
	eventually(t, "the endpoint to be unready", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		since = e.unready[uid]
		return !since.IsZero()
	})
	return since
}

// watch calls take for every event of the objects that the arguments of
// "kubectl get" name, until the test ends.
func watch[T any](t *testing.T, c *cluster, args []string, take func(kind string, o T)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, "kubectl", append([]string{"--namespace", c.namespace, "get", "--watch", "--output-watch-events", "--output", "json"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		events := json.NewDecoder(out)
		for {
			var event struct {
				Type   string `json:"type"`
				Object T      `json:"object"`
			}
			if err := events.Decode(&event); err != nil {
				if ctx.Err() == nil && !errors.Is(err, io.EOF) {
					t.Errorf("watch %s: %v", strings.Join(args, " "), err)
				} else if ctx.Err() == nil {
					t.Errorf("watch %s: it ended", strings.Join(args, " "))
				}
				return
			}
			take(event.Type, event.Object)
		}
	})
	t.Cleanup(func() {
		cancel()
		reader.Wait()
		_ = cmd.Wait() // killed
	})
}
