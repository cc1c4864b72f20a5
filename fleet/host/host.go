// Package host runs workers whose code arrives at run time.
//
// A worker is code in some language, the topic that feeds it, and a life of its
// own: it is created, started, stopped, given other code, rolled back and
// deleted while others run, and it comes back when its host does. A [Host] runs
// the share of them that is its own; any number of hosts on one NATS share all
// of them.
//
//	engines, err := engine.NewRegistry(starlark.New(), js.New(), wasm.New())
//	if err != nil {
//		return err
//	}
//	h, err := host.New(broker.JetStream(), host.Config{Engines: engines})
//	if err != nil {
//		return err
//	}
//	app.Add(h).Probe("hosted", h).OnDrain("hosted", h)
//
//	id, err := h.Create(ctx, host.CreateRequest{
//		ID: "shout", MIMEType: "text/x-starlark", Topic: "words", OutputTopic: "loud",
//		Code: []byte("def handle(message): return message.text.upper()"),
//	})
//
// # What is guaranteed
//
// A message is handled at least once, or is in the dead letters with the reason;
// nothing is dropped, also when a host or a server dies. A handler may see a message again: its
// host died before the server knew, or was stalled and has been replaced. What
// it wrote to its state takes effect once all the same, and what it published is
// dropped as a duplicate within the stream's duplicate window, if it publishes
// the same the second time.
//
// One worker handles one message at a time. The workers of a group handle one
// among them all, on whichever host; a message goes to one of those whose topic
// it is on, in turn.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	lifecycle "github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/fetch"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Kind is the kind of a hosted worker in errors.
const Kind = "hosted worker"

var (
	// ErrNotFound is wrapped for an id that no worker has.
	ErrNotFound = errors.New("no such worker")
	// ErrExists is wrapped by the error of a Create whose id is taken.
	ErrExists = errors.New("the worker exists")
	// ErrInvalid is wrapped for an argument that cannot be right.
	ErrInvalid = errors.New("invalid")
	// ErrNoTopic is wrapped when no stream has a worker's topic.
	ErrNoTopic = errors.New("no stream has the topic")
	// ErrNoVersion is wrapped by the error of a Rollback to code that the worker
	// never had, or that is older than its history.
	ErrNoVersion = errors.New("no such version")
	// ErrDetached is the cause with which a handler's context ends when its
	// message is no longer this host's: it stops, or was not heard of in time.
	ErrDetached = errors.New("the worker is detached from this host")
	// ErrStale is wrapped when the server refused to write state because a newer
	// fencing token was given out.
	ErrStale = errors.New("the fencing token is stale")
)

// Host runs its share of the hosted workers. It is a [worker.Worker]: Start
// recovers what is to run here, Stop finishes what is being handled and lets go,
// and nothing that is stored is touched by either. It has a Drain, and a Check
// for a readiness probe. All methods may be called concurrently; the verbs work
// on every worker, wherever it runs, from New until Stop, which a host that is
// not started needs too.
type Host struct {
	worker.BaseWorker

	cfg     Config
	js      jetstream.JetStream
	nc      *nats.Conn
	log     *slog.Logger
	fetcher *fetch.Client

	records *records
	states  *states
	letters *letters
	members *members
	code    *codes

	serving  context.Context    // of serve
	cancel   context.CancelFunc // ends it
	recover  chan struct{}      // of size 1
	ready    atomic.Bool        // ensure has been done
	ensuring sync.Mutex

	mu        sync.Mutex // guards everything below
	known     map[string]*Record
	broken    map[string]error // records that cannot be read
	slots     map[string]*slot
	recovery  recovery
	began     time.Time // when recovery was begun
	fault     error     // why recovery failed as a whole
	tallies   map[tally]*Counts
	listeners []chan struct{} // closed at the next change

	running  sync.WaitGroup // runners and their watches
	draining atomic.Bool
}

// recovery is how far the first recovery has come.
type recovery int

const (
	recoveryOff recovery = iota
	recoveryRuns
	recoveryDone
)

// New returns a host on js. It reaches for nothing; the first verb, or Start,
// does. The error names what is wrong with cfg.
func New(js jetstream.JetStream, cfg Config) (*Host, error) {
	if js == nil {
		return nil, errors.New("host: no JetStream: give that of a broker")
	}
	cfg = cfg.WithDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	policy := cfg.Fetch
	policy.MaxSize = cmp.Or(policy.MaxSize, cfg.MaxCode)
	h := &Host{cfg: cfg, js: js, nc: js.Conn(), log: cfg.Logger, fetcher: cfg.Fetcher, recover: make(chan struct{}, 1),
		known: make(map[string]*Record), broken: make(map[string]error), slots: make(map[string]*slot), tallies: make(map[tally]*Counts), recovery: recoveryRuns}
	if cfg.RecoveryOff {
		h.recovery = recoveryOff
	}
	if h.fetcher == nil {
		client, err := fetch.New(policy, nil)
		if err != nil {
			return nil, fmt.Errorf("host config: %w", err)
		}
		h.fetcher = client
	}
	h.serving, h.cancel = context.WithCancel(context.Background()) // there already, for a Stop that meets Start
	h.Init("host", cfg.HostID)
	return h, nil
}

