package host

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
)

// members keeps the hosts of the fleet. Each host puts its key into a bucket every
// third of the lease. A host that has not done so for a whole lease is gone.
//
// Each slot belongs to the living host with the highest hash of the slot's and the
// host's name (rendezvous hashing, Thaler and Ravishankar 1998). The hosts need no
// election, and a host that comes or goes moves only its own share. Two hosts that
// see the fleet differently for a moment may both serve a slot. The consumer then
// gives each message to one of them, and the fence lets only the later one write.
type members struct {
	kv  jetstream.KeyValue
	id  string
	ttl time.Duration

	mu       sync.Mutex           // guards the fields below
	kept     time.Time            // when the last successful beat began
	revision uint64               // of the last beat
	refused  error                // why the server did not take the last beat; nil when it did, or was away
	heard    map[string]time.Time // when each host's key came, by this process's clock: a watch does not report one that expires
}

func newMembers(kv jetstream.KeyValue, id string, ttl time.Duration) *members {
	return &members{kv: kv, id: id, ttl: ttl, heard: make(map[string]time.Time)}
}

// beat renews this host's key. The lease counts from the time before the attempt.
func (m *members) beat(ctx context.Context) error {
	began := time.Now()
	revision, err := m.kv.Put(ctx, m.id, []byte(began.UTC().Format(time.RFC3339Nano)))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused = nil
	if natserr.Code(err) != 0 && !natserr.Away(err) {
		m.refused = err
	}
	if err != nil {
		return err
	}
	was := m.revision
	m.kept, m.revision = began, revision
	if revision <= was {
		return errReplaced
	}
	return nil
}

// errReplaced says that the server has lost what it stored: it was started with an empty disk, or
// the buckets were deleted or restored from a backup.
var errReplaced = errors.New("the store of the hosts was replaced")

// held reports whether this host may trust its lease: its last successful beat began
// less than two thirds of the lease ago.
func (m *members) held() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.kept.IsZero() && time.Since(m.kept) < m.ttl*2/3
}

// refusal returns why this host has no lease when the server refuses its heartbeats. A server that is
// away refuses nothing.
func (m *members) refusal() error {
	held := m.held()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refused == nil || held {
		return nil
	}
	return fmt.Errorf("this host holds no workers, because the server refuses its heartbeat: %w", m.refused)
}

// observe notes an entry of the watch of the hosts.
func (m *members) observe(entry jetstream.KeyValueEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if entry.Operation() != jetstream.KeyValuePut {
		delete(m.heard, entry.Key())
		return
	}
	m.heard[entry.Key()] = time.Now()
}

// live returns the hosts that are alive, and always this one.
func (m *members) live() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.heard, func(_ string, at time.Time) bool { return time.Since(at) >= m.ttl })
	hosts := slices.Sorted(maps.Keys(m.heard))
	if !slices.Contains(hosts, m.id) {
		hosts = append(hosts, m.id)
	}
	return hosts
}

// leave removes this host's key.
func (m *members) leave(ctx context.Context) error { return m.kv.Delete(ctx, m.id) }

// owner returns the host to which a slot belongs.
func owner(hosts []string, slot string) string {
	var best string
	var most [sha256.Size]byte
	for _, h := range hosts {
		sum := sha256.Sum256([]byte(h + "\x00" + slot))
		if order := bytes.Compare(sum[:], most[:]); best == "" || order > 0 {
			best, most = h, sum
		}
	}
	return best
}
