package host

import (
	"context"
	"hash/fnv"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// members is who the hosts are. Each puts its key into a bucket every third of
// the lease; who has not been seen to for the whole of it is gone. Only the
// reader's own clock counts, and only for how long ago something was seen.
//
// Of the hosts that are there, each slot belongs to the one with the highest
// hash of both names (rendezvous hashing, Thaler and Ravishankar 1998): nobody
// has to be elected, and a host that comes or goes moves only its own share. Two
// hosts that see the fleet differently for a moment both serve a slot; the
// consumer gives each message to one of them, and the fence lets the later one
// write.
type members struct {
	kv  jetstream.KeyValue
	id  string
	ttl time.Duration

	mu   sync.Mutex
	seen map[string]time.Time
	kept time.Time // when the last beat that was answered was begun
}

// beat says that this host is there. The lease counts from before the attempt.
func (m *members) beat(ctx context.Context) error {
	began := time.Now()
	if _, err := m.kv.Put(ctx, m.id, []byte(began.UTC().Format(time.RFC3339Nano))); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept = began
	return nil
}

// held reports whether the others still count on this host.
func (m *members) held() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.kept.IsZero() && time.Since(m.kept) < m.ttl*2/3
}

// observe notes what was read about a host.
func (m *members) observe(entry jetstream.KeyValueEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if entry.Operation() != jetstream.KeyValuePut {
		delete(m.seen, entry.Key())
		return
	}
	m.seen[entry.Key()] = time.Now()
}

// live returns the hosts that are there, this one always.
func (m *members) live() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	hosts := []string{m.id}
	for id, at := range m.seen {
		if id != m.id && time.Since(at) < m.ttl {
			hosts = append(hosts, id)
		}
	}
	return hosts
}

// leave says that this host is gone.
func (m *members) leave(ctx context.Context) error { return m.kv.Delete(ctx, m.id) }

// owner returns which of hosts a slot belongs to.
func owner(hosts []string, slot string) string {
	var best string
	var most uint64
	for _, h := range hosts {
		f := fnv.New64a()
		_, _ = f.Write([]byte(h))
		_, _ = f.Write([]byte{0})
		_, _ = f.Write([]byte(slot))
		// FNV's high bits depend little on the last bytes: mix them (the
		// finalizer of MurmurHash3).
		x := f.Sum64()
		x = (x ^ x>>33) * 0xff51afd7ed558ccd
		x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
		x ^= x >> 33
		if best == "" || x > most || x == most && h < best {
			best, most = h, x
		}
	}
	return best
}
