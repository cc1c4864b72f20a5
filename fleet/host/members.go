package host

import (
	"context"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// members are the hosts. Each puts its key into a bucket every third of the
// lease; a host that has not done so for the whole of it is gone.
//
// Each slot belongs to the living host with the highest hash of both names
// (rendezvous hashing, Thaler and Ravishankar 1998): the hosts need no election,
// and a host that comes or goes moves only its own share. Two hosts that see the
// fleet differently for a moment both serve a slot; the consumer gives each
// message to one of them, and the fence lets the later one write.
type members struct {
	kv     jetstream.KeyValue
	id     string
	ttl    time.Duration
	living *presence.Living

	mu   sync.Mutex // guards kept
	kept time.Time  // when the last beat that was answered was begun
}

func newMembers(kv jetstream.KeyValue, id string, ttl time.Duration) *members {
	return &members{kv: kv, id: id, ttl: ttl, living: presence.NewLiving(ttl)}
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
	if entry.Operation() != jetstream.KeyValuePut {
		m.living.Left(entry.Key())
		return
	}
	m.living.Heard(entry.Key())
}

// live returns the hosts that are alive, this one always.
func (m *members) live() []string {
	m.living.Expire() // else those that are gone would be kept for ever
	hosts := m.living.Alive()
	if !slices.Contains(hosts, m.id) {
		hosts = append(hosts, m.id)
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
