package procpool

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/asynclog"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Pool is a pool of worker processes. Make it with [New]. It is a worker.Worker:
// it takes queries from Start until Stop, Drain, or the end of the context given
// to Start. All methods may be called concurrently.
type Pool struct {
	worker.BaseWorker
	cfg      Config
	stopTime time.Duration
	log      *slog.Logger
	appLog   bool // Start takes the App's logger, because the Config has none
	dir      string
	seed     maphash.Seed // of fingerprints
	prefix   string       // of the names of sockets
	lifeline *lifeline

	tree   fsm.Dispatcher // status changes of the pool and of its processes
	events fsm.Dispatcher // all other events
	begun  sync.Mutex     // orders the begin of Start against Stop
	making sync.Mutex     // held while Config.Command runs
	cancel context.CancelCauseFunc
	alive  sync.WaitGroup     // of workers
	hurry  fsm.Signal         // the pool no longer waits for running queries
	forced context.Context    // it ends when the pool no longer waits for anything
	force  context.CancelFunc // ends forced
	quiet  fsm.Signal         // the pool drains, and every query has ended

	open     atomic.Int64 // queries that have not ended
	running  atomic.Bool  // takes queries
	draining atomic.Bool  // takes no more; written under mu

	statsMu sync.Mutex // guards stats
	stats   Stats      // its counters

	mu            sync.Mutex // guards the fields below
	capacity      *fsm.Machine[PoolState]
	ending        bool     // the pool starts no more workers
	program       *program // of the workers that the pool starts
	reloading     *reload  // nil for none
	lastID        uint64
	spawned       int
	workers       []*proc           // all that are not dead, oldest first
	queue         []*Query          // that wait for a worker, in the order in which they are served
	shares        map[string]*share // of callers that wait; used with Config.FairShares
	turn          uint64            // of the last query that was served
	mostPlaces    int               // the highest number of queries that any worker takes at a time
	keys          map[string]*proc
	lost          map[string]bool        // keys whose worker has died, until a caller learns it
	poisoned      map[string]*Poisoned   // by fingerprint
	blamed        map[string][]time.Time // the deaths that count, by owner, oldest first
	nextAlone     map[string]time.Time   // owners and fingerprints whose next query runs alone, with the time of the death
	failures      int                    // consecutive failed starts
	deaths        int                    // consecutive deaths of workers that had no query
	noStartBefore time.Time              // the end of the backoff after failed starts
	retryTimer    *time.Timer            // starts workers again when the backoff is over
	lastFail      error
	mean          time.Duration // a worker's time per query, moving average
}

