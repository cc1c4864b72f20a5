package prove

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/prove/load"
)

// Pod is the life of a pod during the proof, by the clock of this machine. A time is
// when the change was seen here, and zero when it was not.
type Pod struct {
	Name     string    `json:"name"`
	Ready    time.Time `json:"ready,omitzero"`
	Deleted  time.Time `json:"deleted,omitzero"` // its deletionTimestamp was set
	Ended    time.Time `json:"ended,omitzero"`   // its serving container had ended, after the deletion
	ExitCode *int      `json:"exitCode,omitempty"`
	Reason   string    `json:"reason,omitempty"` // of that end, as the kubelet has it, such as OOMKilled
	Said     string    `json:"said,omitempty"`   // the last line of the container's log
	Grace    int       `json:"graceSeconds,omitempty"`
	Restarts []Restart `json:"restarts,omitempty"`

	uid    types.UID
	ends   map[string]bool // the ends of containers that were seen, by the container's id
	listed bool            // the watch has shown the pod before
	serves bool            // it is ready, and not being deleted
}

// Restart is an end of the serving container without a deletion of its pod.
type Restart struct {
	At       time.Time `json:"at"`
	ExitCode int       `json:"exitCode"`
	Reason   string    `json:"reason,omitempty"`
	Said     string    `json:"said,omitempty"`
}

// wasKilled reports whether the kubelet killed the container because the pod's grace was over.
func (p *Pod) wasKilled() bool {
	isKilled := p.ExitCode != nil && *p.ExitCode == 137 && p.Reason != outOfMemory
	return isKilled && p.Ended.Sub(p.Deleted) > time.Duration(p.Grace)*time.Second-time.Second
}

// hasFailed reports whether the container failed during its stop. A program that SIGTERM or
// SIGINT ends without a handler has not.
func (p *Pod) hasFailed() bool {
	return p.ExitCode != nil && !slices.Contains([]int{0, 128 + 2, 128 + 15}, *p.ExitCode) && !p.wasKilled()
}

// outOfMemory is the kubelet's reason for the end of a container that exceeded its limit.
const outOfMemory = "OOMKilled"

// timeline follows the pods of a workload. It is for the report alone: the proof asks the API
// server anew for what it waits for.
type timeline struct {
	container string // the serving one

	mu    sync.Mutex // guards the fields below
	pods  []*Pod
	ready []readyAt
}

// readyAt is a change of the number of pods that serve.
type readyAt struct {
	at    time.Time
	count int
}

// listeners are how many logs of containers that end are read at once: a rollout of a hundred pods
// does not read them all.
const listeners = 8

// follow watches the pods until ctx ends, and reads the last words of their containers. The API
// server ends watches from time to time.
func (t *timeline) follow(ctx context.Context, k *kubectl, selector string) {
	var logs errgroup.Group
	logs.SetLimit(listeners)
	defer logs.Wait() //nolint:errcheck // a log that is gone proves nothing
	for {
		// An error of kubectl is found by the calls that the proof waits for.
		_ = k.stream(ctx, func(out io.Reader) {
			for events := json.NewDecoder(out); ; {
				var event struct {
					Type   string     `json:"type"`
					Object corev1.Pod `json:"object"`
				}
				if events.Decode(&event) != nil {
					return
				}
				for _, end := range t.take(event.Type, event.Object) {
					logs.TryGo(func() error {
						t.hear(end, k.lastLine(ctx, event.Object.Name, t.container, end.log))
						return nil
					})
				}
			}
		}, "get", "--watch", "--output-watch-events", "--output", "json", "pods", "--selector", selector)
		if !cli.Pause(ctx, time.Second) {
			return
		}
	}
}

// end is an end of a container whose last words are in a log.
type end struct {
	pod     types.UID
	restart int    // the place in Restarts, -1 for the end after the deletion
	log     string // the flag of kubectl logs that has it; "" for none
}

// hear keeps the last words of a container, unless they are known.
func (t *timeline) hear(e end, line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pod := t.podLocked(e.pod)
	said := &pod.Said
	if e.restart >= 0 {
		said = &pod.Restarts[e.restart].Said
	}
	*said = cmp.Or(*said, line)
}

// take takes an event of the watch. It returns the ends that are new; of a pod that begins to stop,
// the one that is to come.
func (t *timeline) take(event string, o corev1.Pod) (ends []end) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	pod := t.podLocked(o.UID)
	pod.Name = o.Name
	isReady := slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	if isReady && pod.Ready.IsZero() {
		pod.Ready = now
	}
	if o.DeletionTimestamp != nil && pod.Deleted.IsZero() {
		pod.Deleted = now
		if grace := o.DeletionGracePeriodSeconds; grace != nil {
			pod.Grace = int(*grace)
		}
		ends = append(ends, end{o.UID, -1, "--follow"})
	}
	pod.serves = isReady && o.DeletionTimestamp == nil && event != "DELETED"
	count := 0
	for _, p := range t.pods {
		if p.serves {
			count++
		}
	}
	t.ready = append(t.ready, readyAt{now, count})
	for _, c := range o.Status.ContainerStatuses {
		if c.Name == t.container {
			ends = append(ends, pod.takeEnds(c, now)...)
		}
	}
	pod.listed = true
	return ends
}