// ensure creates or verifies what the hosts share.
func (h *Host) ensure(ctx context.Context) error {
	if h.ready.Load() {
		return nil
	}
	h.ensuring.Lock()
	defer h.ensuring.Unlock()
	if h.ready.Load() {
		return nil
	}
	name, low := h.cfg.Name, strings.ToLower(h.cfg.Name)
	buckets := []jetstream.KeyValueConfig{
		{Bucket: name + "_WORKERS", History: 64, Replicas: h.cfg.Replicas, Description: "hosted workers"},
		{Bucket: name + "_MEMBERS", History: 1, TTL: 10 * h.cfg.LeaseTTL, Replicas: h.cfg.Replicas, Description: "hosts of hosted workers"},
	}
	streams := []jetstream.StreamConfig{
		{Name: name + "_STATE", Subjects: []string{low + ".state.>"}, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardOld,
			AllowAtomicPublish: true, AllowMsgTTL: true, Replicas: h.cfg.Replicas, Description: "what hosted workers remember, and their fences"},
		{Name: name + "_CODE", Subjects: []string{low + ".code.>"}, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardOld, Replicas: h.cfg.Replicas, Description: "code of hosted workers"},
		{Name: name + "_DEAD", Subjects: []string{low + ".dead.>", low + ".held.>", low + ".body.>"}, Replicas: h.cfg.Replicas, Description: "messages that hosted workers gave up"},
	}
	if err := broker.Ensure(ctx, h.js, buckets, streams); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	workers, err := h.js.KeyValue(ctx, name+"_WORKERS")
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	hosts, err := h.js.KeyValue(ctx, name+"_MEMBERS")
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	state, err := h.js.Stream(ctx, name+"_STATE")
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	dead, err := h.js.Stream(ctx, name+"_DEAD")
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	code, err := h.js.Stream(ctx, name+"_CODE")
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	if h.records, err = newRecords(h.js, workers, h.log); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	h.states = &states{nc: h.nc, js: h.js, stream: state, prefix: low + ".state.", ttl: h.cfg.DoneTTL}
	h.code = &codes{chunks: chunks{h.js, code}, prefix: low + ".code."}
	h.letters = &letters{chunks: chunks{h.js, dead}, dead: low + ".dead.", held: low + ".held.", body: low + ".body."}
	h.members = newMembers(hosts, h.cfg.HostID, h.cfg.LeaseTTL)
	h.ready.Store(true)
	return nil
}

// Start begins to run this host's share of the workers, in the background. The
// host is Running at once; whether recovery is over is what [Host.Check] says.
// Cancelling ctx stops it as Stop does.
func (h *Host) Start(ctx context.Context) error {
	if err := h.Begin(ctx); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, h.cancel)
	go func() {
		defer stop()
		defer h.cancel()
		err := h.serve(h.serving)
		h.close()
		h.Finish(err)
		h.changed()
	}()
	h.MarkRunning()
	return nil
}

// Stop finishes the messages that are being handled, within DrainTimeout and
// ctx, gives back those that wait, and tells the other hosts that this one is
// gone. Nothing that is stored changes: another host, or the next start, goes on
// where this one ended.
func (h *Host) Stop(ctx context.Context) error {
	defer h.close()
	if !h.RequestStop(nil) {
		return h.Err()
	}
	h.cancel()
	select {
	case <-h.Done():
		return nil
	case <-ctx.Done():
		err := fmt.Errorf("host %s: stop: %w", h.cfg.HostID, context.Cause(ctx))
		h.Kill(err)
		return err
	}
}

// close ends the view of the records.
func (h *Host) close() {
	h.ensuring.Lock()
	defer h.ensuring.Unlock()
	if h.records != nil {
		_ = h.records.manager.Close()
	}
}

// Drain lets go of every worker, and gives them to the other hosts, while this
// one goes on to answer its verbs. It returns when nothing is handled here any
// more, or with ctx's error.
func (h *Host) Drain(ctx context.Context) error {
	h.draining.Store(true)
	h.poke()
	return h.await(ctx, func() bool { return len(h.slots) == 0 })
}

