package prove

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
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
	Unready  time.Time `json:"unready,omitzero"` // its endpoint was not ready
	Removed  time.Time `json:"removed,omitzero"` // its endpoint was in no EndpointSlice
	Ended    time.Time `json:"ended,omitzero"`   // its serving container had ended, after the deletion
	ExitCode *int      `json:"exitCode,omitempty"`
	Reason   string    `json:"reason,omitempty"` // of that end, as the kubelet has it, such as OOMKilled
	Said     string    `json:"said,omitempty"`   // the last line of the container's log
	Grace    int       `json:"graceSeconds,omitempty"`
	Restarts []Restart `json:"restarts,omitempty"`

	uid    types.UID
	ends   map[string]bool // the ends of containers that were seen, by the container's id
	listed bool            // the watch has shown the pod before
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

// timeline follows the pods of a Deployment and the endpoints of a Service. It is
// for the report alone: the proof asks the API server anew for what it waits for.
type timeline struct {
	container string // the serving one
	// ended is called, without the lock, when a pod begins to stop, and when a container has
	// ended by itself. take gets the last line that the container has logged.
	ended func(pod string, isOver bool, take func(line string))

	mu     sync.Mutex // guards the fields below
	pods   []*Pod
	slices map[string]map[types.UID]bool // by name: uid and ready
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
		if !cli.Pause(ctx, time.Second) {
			return
		}
	}
}

func (t *timeline) takePod(_ string, o corev1.Pod) {
	isStopping, restarts := t.takeStatus(o)
	if t.ended == nil {
		return
	}
	take := func(said func(*Pod) *string) func(string) {
		return func(line string) {
			t.mu.Lock()
			defer t.mu.Unlock()
			*said(t.podLocked(o.UID)) = line
		}
	}
	if isStopping {
		t.ended(o.Name, false, take(func(p *Pod) *string { return &p.Said }))
	}
	for _, i := range restarts {
		t.ended(o.Name, true, take(func(p *Pod) *string { return &p.Restarts[i].Said }))
	}
}

// takeStatus takes a pod over. It reports whether the pod begins to stop, and which of its
// restarts are new and have no message.
func (t *timeline) takeStatus(o corev1.Pod) (isStopping bool, restarts []int) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	pod := t.podLocked(o.UID)
	pod.Name = o.Name
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			first(&pod.Ready, now)
		}
	}
	if o.DeletionTimestamp != nil {
		isStopping = pod.Deleted.IsZero()
		first(&pod.Deleted, now)
		if grace := o.DeletionGracePeriodSeconds; grace != nil && isStopping {
			pod.Grace = int(*grace)
		}
	}
	for _, c := range o.Status.ContainerStatuses {
		if c.Name != t.container {
			continue
		}
		for _, end := range []*corev1.ContainerStateTerminated{c.LastTerminationState.Terminated, c.State.Terminated} {
			if end == nil || pod.ends[end.ContainerID] {
				continue
			}
			pod.ends[end.ContainerID] = true
			code, said := int(end.ExitCode), lastLine(end.Message)
			switch isOld := !pod.listed; {
			case !pod.Deleted.IsZero() && end == c.State.Terminated:
				pod.Ended, pod.ExitCode, pod.Reason = now, &code, end.Reason
				if said != "" {
					pod.Said = said
				}
			case isOld: // before the proof
			default:
				pod.Restarts = append(pod.Restarts, Restart{At: now, ExitCode: code, Reason: end.Reason, Said: said})
				if said == "" {
					restarts = append(restarts, len(pod.Restarts)-1)
				}
			}
		}
	}
	pod.listed = true
	return isStopping, restarts
}

// longestLine is how much of a line of a log a report has.
const longestLine = 200

// lastLine returns the last line of a text that is not empty.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	line := strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
	return strings.ToValidUTF8(line[:min(len(line), longestLine)], "")
}

// listeners are how many logs of pods are read at once.
const listeners = 8

// listen reads the logs of containers that end. A rollout of a hundred pods does not read
// them all.
func (p *proof) listen(ctx context.Context, started *sync.WaitGroup) func(pod string, isOver bool, take func(string)) {
	places := make(chan struct{}, listeners)
	return func(pod string, isOver bool, take func(string)) {
		select {
		case places <- struct{}{}:
		default:
			return
		}
		started.Go(func() {
			defer func() { <-places }()
			said := p.logged(ctx, pod, !isOver, false)
			if said == "" && isOver { // the next container runs already
				said = p.logged(ctx, pod, false, true)
			}
			if said != "" {
				take(said)
			}
		})
	}
}

