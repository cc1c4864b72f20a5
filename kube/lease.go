package kube

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/deadline"
)

// LeaseConfig says which lease it is.
type LeaseConfig struct {
	// Name of the Lease object: "NAME" in the pod's namespace, or "NAMESPACE/NAME".
	// The first process that asks creates the object. The API server checks the names.
	Name string

	// Identity is the name that other processes see as the holder. Defaults to the
	// pod's name. The Lease adds a random part, because two processes with one identity
	// would both believe that they lead.
	Identity string

	// Duration is how long the lease lasts without being renewed, in whole seconds.
	// When the holder has died, another process takes over after this time. Defaults
	// to 15 s, as in client-go.
	Duration time.Duration
}

// Lease is this process's access to one Lease object of coordination.k8s.io. It is
// a [lifecycle.Elector] that works together with client-go's leaderelection: of all
// processes that use either for one object, at most one leads.
//
// No clock of another machine matters: a process takes a lease over when the object
// has not changed for its duration by the process's own clock. All methods may be
// called concurrently.
type Lease struct {
	client   *Client
	object   object
	identity string
	duration time.Duration

	mu       sync.Mutex      // held for a whole attempt; guards the fields below
	metadata json.RawMessage // of the object as it was last seen; nil when it was not, or has changed since
	seen     leaseSpec       // its spec
	seenAt   time.Time       // when this process saw that the spec had changed

	term atomic.Pointer[term] // nil when this process has no lease; Token does not wait for an attempt
}

// term is the term that this process believes it holds.
type term struct {
	token uint64
	until deadline.Time // when the trust ends, by this process's clocks
}

// leaseSpec is the spec of a Lease (coordination.k8s.io/v1). Pointers tell a missing
// field from an empty one.
type leaseSpec struct {
	HolderIdentity       *string `json:"holderIdentity"`
	LeaseDurationSeconds *int32  `json:"leaseDurationSeconds"`
	AcquireTime          *string `json:"acquireTime"`
	RenewTime            *string `json:"renewTime"`
	LeaseTransitions     *int32  `json:"leaseTransitions"`
	Strategy             *string `json:"strategy,omitempty"`
	PreferredHolder      *string `json:"preferredHolder,omitempty"`
}

// now returns the time with microseconds, as the API wants it.
func now() *string {
	t := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
	return &t
}

func value[T any](p *T) T {
	if p == nil {
		var none T
		return none
	}
	return *p
}

type leaseObject struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Metadata   json.RawMessage `json:"metadata"`
	Spec       leaseSpec       `json:"spec"`
}

// Lease returns access to a lease. It sends no request. It returns an error for a
// name of another form, and for a duration that makes no sense.
func (c *Client) Lease(cfg LeaseConfig) (*Lease, error) {
	o := object{
		group:     "coordination.k8s.io",
		version:   "v1",
		resource:  "leases",
		namespace: c.cfg.Namespace,
		name:      cfg.Name,
	}
	if space, name, ok := strings.Cut(cfg.Name, "/"); ok {
		o.namespace, o.name = space, name
	}
	if o.name == "" || strings.Contains(o.name, "/") || o.namespace == "" && c.none == nil {
		return nil, fmt.Errorf("kube: lease %q: want NAME or NAMESPACE/NAME", cfg.Name)
	}
	cfg.Duration = cmp.Or(cfg.Duration, 15*time.Second)
	isWhole := cfg.Duration%time.Second == 0
	if cfg.Duration < time.Second || cfg.Duration > 24*time.Hour || !isWhole {
		return nil, fmt.Errorf("kube: lease %s: Duration is %v, want whole seconds, at least one and at most a day", cfg.Name, cfg.Duration)
	}
	identity := cmp.Or(cfg.Identity, c.cfg.Pod) + "_" + rand.Text()
	return &Lease{client: c, object: o, identity: identity, duration: cfg.Duration}, nil
}

// Identity returns the name under which this process holds the lease.
func (l *Lease) Identity() string { return l.identity }

// Acquire tries once to get the lease, or renews it when this process has it. It
// returns the time granted, counted from the call, or 0 when another process has the
// lease. After an error the outcome is unknown, because the API server may have
// carried out a request whose answer was lost; the next attempt finds out.
//
// An object that does not come from a leader election is an error, and Acquire does
// not change it. So is one whose leader the API server itself selects (coordinated
// leader election).
func (l *Lease) Acquire(ctx context.Context) (granted time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	began := time.Now()
	// Twice, because the object can change, or be deleted, between look and write.
	for range 2 {
		held, err := l.look(ctx)
		if err != nil {
			return 0, err
		}
		if held {
			l.term.Store(nil)
			return 0, nil
		}
		err = l.write(ctx)
		if err == nil {
			l.term.Store(&term{uint64(value(l.seen.LeaseTransitions)) + 1, deadline.At(began.Add(l.duration))})
			return l.duration, nil
		}
		l.metadata = nil // the API server may have carried it out: look next time
		if s := status(err); s != http.StatusConflict && s != http.StatusNotFound {
			return 0, err
		}
	}
	return 0, fmt.Errorf("kube: %s changes faster than it can be written", l.object)
}