// await waits until cond, called under the lock, is true.
func (h *Host) await(ctx context.Context, cond func() bool) error {
	for {
		h.mu.Lock()
		if cond() {
			h.mu.Unlock()
			return nil
		}
		changed := make(chan struct{})
		h.listeners = append(h.listeners, changed)
		h.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// changed wakes those who wait for something about slots.
func (h *Host) changed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.listeners {
		close(c)
	}
	h.listeners = nil
}

// poke has serve look again.
func (h *Host) poke() {
	select {
	case h.recover <- struct{}{}:
	default:
	}
}

// Recover runs what is to run here, also when automatic recovery is off, and
// tries at once again what could not be loaded. It returns when every worker of
// this host was tried since the call, with what failed. On a host that is not
// running it is an error.
func (h *Host) Recover(ctx context.Context) error {
	asked := make(map[*slot]uint64)
	h.mu.Lock()
	if h.recovery == recoveryOff {
		h.recovery, h.began = recoveryRuns, time.Now()
	}
	for _, s := range h.slots {
		asked[s] = s.ask()
	}
	h.mu.Unlock()
	h.poke()
	running := true
	err := h.await(ctx, func() bool {
		if running = h.Status() == worker.StatusRunning; !running {
			return true
		}
		for s, n := range asked {
			if !s.hasTried(n) {
				return false
			}
		}
		return h.recovery == recoveryDone
	})
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if !running {
		return fmt.Errorf("recover: host %s is not running: it is %s", h.cfg.HostID, h.Status())
	}
	return h.faults()
}

// faults joins what is wrong with the workers of this host.
func (h *Host) faults() error {
	h.mu.Lock()
	slots := slices.Collect(maps.Values(h.slots))
	errs := slices.Collect(maps.Values(h.broken))
	h.mu.Unlock()
	for _, s := range slots {
		s.mu.Lock()
		for id, err := range s.faults {
			errs = append(errs, fmt.Errorf("worker %s: %w", id, err))
		}
		s.mu.Unlock()
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// Check is a readiness probe. It is lifecycle.ErrUnknown while recovery runs,
// and down, with what is wrong with each worker, when it failed: NATS was not
// reached within AcquireTimeout, or not one of the workers that are to run here
// could be loaded. It is up when recovery is done or switched off. A worker that
// failed among others that run is Failed in its record and its host's log and
// does not take the host out of rotation, which would not repair it.
func (h *Host) Check(context.Context) error {
	h.mu.Lock()
	state, fault := h.recovery, h.fault
	loaded := 0
	// A record that cannot be read is no host's share, unless there is no other.
	failed := len(h.known) == 0
	for _, s := range h.slots {
		s.mu.Lock()
		loaded += len(s.status)
		failed = failed || len(s.faults) > 0
		s.mu.Unlock()
	}
	h.mu.Unlock()
	switch {
	case fault != nil:
		return fault
	case state == recoveryRuns:
		return fmt.Errorf("recovery of hosted workers runs: %w", lifecycle.ErrUnknown)
	case state == recoveryDone && loaded == 0 && failed:
		if err := h.faults(); err != nil {
			return fmt.Errorf("no hosted worker could be recovered: %w", err)
		}
	}
	return nil
}

// Probe is [Host.Check] for a supervisor.
func (h *Host) Probe(ctx context.Context) worker.ProbeResult {
	err := h.Check(ctx)
	if errors.Is(err, lifecycle.ErrUnknown) {
		return worker.ProbeResult{Health: worker.HealthUnknown}
	}
	if err != nil {
		return worker.ProbeResult{Health: worker.HealthUnhealthy, Err: err}
	}
	return worker.ProbeResult{Health: worker.HealthHealthy}
}

// Local returns the ids of the workers that are loaded here, sorted.
func (h *Host) Local() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var ids []string
	for _, s := range h.slots {
		s.mu.Lock()
		ids = slices.AppendSeq(ids, maps.Keys(s.status))
		s.mu.Unlock()
	}
	slices.Sort(ids)
	return ids
}

// limits returns a worker's limits under those of the host.
func (h *Host) limits(r *Record) engine.Limits {
	own, l := r.Limits, h.cfg.Limits
	lower(&l.Time, own.Time)
	lower(&l.Load, own.Load)
	lower(&l.Memory, own.Memory)
	lower(&l.Output, own.Output)
	lower(&l.Outputs, own.Outputs)
	return l
}

func lower[T cmp.Ordered](field *T, v T) {
	var zero T
	if v != zero && v < *field {
		*field = v
	}
}
