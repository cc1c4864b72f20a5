package prove

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"
)

// podObject is the used part of a pod.
type podObject struct {
	Metadata meta `json:"metadata"`
	Status   struct {
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"conditions"`
		ContainerStatuses []struct {
			Name  string `json:"name"`
			State struct {
				Running    *struct{} `json:"running"`
				Terminated *ended    `json:"terminated"`
				Waiting    *struct {
					Reason  string `json:"reason"`
					Message string `json:"message"`
				} `json:"waiting"`
			} `json:"state"`
		} `json:"containerStatuses"`
	} `json:"status"`
}

type ended struct {
	ExitCode int    `json:"exitCode"`
	Reason   string `json:"reason"`
	Message  string `json:"message"`
}

// sliceObject is the used part of an EndpointSlice.
type sliceObject struct {
	Metadata  meta `json:"metadata"`
	Endpoints []struct {
		Conditions struct {
			Ready *bool `json:"ready"`
		} `json:"conditions"`
		TargetRef struct {
			UID string `json:"uid"`
		} `json:"targetRef"`
	} `json:"endpoints"`
}

// Pod is the life of a pod during the proof, by the clock of this machine. A time is
// when the change was seen here, and zero when it was not.
type Pod struct {
	Name     string    `json:"name"`
	Ready    time.Time `json:"ready,omitzero"`
	Deleted  time.Time `json:"deleted,omitzero"` // its deletionTimestamp was set
	Unready  time.Time `json:"unready,omitzero"` // its endpoint was not ready
	Removed  time.Time `json:"removed,omitzero"` // its endpoint was in no EndpointSlice
	Ended    time.Time `json:"ended,omitzero"`   // its serving container had ended
	ExitCode *int      `json:"exitCode,omitempty"`
	uid      string
}

// timeline follows the pods of a Deployment and the endpoints of a Service. It is
// for the report alone: the proof asks the API server anew for what it waits for.
type timeline struct {
	container string // the serving one

	mu     sync.Mutex // guards the fields below
	pods   []*Pod
	slices map[string]map[string]bool // by name: uid and ready
	ready  []readyAt
}

// readyAt is a change of the number of ready endpoints.
type readyAt struct {
	at    time.Time
	count int
}

// watch follows kind until ctx ends. The API server ends watches from time to time.
func watch[T any](ctx context.Context, k *kubectl, take func(kind string, o T), args ...string) {
	args = append([]string{"get", "--watch", "--output-watch-events", "--output", "json"}, args...)
	for {
		// An error of kubectl is found by the calls that the proof waits for.
		_ = k.follow(ctx, func(events *json.Decoder) error {
			var event struct {
				Type   string `json:"type"`
				Object T      `json:"object"`
			}
			if err := events.Decode(&event); err != nil {
				return err
			}
			take(event.Type, event.Object)
			return nil
		}, args...)
		if !pause(ctx, time.Second) {
			return
		}
	}
}

func (t *timeline) takePod(_ string, o podObject) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	pod := t.podLocked(o.Metadata.UID)
	pod.Name = o.Metadata.Name
	for _, c := range o.Status.Conditions {
		if c.Type == "Ready" && c.Status == "True" {
			first(&pod.Ready, now)
		}
	}
	if o.Metadata.DeletionTimestamp != nil {
		first(&pod.Deleted, now)
	}
	for _, c := range o.Status.ContainerStatuses {
		if end := c.State.Terminated; end != nil && c.Name == t.container && pod.Ended.IsZero() {
			pod.Ended, pod.ExitCode = now, &end.ExitCode
		}
	}
}

// podLocked returns the pod, a new one when it is not known yet.
func (t *timeline) podLocked(uid string) *Pod {
	for _, p := range t.pods {
		if p.uid == uid {
			return p
		}
	}
	t.pods = append(t.pods, &Pod{uid: uid})
	return t.pods[len(t.pods)-1]
}

func (t *timeline) takeSlice(kind string, o sliceObject) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	has := make(map[string]bool)
	if kind != "DELETED" {
		for _, e := range o.Endpoints {
			has[e.TargetRef.UID] = e.Conditions.Ready == nil || *e.Conditions.Ready
		}
	}
	before := t.slices[o.Metadata.Name]
	t.slices[o.Metadata.Name] = has
	for uid := range before {
		listed, ready := t.endpointLocked(uid)
		if pod := t.podLocked(uid); !listed {
			first(&pod.Removed, now)
			first(&pod.Unready, now)
		} else if !ready && !pod.Ready.IsZero() {
			first(&pod.Unready, now)
		}
	}
	count := 0
	for _, s := range t.slices {
		for _, ready := range s {
			if ready {
				count++
			}
		}
	}
	t.ready = append(t.ready, readyAt{now, count})
}

// endpointLocked returns what the slices say of the pod.
func (t *timeline) endpointLocked(uid string) (listed, ready bool) {
	for _, s := range t.slices {
		if r, ok := s[uid]; ok {
			listed, ready = true, ready || r
		}
	}
	return listed, ready
}

// first sets a time that is not set.
func first(t *time.Time, now time.Time) {
	if t.IsZero() {
		*t = now
	}
}

// lives returns copies of the pods that stopped or became ready.
func (t *timeline) lives() []Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Pod
	for _, p := range t.pods {
		if p.Name != "" {
			all = append(all, *p)
		}
	}
	return all
}

// none reports whether no endpoint was ready at that time.
func (t *timeline) none(at time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, _ := slices.BinarySearchFunc(t.ready, at, func(r readyAt, at time.Time) int { return r.at.Compare(at) })
	return i > 0 && t.ready[i-1].count == 0
}
