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
	"golang.org/x/sync/semaphore"

	lifecycle "github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/host/fetch"
	"github.com/pleme-io/lifecycle-go/fleet/host/outbound"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Kind is the kind of a hosted worker in errors.
const Kind = "hosted worker"

var (
	// ErrNotFound is wrapped for an id that no worker has.
	ErrNotFound = errors.New("no such worker")
	// ErrExists is wrapped by the error of a Create whose id is taken.
	ErrExists = errors.New("the worker exists")
	// ErrInvalid is wrapped for an invalid argument.
	ErrInvalid = errors.New("invalid")
	// ErrNoTopic is wrapped when no stream has a worker's topic.
	ErrNoTopic = errors.New("no stream has the topic")
	// ErrNoVersion is wrapped by the error of a Rollback to code that the worker
	// never had, or that is older than its history.
	ErrNoVersion = errors.New("no such version")
	// ErrDetached is the cause with which a handler's context ends when this host
	// gives up its message: the host stops or moves the worker, or it could not
	// renew its lease or the message's heartbeat in time.
	ErrDetached = errors.New("the worker is detached from this host")
	// ErrStale is wrapped when the server refused to write state because a newer
	// fencing token was given out.
	ErrStale = errors.New("the fencing token is stale")
)

// Host runs its share of the hosted workers. It is a [worker.Worker]: Start recovers
// the workers of this host, and Stop finishes their messages and gives the workers
// up. Neither changes anything that is stored. A Host has a Drain, and a Check for a
// readiness probe. All methods may be called concurrently. The verbs, such as
// Create and Rollback, work on every worker, on any host, from New until Stop. A host
// that is never started needs a Stop too.
type Host struct {
	worker.BaseWorker

	cfg      Config
	stopTime time.Duration
	js       jetstream.JetStream
	nc       *nats.Conn
	log      *slog.Logger
	fetcher  *fetch.Client

	records *records
	states  *states
	letters *letters
	members *members
	code    *codes
	logs    jetstream.Stream // of the slots
	lines   *lines
	clients map[string]*outbound.Client // by tenant

	children children
	budget   *budget
	serving  context.Context    // of serve
	cancel   context.CancelFunc // ends it
	wake     fsm.Wake           // makes serve assign the slots again
	ready    atomic.Bool        // ensure has succeeded
	ensuring sync.Mutex

	mu        sync.Mutex // guards everything below
	known     map[string]*Record
	broken    map[string]error // records that cannot be read
	slots     map[string]*slot
	recovery  recovery
	began     time.Time                          // when recovery began
	fault     error                              // why recovery failed as a whole
	tallies   map[string]map[codeVersion]*Counts // by the id of the worker
	lettered  map[string]int                     // dead letters that this host has stored, by subject
	listeners []chan struct{}                    // closed at the next change

	running  sync.WaitGroup // runners and their watches
	draining atomic.Bool
	left     bool // this host has given up its membership; only the goroutine of serve uses it
}

// recovery is the progress of the first recovery.
type recovery int

const (
	recoveryOff recovery = iota
	recoveryRuns
	recoveryDone
)