// logged returns the last line that the serving container of the pod has logged. With follow
// it waits for the end of the container.
func (p *proof) logged(ctx context.Context, pod string, follow, previous bool) (said string) {
	args := []string{
		"logs", "--container", p.pods.container, "--tail=1", fmt.Sprintf("--follow=%t", follow), fmt.Sprintf("--previous=%t", previous), pod,
	}
	_ = p.k.stream(ctx, func(out io.Reader) { // a log that is gone proves nothing
		for in := bufio.NewScanner(out); in.Scan(); {
			if line := lastLine(in.Text()); line != "" {
				said = line
			}
		}
	}, args...)
	return said
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

func isReady(e discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }

func (t *timeline) takeSlice(kind string, o discoveryv1.EndpointSlice) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	has := make(map[types.UID]bool)
	if kind != "DELETED" {
		for _, e := range o.Endpoints {
			if e.TargetRef != nil {
				has[e.TargetRef.UID] = isReady(e)
			}
		}
	}
	before := t.slices[o.Name]
	t.slices[o.Name] = has
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
func (t *timeline) endpointLocked(uid types.UID) (listed, ready bool) {
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

// copies returns copies of the pods that stopped or became ready.
func (t *timeline) copies() []Pod {
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

type account struct {
	mu       sync.Mutex // guards the fields below
	seq      int        // of the latest record
	first    *load.Hello
	tick     load.Tick
	ticked   time.Time // by the load's clock
	received time.Time // the latest record, by this clock
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
		err := k.follow(ctx, func(lines *json.Decoder) error {
			var r load.Record
			if err := lines.Decode(&r); err != nil {
				a.takeOther(err, lines.Buffered())
				return err
			}
			a.take(r)
			return nil
		}, "logs", "--follow", pod)
		a.mu.Lock()
		a.fault = err
		a.mu.Unlock()
		if !cli.Pause(ctx, time.Second) {
			return
		}
	}
}

// takeOther keeps a line that is not a record: another program has printed it, or the one
// that could not start it.
func (a *account) takeOther(err error, rest io.Reader) {
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	if !errors.As(err, &syntax) && !errors.As(err, &mismatch) {
		return
	}
	text, _ := io.ReadAll(io.LimitReader(rest, 1<<10))
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	a.mu.Lock()
	defer a.mu.Unlock()
	a.other = line
}

func (a *account) take(r load.Record) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Seq <= a.seq {
		return
	}
	if behind := now.Sub(r.At); a.seq == 0 || behind < a.behind {
		a.behind = behind
	}
	a.seq, a.received = r.Seq, now
	switch {
	case r.Hello != nil:
		a.first = r.Hello
	case r.Tick != nil:
		a.tick, a.ticked = *r.Tick, r.At
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

// drained waits until every request that was sent before that time has its outcome.
func (a *account) drained(ctx context.Context, until time.Time) error {
	return a.await(ctx, func() bool {
		oldest := a.tick.Oldest
		return a.ticked.Add(a.behind).After(until) && (oldest.IsZero() || oldest.Add(a.behind).After(until))
	})
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

func (a *account) totals() (sent, lost int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.tick.Counts {
		sent += c.Sent
		lost += c.Lost
	}
	return sent, lost
}

func (a *account) counts() map[string]load.Count {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.tick.Counts)
}

// lostRequest is a loss by the clock of this machine.
type lostRequest struct{ load.Loss }

// at returns when the request was lost. When no connection was made for it, that is when
// it was sent.
func (l lostRequest) at() time.Time {
	if l.How == load.Unreachable || l.How == load.Late {
		return l.Sent
	}
	return l.Lost
}

func (a *account) losses() []lostRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]lostRequest, len(a.lost))
	for i, l := range a.lost {
		l.Sent, l.Lost = l.Sent.Add(a.behind), l.Lost.Add(a.behind)
		all[i] = lostRequest{l}
	}
	slices.SortFunc(all, func(x, y lostRequest) int { return x.at().Compare(y.at()) })
	return all
}