// New returns a pool that has not been started. The error names each invalid
// field of the config.
func New(cfg Config) (*Pool, error) {
	err := cfg.Validate()
	if cfg.Command == nil {
		err = errors.Join(errors.New("Command is nil, want a function that makes the command of a worker"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.title(), err)
	}
	hasLogger := cfg.Logger != nil
	stopTime := cfg.DrainTimeout + cfg.ShutdownGrace + cfg.KillGrace
	cfg = cfg.WithDefaults()
	p := &Pool{
		cfg:       cfg,
		stopTime:  stopTime,
		log:       call.Logger(cfg.Logger),
		appLog:    !hasLogger,
		seed:      maphash.MakeSeed(),
		dir:       cfg.SocketDir,
		stats:     newStats(),
		keys:      make(map[string]*proc),
		lost:      make(map[string]bool),
		shares:    make(map[string]*share),
		poisoned:  make(map[string]*Poisoned),
		blamed:    make(map[string][]time.Time),
		nextAlone: make(map[string]time.Time),
	}
	if p.dir == "" {
		p.dir = filepath.Join(os.TempDir(), "procpool-"+strconv.Itoa(os.Getuid()))
	}
	dir, err := filepath.Abs(p.dir) // the command may set another folder for its process
	if err != nil {
		return nil, fmt.Errorf("%s: SocketDir: %w", cfg.Name, err)
	}
	p.dir = dir
	p.program = &program{cfg.Command}
	p.forced, p.force = context.WithCancel(context.Background())
	p.Init("procpool", cfg.Name)
	p.BaseWorker.PublishTo(&p.tree)
	p.capacity = fsm.MustNew(KindPool, cfg.Name, poolTable, PoolIdle, &p.events)
	return p, nil
}

// StopTime returns how long [Pool.Stop] may take by the times of the Config that were set:
// DrainTimeout, ShutdownGrace and KillGrace. Defaults do not count: they give way to the
// context of Stop.
func (p *Pool) StopTime() time.Duration { return p.stopTime }

// Events returns the dispatcher of the pool's events. Their kinds are [KindPool],
// [KindWorker], [KindConnection] and [KindQuery]. Each query publishes about four
// events, so a reader needs a large buffer or must accept gaps.
func (p *Pool) Events() *fsm.Dispatcher { return &p.events }

// Watch returns a reader of status changes of the pool and of its processes, from
// now on. It holds at most buffer unread events. [Pool.Events] has the events of
// queries.
func (p *Pool) Watch(buffer int) *fsm.Subscription { return p.tree.Subscribe(buffer) }

// PublishTo also sends the events of [Pool.Watch] to events.
func (p *Pool) PublishTo(events *fsm.Dispatcher) { p.tree.Forward(events) }

// Start takes queries from now on and starts the first MinWorkers workers. The
// pool is Running once these are ready. Start returns an error when the folder for
// sockets is not usable. A worker that does not start is not an error: the pool
// retries with a backoff and is Unhealthy meanwhile. Cancelling ctx asks the pool
// to stop.
func (p *Pool) Start(ctx context.Context) error {
	// A supervisor may have given the pool its ID after New.
	p.tree.SetOwner(p.ID())
	p.events.SetOwner(p.ID())
	own, cancel := context.WithCancelCause(ctx)
	p.begun.Lock()
	err := p.Begin(own)
	if err == nil {
		p.cancel = cancel
	}
	p.begun.Unlock()
	if err != nil {
		cancel(nil)
		return err
	}
	if log := asynclog.Logger(ctx); p.appLog && log != nil {
		p.log = call.Logger(log) // before any worker has started
	}
	if err = p.prepare(); err != nil {
		err = fmt.Errorf("start %s: %w", p.Name(), err)
		p.Finish(err)
		cancel(nil)
		return err
	}
	p.running.Store(true)
	p.mu.Lock()
	if p.cfg.MinWorkers == 0 {
		p.MarkRunning()
	}
	p.ensureLocked()
	p.mu.Unlock()
	call.Go(p.Name(), func() error { p.live(own); return nil }, func(err error) {
		p.Finish(err)
		cancel(nil)
	})
	return nil
}

// prepare checks that workers will have a socket to connect to.
func (p *Pool) prepare() error {
	if !supported {
		return fmt.Errorf("worker processes need process groups, which this system does not have: %w", errors.ErrUnsupported)
	}
	if !p.cfg.Inherit {
		if err := openDir(p.dir); err != nil {
			return err
		}
	}
	unique := time.Now().UnixNano() & 0xffffff
	p.prefix = filepath.Join(p.dir, fmt.Sprintf("%s-%d-%x-", fileName(p.cfg.Name), os.Getpid(), unique))
	d, err := p.newAcceptor(0)
	if err != nil {
		return err
	}
	d.close()
	if p.lifeline, err = newLifeline(); err != nil {
		return fmt.Errorf("make a pipe for workers: %w", err)
	}
	return nil
}

// fileName replaces the characters of name that cannot be part of a path.
func fileName(name string) string { return unusable.ReplaceAllString(name, "_") }

var unusable = regexp.MustCompile(`[^a-zA-Z0-9-]`)

// live runs from Start to the end of the pool.
func (p *Pool) live(own context.Context) {
	ticker := time.NewTicker(p.checkEvery())
	defer ticker.Stop()
	for own.Err() == nil {
		select {
		case <-ticker.C:
			p.check()
		case <-own.Done():
		}
	}
	p.beginDrain()
	patience := time.After(p.cfg.DrainTimeout)
	for waiting := true; waiting; {
		select {
		case <-ticker.C:
			p.check()
		case <-p.quiet.Signaled():
			waiting = false
		case <-patience:
			waiting = false
		case <-p.hurry.Signaled():
			waiting = false
		}
	}
	p.mu.Lock()
	p.ending = true
	if p.retryTimer != nil {
		p.retryTimer.Stop()
	}
	open := slices.Clone(p.queue)
	for _, w := range p.workers {
		for _, a := range w.attempts {
			open = append(open, a.q)
		}
	}
	if r := p.reloading; r != nil {
		p.endReloadLocked(r, ErrDraining)
	}
	p.mu.Unlock()
	for _, q := range open {
		p.abandon(q, QueryError, fmt.Errorf("%s: it was not done when the pool had to stop: %w", q.id, ErrDraining))
	}
	p.mu.Lock()
	for _, w := range p.workers {
		w.stopLocked(true, nil)
	}
	p.mu.Unlock()
	p.alive.Wait()
	p.lifeline.close()
}

// Drain rejects new queries with [ErrDraining] and returns when all running and
// waiting queries have ended. When ctx ends first, Drain returns its error with
// the number of queries that have not ended. The workers run until Stop. Drain may
// be called again.
func (p *Pool) Drain(ctx context.Context) error {
	p.beginDrain()
	select {
	case <-p.quiet.Signaled():
		return nil
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain %s: %d queries have not ended: %w", p.Name(), p.open.Load(), ctx.Err())
	}
}

func (p *Pool) beginDrain() {
	p.mu.Lock()
	p.draining.Store(true)
	p.mu.Unlock()
	if p.open.Load() == 0 {
		p.quiet.Signal()
	}
}

// Stop drains the pool, ends its workers and returns when every worker process has
// ended. It asks a worker by message, then by SIGTERM, then kills it. A query that
// takes longer than DrainTimeout, or than half of the time that ctx has, ends with
// an error that is [ErrDraining]. Shortly before ctx ends, Stop kills all workers.
func (p *Pool) Stop(ctx context.Context) error {
	p.begun.Lock()
	live, cancel := p.RequestStop(worker.ErrStopRequested), p.cancel
	p.begun.Unlock()
	if cancel != nil {
		cancel(worker.ErrStopRequested)
	}
	if !live {
		return p.stopErr()
	}
	if deadline, ok := ctx.Deadline(); ok {
		remaining := time.Until(deadline)
		hurry := time.AfterFunc(remaining/2, func() { p.hurry.Signal() })
		defer hurry.Stop()
		force := time.AfterFunc(remaining*8/10, p.forceNow)
		defer force.Stop()
	}
	select {
	case <-p.Done():
		return p.stopErr()
	case <-ctx.Done():
	}
	p.forceNow()
	select {
	case <-p.Done():
		return p.stopErr()
	case <-time.After(250 * time.Millisecond): // with an expired ctx, give workers that die at once time to do so
	}
	p.Kill(&worker.AbandonedError{Name: p.Name(), Where: "ending its workers" + p.livingWorkers()})
	return p.stopErr()
}

func (p *Pool) stopErr() error {
	if p.Killed() {
		return p.Err()
	}
	return nil
}

func (p *Pool) forceNow() {
	p.hurry.Signal()
	p.force()
}

// livingWorkers names the workers that live, for an error: ": w1 (pid 7), w2 (pid 8)". It
// returns "" when there are none.
func (p *Pool) livingWorkers() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.workers) == 0 {
		return ""
	}
	var names []string
	for _, w := range p.workers {
		names = append(names, fmt.Sprintf("%s (pid %d)", w.name, w.process.PID()))
	}
	return ": " + strings.Join(names, ", ")
}

// Probe reports the pool unhealthy while it has no ready or busy worker and waits
// after failed starts, or after deaths of workers that had no query. Queries that
// kill their workers do not make it unhealthy.
func (p *Pool) Probe(context.Context) worker.ProbeResult {
	p.mu.Lock()
	defer p.mu.Unlock()
	failures := p.failures + p.deaths
	waits := failures > 0 && time.Now().Before(p.noStartBefore)
	if waits && !slices.ContainsFunc(p.workers, (*proc).serves) {
		return worker.ProbeResult{Err: fmt.Errorf("%d failures in a row, the last: %w", failures, p.lastFail)}
	}
	return worker.ProbeResult{Health: worker.HealthHealthy}
}
