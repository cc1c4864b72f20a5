package workflow

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/canary"
)

// DefaultPatience is how long a write keeps trying when the caller's context has
// no deadline.
const DefaultPatience = 30 * time.Second

// Manager stores entities, changes them along their tables and answers queries
// about them. A process needs only one. All methods may be called concurrently.
type Manager struct {
	js      jetstream.JetStream
	log     *slog.Logger
	earlier notifier        // of something that comes due earlier than before
	clock   clock           // the server's
	alive   context.Context // ends with Close
	end     context.CancelFunc
	watches sync.WaitGroup // added to under mu, while not closed
	ops     string         // the prefix of the ids of its operations
	lastOp  atomic.Uint64

	mu         sync.RWMutex // guards the fields below
	registered map[string]*registration
	buckets    map[string]*bucket
	closed     bool
}

// NewManager returns a Manager on a JetStream context, such as a broker's. It sends
// nothing before the first Register. A nil logger is slog.Default.
func NewManager(js jetstream.JetStream, logger *slog.Logger) *Manager {
	if logger == nil {
		logger = slog.Default()
	}
	m := &Manager{
		js:         js,
		log:        logger,
		ops:        nuid.Next() + ".",
		registered: make(map[string]*registration),
		buckets:    make(map[string]*bucket),
	}
	m.alive, m.end = context.WithCancel(context.Background())
	return m
}

// closeTime bounds Close. A test shortens it.
var closeTime = 10 * time.Second

// Close ends the views and watches and returns when they have ended. After 10 s it returns
// an error that names the bucket of a view that has not: a participant's method does not
// return. The caller closes the connection. A later call waits for everything that still runs.
// Other calls return ErrClosed afterwards.
func (m *Manager) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	m.mu.Lock()
	m.closed = true
	buckets := slices.Collect(maps.Values(m.buckets))
	m.mu.Unlock()
	m.end()
	for _, b := range buckets {
		b.view.end()
	}
	for _, b := range buckets {
		select {
		case <-b.view.done:
		case <-ctx.Done():
			return fmt.Errorf("close: the view of bucket %s has not ended: %w", b.name, context.Cause(ctx))
		}
	}
	ended := make(chan struct{})
	go func() {
		m.watches.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close: a watch has not ended: %w", context.Cause(ctx))
	}
}

// Ready waits until the views have read their buckets. It returns ErrStale for a view
// that has not been up to date for 10 s, because the server or the bucket is away.
//
// After a write of this process that was sent and got no answer, or that the server could not
// store, Ready also finds out whether the bucket takes writes: a server whose disk was full may
// answer reads and no writes. Until one succeeds, Ready stores a marker under a reserved key,
// which no query and no watch shows.
//
// With
// app.Probe("missions", lifecycle.ProbeFunc(mgr.Ready)) a process becomes ready when
// its queries are answered at once, and stays ready while the answers are true.
func (m *Manager) Ready(ctx context.Context) error {
	for _, r := range m.all() {
		v := r.bucket.view
		if r.viewless {
			continue
		}
		if err := v.wait(ctx, nil); err != nil {
			return fmt.Errorf("workflow %q: %w", r.workflow, err)
		}
		if !v.asOf().IsZero() && v.age() > r.bucket.pace.Of(staleTime) {
			return fmt.Errorf("workflow %q: %w", r.workflow, v.late(ErrStale))
		}
	}
	for _, b := range m.allBuckets() {
		if !b.doubtful.Load() {
			continue
		}
		if err := canary.Check(ctx, m.js, b.name); err != nil {
			return natserr.Plain(err)
		}
		b.doubtful.Store(false)
	}
	return nil
}

func (m *Manager) registration(workflow string) (*registration, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return nil, ErrClosed
	}
	r := m.registered[workflow]
	if r == nil {
		return nil, fmt.Errorf("%w: %q", ErrWorkflowNotRegistered, workflow)
	}
	return r, nil
}

// all returns every workflow, sorted by name.
func (m *Manager) all() []*registration {
	m.mu.RLock()
	defer m.mu.RUnlock()
	byName := func(a, b *registration) int { return strings.Compare(a.workflow, b.workflow) }
	return slices.SortedFunc(maps.Values(m.registered), byName)
}

// allBuckets returns every bucket of the registered workflows.
func (m *Manager) allBuckets() []*bucket {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return slices.Collect(maps.Values(m.buckets))
}

// locate returns a workflow, and the key of one of its entities.
func (m *Manager) locate(workflow, entityID string) (r *registration, key string, err error) {
	if r, err = m.registration(workflow); err != nil {
		return nil, "", err
	}
	key, err = r.key(entityID)
	return r, key, err
}

func (m *Manager) isClosed() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.closed
}