// New returns a host on js. It does not contact the server; Start and the verbs do.
// It returns an error when js is nil, or one that names the invalid fields of cfg.
func New(js jetstream.JetStream, cfg Config) (*Host, error) {
	if js == nil {
		return nil, errors.New("host: no JetStream: pass that of a broker")
	}
	stopTime := cfg.DrainTimeout
	cfg = cfg.WithDefaults()
	err := cfg.Validate()
	if cfg.Engines == nil || len(cfg.Engines.MIMETypes()) == 0 {
		err = errors.Join(errors.New("engines: there is none: give a registry with at least one"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	cfg.maxValue = js.Conn().MaxPayload()
	policy := cfg.Fetch
	policy.MaxSize = cmp.Or(policy.MaxSize, cfg.MaxCode)
	h := &Host{
		cfg:      cfg,
		stopTime: stopTime,
		js:       js,
		nc:       js.Conn(),
		log:      cfg.Logger,
		fetcher:  cfg.Fetcher,
		wake:     fsm.NewWake(),
		known:    make(map[string]*Record),
		slots:    make(map[string]*slot),
		tallies:  make(map[string]map[codeVersion]*Counts),
		lettered: make(map[string]int),
		recovery: recoveryRuns,
		budget:   newBudget(&cfg),
	}
	if cfg.RecoveryOff {
		h.recovery = recoveryOff
	}
	if h.fetcher == nil {
		client, err := fetch.New(policy, nil)
		if err != nil {
			return nil, fmt.Errorf("host: %w", err)
		}
		h.fetcher = client
	}
	if err := errors.Join(h.isolateEngines(), h.newClients()); err != nil {
		return nil, err
	}
	h.serving, h.cancel = context.WithCancel(context.Background()) // made here, because Stop may run while Start does
	h.Init("host", "host")                                         // a name that an alert can have; HostID differs with each start
	return h, nil
}

// ensure creates the buckets and streams that the hosts share, or verifies them.
func (h *Host) ensure(ctx context.Context) error {
	if h.ready.Load() {
		return nil
	}
	h.ensuring.Lock()
	defer h.ensuring.Unlock()
	if h.ready.Load() {
		return nil
	}
	if err := broker.Ensure(ctx, h.js, h.buckets(), h.streams()); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	var errs []error
	bucket := func(kind string) jetstream.KeyValue {
		kv, err := h.js.KeyValue(ctx, h.cfg.Name+"_"+kind)
		errs = append(errs, err)
		return kv
	}
	stream := func(kind string) jetstream.Stream {
		s, err := h.js.Stream(ctx, h.cfg.Name+"_"+kind)
		errs = append(errs, err)
		return s
	}
	workers, hosts := bucket("WORKERS"), bucket("MEMBERS")
	logs, printed, state, code, dead := stream("LOG"), stream("LINES"), stream("STATE"), stream("CODE"), stream("DEAD")
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	records, err := newRecords(h.js, workers, h.log)
	if err != nil {
		return fmt.Errorf("host: %w", err)
	}
	h.records, h.logs = records, logs
	h.members = newMembers(hosts, h.cfg.HostID, h.cfg.LeaseTTL)
	h.lines = &lines{nc: h.nc, stream: printed, prefix: h.subject("lines"), host: h.cfg.HostID}
	h.lines.rateOf = h.maxLines
	h.states = &states{
		nc:     h.nc,
		js:     h.js,
		stream: state,
		budget: h.budget,
		prefix: h.subject("state"),
		asking: semaphore.NewWeighted(maxAsking),
	}
	h.code = &codes{chunks: chunks{h.js, code}, prefix: h.subject("code")}
	h.letters = &letters{
		chunks: chunks{h.js, dead},
		dead:   h.subject("dead"),
		held:   h.subject("held"),
		body:   h.subject("body"),
	}
	h.ready.Store(true)
	return nil
}

// ensureAgain makes the buckets and streams that the server has lost since ensure.
func (h *Host) ensureAgain(ctx context.Context) error {
	if !h.ready.Load() {
		return h.ensure(ctx)
	}
	if err := broker.Ensure(ctx, h.js, h.buckets(), h.streams()); err != nil {
		return fmt.Errorf("host: %w", err)
	}
	return nil
}

// subject returns the beginning of the subjects of one kind that this fleet's hosts use. It has
// a $, as the server's own subjects have: by it the hosts of every fleet know that an output
// would act upon the server or upon hosts.
func (h *Host) subject(kind string) string {
	return "$" + strings.ToLower(h.cfg.Name) + "." + kind + "."
}

// buckets returns the buckets that the hosts share.
func (h *Host) buckets() []jetstream.KeyValueConfig {
	return []jetstream.KeyValueConfig{{
		Bucket:      h.cfg.Name + "_WORKERS",
		Description: "hosted workers",
		Metadata:    map[string]string{hostMark: h.cfg.Name},
		History:     maxRevisions,
		Replicas:    h.cfg.Replicas,
	}, {
		Bucket:      h.cfg.Name + "_MEMBERS",
		Description: "hosts of hosted workers",
		Metadata:    map[string]string{hostMark: h.cfg.Name},
		History:     1,
		TTL:         10 * h.cfg.LeaseTTL,
		Replicas:    h.cfg.Replicas,
	}}
}

// streams returns the streams that the hosts share.
func (h *Host) streams() []jetstream.StreamConfig {
	stream := func(name, description string, kinds ...string) jetstream.StreamConfig {
		cfg := jetstream.StreamConfig{
			Name:        h.cfg.Name + "_" + name,
			Description: description,
			Metadata:    map[string]string{hostMark: h.cfg.Name},
			Discard:     jetstream.DiscardOld,
			Replicas:    h.cfg.Replicas,
		}
		for _, kind := range kinds {
			cfg.Subjects = append(cfg.Subjects, h.subject(kind)+">")
		}
		return cfg
	}
	state := stream("STATE", "what hosted workers remember, and their fences", "state")
	state.MaxMsgsPerSubject, state.AllowAtomicPublish = 1, true
	logs := stream("LOG", "what messages of hosted workers have caused", "log")
	logs.AllowAtomicPublish = true
	printed := stream("LINES", "what the code of hosted workers prints", "lines")
	printed.MaxMsgsPerSubject, printed.MaxAge = MaxLines, linesFor
	code := stream("CODE", "code of hosted workers", "code")
	code.MaxMsgsPerSubject = 1
	dead := stream("DEAD", "messages that hosted workers gave up", "dead", "held", "body")
	return []jetstream.StreamConfig{state, logs, printed, code, dead}
}

// Start runs this host's share of the workers in the background. The host is Running
// at once; [Host.Check] says whether recovery is over. Cancelling ctx stops the host
// as Stop does.
func (h *Host) Start(ctx context.Context) error {
	if err := h.Begin(ctx); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, h.cancel)
	h.probeFloor(h.serving)
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

// StopTime returns [Config].DrainTimeout, and 0 for its default, which gives way to the
// context of Stop.
func (h *Host) StopTime() time.Duration { return h.stopTime }

// Stop finishes the messages in progress, within DrainTimeout and ctx, gives back
// the messages that wait, and tells the other hosts that this one is gone. It
// changes nothing that is stored: another host, or the next start, continues where
// this one ended.
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

func (h *Host) close() {
	h.ensuring.Lock()
	defer h.ensuring.Unlock()
	if h.records != nil {
		_ = h.records.manager.Close()
	}
	h.closeClients()
}

// Drain ends every worker on this host, while the verbs keep working. As soon as the last
// handler has returned, the other hosts take the workers over. Drain returns when this host
// handles no message any more, or ctx's error when ctx ends first.
func (h *Host) Drain(ctx context.Context) error {
	h.draining.Store(true)
	h.wake.Notify()
	return h.await(ctx, func() bool { return len(h.slots) == 0 })
}

// await waits until cond returns true, or returns ctx's error. It calls cond under
// the lock.
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

// changed wakes every call of await.
func (h *Host) changed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.listeners {
		close(c)
	}
	h.listeners = nil
}

// Recover runs the workers of this host, also when automatic recovery is off. It
// tries workers that could not be loaded again at once. It returns when the host has
// tried each of its workers since the call, with the joined errors of those that
// failed. On a host that is not running it returns an error.
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
	h.wake.Notify()
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

// faults joins the errors of the workers of this host.
func (h *Host) faults() error {
	h.mu.Lock()
	slots := slices.Collect(maps.Values(h.slots))
	errs := slices.Collect(maps.Values(h.broken))
	h.mu.Unlock()
	for _, s := range slots {
		s.mu.Lock()
		for id, w := range s.workers {
			if w.fault != nil {
				errs = append(errs, fmt.Errorf("worker %s: %w", id, w.fault))
			}
		}
		s.mu.Unlock()
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}

// Check is a readiness probe. It returns lifecycle.ErrUnknown while recovery runs,
// and nil when recovery is done or switched off. It returns an error when recovery
// failed: recovery took longer than AcquireTimeout, or none of this host's workers
// could be loaded; then the error has the reason for each worker. It also returns one while the
// server refuses this host's heartbeat, so that other hosts have its workers. A single worker
// that failed is Failed in its record and in the host's log. It does not take the
// host out of rotation, which would not repair the worker.
func (h *Host) Check(context.Context) error {
	h.mu.Lock()
	state, fault := h.recovery, h.fault
	loaded := 0
	// A record that cannot be read belongs to no host. It counts here only when no
	// record can be read.
	failed := len(h.known) == 0
	for _, s := range h.slots {
		s.mu.Lock()
		for _, w := range s.workers {
			failed = failed || w.fault != nil
			if w.loaded {
				loaded++
			}
		}
		s.mu.Unlock()
	}
	h.mu.Unlock()
	var refused error
	if state == recoveryDone {
		refused = h.members.refusal()
	}
	switch {
	case fault != nil:
		return fault
	case refused != nil:
		return refused
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
		for id, w := range s.workers {
			if w.loaded {
				ids = append(ids, id)
			}
		}
		s.mu.Unlock()
	}
	slices.Sort(ids)
	return ids
}