// takeEnds notes the ends of the serving container that are new, and returns those without a
// deletion. One before the first look at the pod was before the proof.
func (p *Pod) takeEnds(c corev1.ContainerStatus, now time.Time) (restarts []end) {
	for _, e := range []*corev1.ContainerStateTerminated{c.LastTerminationState.Terminated, c.State.Terminated} {
		if e == nil || p.ends[e.ContainerID] {
			continue
		}
		p.ends[e.ContainerID] = true
		code, said, isNow := int(e.ExitCode), lastLine(e.Message), e == c.State.Terminated
		switch {
		case isNow && !p.Deleted.IsZero():
			p.Ended, p.ExitCode, p.Reason, p.Said = now, &code, e.Reason, cmp.Or(said, p.Said)
		case p.listed:
			one := end{p.uid, len(p.Restarts), "--previous"}
			if isNow { // no next one runs yet
				one.log = ""
			}
			restarts = append(restarts, one)
			p.Restarts = append(p.Restarts, Restart{At: now, ExitCode: code, Reason: e.Reason, Said: said})
		}
	}
	return restarts
}

// lastLine returns the last line of a text that is not empty.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// podLocked returns the pod, a new one when it is not known yet.
func (t *timeline) podLocked(uid types.UID) *Pod {
	for _, p := range t.pods {
		if p.uid == uid {
			return p
		}
	}
	t.pods = append(t.pods, &Pod{uid: uid, ends: make(map[string]bool)})
	return t.pods[len(t.pods)-1]
}

// copies returns copies of the pods.
func (t *timeline) copies() []Pod {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Pod
	for _, p := range t.pods {
		all = append(all, *p)
	}
	return all
}

// none reports whether no pod was ready at that time.
func (t *timeline) none(at time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i, _ := slices.BinarySearchFunc(t.ready, at, func(r readyAt, at time.Time) int { return r.at.Compare(at) })
	return i > 0 && t.ready[i-1].count == 0
}

type account struct {
	mu       sync.Mutex // guards the fields below
	seq      int        // of the latest record
	first    *load.Hello
	tick     load.Tick
	written  time.Time // the latest record, by the load's clock
	received time.Time // the same, by this clock
	// behind is how far the load's clock is behind this one, plus the shortest time that
	// a record took to arrive.
	behind time.Duration
	lost   []load.Loss
	fault  error  // of the latest kubectl logs
	other  string // what the load has printed and is not a record
}

func newAccount() *account { return &account{received: time.Now()} }

// follow reads the pod's log until ctx ends. After a broken connection it reads from
// the beginning and skips what it has.
func (a *account) follow(ctx context.Context, k *kubectl, pod string) {
	for {
		err := k.stream(ctx, func(out io.Reader) {
			for in := bufio.NewScanner(out); in.Scan(); {
				a.take(in.Bytes())
			}
		}, "logs", "--follow", pod)
		a.mu.Lock()
		a.fault = err
		a.mu.Unlock()
		if !cli.Pause(ctx, time.Second) {
			return
		}
	}
}

// take takes a line. One that is not a record is of another program, or of the one that could not
// start it; the end of a broken connection also leaves a part of a line.
func (a *account) take(line []byte) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	var r load.Record
	if err := json.Unmarshal(line, &r); err != nil && a.seq == 0 {
		a.other = string(line)
	}
	if r.Seq <= a.seq {
		return
	}
	if behind := now.Sub(r.At); a.seq == 0 || behind < a.behind {
		a.behind = behind
	}
	a.seq, a.written, a.received, a.other = r.Seq, r.At, now, ""
	switch {
	case r.Hello != nil:
		a.first = r.Hello
	case r.Tick != nil:
		a.tick = *r.Tick
	case r.Loss != nil:
		a.lost = append(a.lost, *r.Loss)
	}
}

// hello waits for the first record.
func (a *account) hello(ctx context.Context) (hello load.Hello, err error) {
	err = a.await(ctx, func() bool {
		if a.first != nil {
			hello = *a.first
		}
		return a.first != nil
	})
	return hello, err
}

// reached waits until the load has reported all that was until that time.
func (a *account) reached(ctx context.Context, until time.Time) error {
	return a.await(ctx, func() bool { return a.written.Add(a.behind).After(until) })
}

// await waits until isLocked returns true, or the load does not report any more.
func (a *account) await(ctx context.Context, isLocked func() bool) error {
	for {
		a.mu.Lock()
		is := isLocked()
		a.mu.Unlock()
		if is {
			return nil
		}
		if err := a.overdue(); err != nil {
			return err
		}
		if !cli.Pause(ctx, 100*time.Millisecond) {
			return context.Canceled
		}
	}
}

// overdue returns an error when the load has not reported for longer than maxWait.
func (a *account) overdue() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.other != "" {
		return cli.Fail(cli.ExitFindings, "the load does not report. It printed: %s", a.other).
			Hint("its image has to be one whose entry point is this version of lifecyclectl; give it with --image")
	}
	if time.Since(a.received) <= maxWait {
		return nil
	}
	e := cli.Fail(cli.ExitFindings, "the load has not reported for %v", maxWait)
	if a.fault != nil {
		return e.Hint("kubectl logs says: %v", a.fault)
	}
	return e.Hint("its pod may have been evicted: kubectl get events says so")
}

func (a *account) counts() map[string]load.Count {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.tick.Counts)
}

// losses returns the losses by the clock of this machine.
func (a *account) losses() []load.Loss {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := slices.Clone(a.lost)
	for i := range all {
		all[i].Sent, all[i].Lost = all[i].Sent.Add(a.behind), all[i].Lost.Add(a.behind)
	}
	slices.SortFunc(all, func(x, y load.Loss) int { return x.At().Compare(y.At()) })
	return all
}