// look reports whether another process holds the lease. It does not ask when this
// process has seen its own last write.
func (l *Lease) look(ctx context.Context) (held bool, err error) {
	if l.metadata != nil && l.mine() {
		return false, nil
	}
	var o leaseObject
	switch err := l.client.do(ctx, http.MethodGet, "get", l.object, nil, nil, &o); {
	case status(err) == http.StatusNotFound:
		l.metadata = nil // its holder may be alive when an operator has deleted the object
	case err != nil:
		return false, err
	default:
		if err := l.check(o); err != nil {
			return false, err
		}
		l.observe(o)
	}
	if value(l.seen.HolderIdentity) == "" || l.mine() {
		return false, nil
	}
	// The time of the answer, because the holder may have renewed just before it.
	lasts := time.Duration(value(l.seen.LeaseDurationSeconds)) * time.Second
	return time.Now().Before(l.seenAt.Add(lasts)), nil
}

// observe keeps what the API server has answered.
func (l *Lease) observe(o leaseObject) {
	l.metadata = o.Metadata
	if l.seenAt.IsZero() || !reflect.DeepEqual(l.seen, o.Spec) { // the holder has renewed in between
		l.seen, l.seenAt = o.Spec, time.Now()
	}
}

// check returns an error for an object that does not come from a leader election.
func (l *Lease) check(o leaseObject) error {
	switch holder := value(o.Spec.HolderIdentity); {
	case len(o.Metadata) == 0:
		return fmt.Errorf("kube: %s: the answer has no metadata", l.object)
	case value(o.Spec.Strategy) != "":
		return fmt.Errorf("kube: %s has the strategy %q: the API server selects its leader, and this process must not; use another name",
			l.object, *o.Spec.Strategy)
	case holder != "" && (value(o.Spec.LeaseDurationSeconds) < 1 || o.Spec.RenewTime == nil):
		return fmt.Errorf("kube: %s is held by %q without a leaseDurationSeconds and a renewTime: "+
			"it does not come from a leader election; use another name, or delete it", l.object, holder)
	}
	return nil
}

func (l *Lease) mine() bool { return value(l.seen.HolderIdentity) == l.identity }

// write begins a term, or renews the current one.
func (l *Lease) write(ctx context.Context) error {
	seconds, transitions := int32(l.duration/time.Second), value(l.seen.LeaseTransitions)
	spec := leaseSpec{HolderIdentity: &l.identity, LeaseDurationSeconds: &seconds, AcquireTime: now(), RenewTime: now()}
	_, isValid := l.Token()
	switch {
	case l.seenAt.IsZero(): // there is no object, and none was seen: the first holder makes no transition
	case l.mine() && isValid:
		spec.AcquireTime = l.seen.AcquireTime
	default:
		// Another holder, or this one after its time has run out: that is another term.
		transitions++
	}
	spec.LeaseTransitions = &transitions
	return l.put(ctx, spec)
}

// put writes the object. The API server refuses it when the object has changed since
// it was last seen.
func (l *Lease) put(ctx context.Context, spec leaseSpec) error {
	o := leaseObject{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Metadata: l.metadata, Spec: spec}
	var stored leaseObject
	var err error
	if l.metadata == nil {
		all := l.object
		all.name = ""
		// A map of strings always encodes.
		o.Metadata, _ = json.Marshal(map[string]string{"name": l.object.name, "namespace": l.object.namespace})
		err = l.client.do(ctx, http.MethodPost, "create", all, nil, o, &stored)
	} else {
		err = l.client.do(ctx, http.MethodPut, "update", l.object, nil, o, &stored)
	}
	if err != nil {
		return err
	}
	if err := l.check(stored); err != nil {
		return err
	}
	if value(stored.Spec.HolderIdentity) != *spec.HolderIdentity {
		return fmt.Errorf("kube: %s: the API server stored another holder than it was given", l.object)
	}
	l.observe(stored)
	return nil
}

// Release gives the lease back, so that another process need not wait until it has
// run out. As client-go does, it keeps the object, without a holder. Release does
// nothing when this process does not have the lease.
func (l *Lease) Release(ctx context.Context) error {
	if l.client.none != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.client.Close() // the end of a campaign leaves no idle connection
	defer l.term.Store(nil)
	var err error
	for range 3 { // a renewal whose answer was lost may come in between
		if held, err := l.look(ctx); err != nil {
			return fmt.Errorf("release: %w", err)
		} else if held || l.metadata == nil || !l.mine() {
			return nil
		}
		none, second := "", int32(1)
		err = l.put(ctx, leaseSpec{
			HolderIdentity:       &none,
			LeaseDurationSeconds: &second,
			AcquireTime:          now(),
			RenewTime:            now(),
			LeaseTransitions:     l.seen.LeaseTransitions,
		})
		if err == nil {
			return nil
		}
		l.metadata = nil
		if status(err) != http.StatusConflict {
			break
		}
	}
	return fmt.Errorf("release: %w", err)
}

// Token returns the fencing token of the current term, and whether this process may
// still trust in it. It is one more than the object's leaseTransitions. It stays the
// same while the process has the lease, and every later term of another process has a
// greater one, as long as the object is not deleted. The trust ends by the wall clock or by the
// monotonic one, which stands still while the machine is suspended: the first of the two. A
// store that remembers the greatest token and refuses smaller ones is safe from a process that
// was paused for longer than its lease and does not know. Token never waits.
func (l *Lease) Token() (token uint64, valid bool) {
	t := l.term.Load()
	if t == nil {
		return 0, false
	}
	return t.token, !t.until.HasPassed()
}

// Holder returns the name of the process that the object names as its holder, or ""
// when it names none or does not exist. It does not know whether that process is alive.
func (l *Lease) Holder(ctx context.Context) (string, error) {
	var o leaseObject
	if err := l.client.do(ctx, http.MethodGet, "get", l.object, nil, nil, &o); err != nil && status(err) != http.StatusNotFound {
		return "", err
	}
	return value(o.Spec.HolderIdentity), nil
}
