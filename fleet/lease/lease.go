// Package lease is a lease that at most one process holds at a time, kept in a
// NATS key-value bucket whose entries expire. It has the shape of the root
// package's Elector:
//
//	l, err := lease.New(ctx, js, lease.Config{Bucket: "LEASES", Key: "deadlines"})
//	if err != nil {
//		return err
//	}
//	app.Lead("deadlines", l, missions.Deadlines)
//
// Begin with [New] and [Lease.Acquire]; [Lease.Token] is the fencing token of the term. It
// uses the client of JetStream, and package identity for the holder's name.
package lease

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/pleme-io/lifecycle-go/fleet/broker/identity"
	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/internal/deadline"
)

// minTTL is the shortest TTL of a lease. The campaign of the root package refuses
// shorter ones.
const minTTL = time.Second

// Bucket declares a bucket for leases, for broker.Config.Buckets. An entry expires ttl
// after its last write, so ttl is how long every lease in the bucket lasts: 15 seconds,
// for example. Another process takes over a shorter lease sooner, and its holder renews
// it more often.
func Bucket(name string, ttl time.Duration) jetstream.KeyValueConfig {
	return jetstream.KeyValueConfig{Bucket: name, TTL: ttl, History: 1}
}

// Config says which lease it is.
type Config struct {
	// Bucket is the name of an existing bucket, declared by [Bucket].
	Bucket string
	// Key is the name of the lease. It must be a valid key of a bucket.
	Key string
	// Holder is the name that other processes see. Defaults to the host's name and
	// the process id. Two processes with the same name do not share a lease.
	Holder string
}

// Lease is this process's access to one lease. All methods may be called
// concurrently.
type Lease struct {
	kv     jetstream.KeyValue
	key    string
	ttl    time.Duration
	holder string
	nonce  string // unique to this Lease, also among those with the same holder

	mu       sync.Mutex // held for a whole attempt; guards everything below but term
	revision uint64     // of this process's last entry; 0 when it has none or does not know
	token    uint64

	term atomic.Pointer[term] // nil for none; its readers must not wait for an attempt
}

// term is the term that this process believes it holds.
type term struct {
	token uint64
	until deadline.Time
}

type record struct {
	Holder string `json:"holder"`
	Nonce  string `json:"nonce"`
	Token  uint64 `json:"token,omitempty"` // of the term; 0 in its first entry, whose revision is the token
}

// New returns access to a lease. It returns an error when the bucket does not exist,
// when its entries do not expire or expire in less than a second, or when the key is
// not valid.
func New(ctx context.Context, js jetstream.JetStream, cfg Config) (*Lease, error) {
	kv, err := js.KeyValue(ctx, cfg.Bucket)
	if err != nil {
		return nil, fmt.Errorf("lease %s in bucket %q: %w", cfg.Key, cfg.Bucket, natserr.Plain(err))
	}
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("lease %s in bucket %q: %w", cfg.Key, cfg.Bucket, natserr.Plain(err))
	}
	if status.TTL() < minTTL {
		return nil, fmt.Errorf("lease %s: the TTL of bucket %q is %v, want %v or more: declare it with lease.Bucket",
			cfg.Key, cfg.Bucket, status.TTL(), minTTL)
	}
	if _, err := kv.Get(ctx, cfg.Key); err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, fmt.Errorf("lease %q: %w", cfg.Key, natserr.Plain(err)) // usually the key is not valid
	}
	l := &Lease{kv: kv, key: cfg.Key, ttl: status.TTL(), holder: cfg.Holder, nonce: nuid.Next()}
	l.holder = cmp.Or(l.holder, identity.Process())
	return l, nil
}

// Acquire tries once to get the lease, or renews it when this process has it. It
// returns the time granted, counted from the call, or 0 when another process has the
// lease. After an error the outcome is unknown: the server may have carried out an
// attempt whose answer was lost. The next attempt finds out.
//
// The granted time counts from the call to be safe: the server writes the entry after
// the call, and the entry expires TTL after that write.
func (l *Lease) Acquire(ctx context.Context) (granted time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	began := time.Now()
	// Try twice: the entry can change between look and write. It may change more
	// often, once for every other process that campaigns; then the caller's next
	// attempt decides.
	for range 2 {
		held, err := l.look(ctx)
		if err != nil {
			return 0, fmt.Errorf("lease %s: %w", l.key, natserr.Plain(err))
		}
		if held {
			return 0, nil
		}
		switch err := l.write(ctx); {
		case err == nil:
			l.term.Store(&term{l.token, deadline.At(began.Add(l.ttl))})
			return l.ttl, nil
		case natserr.Conflict(err):
			l.forget()
		default:
			l.revision = 0 // the server may have written it: look next time
			return 0, fmt.Errorf("lease %s: %w", l.key, natserr.Plain(err))
		}
	}
	return 0, nil
}

// look reports whether another process has the lease.
func (l *Lease) look(ctx context.Context) (held bool, err error) {
	entry, err := l.kv.Get(ctx, l.key)
	if l.revision != 0 {
		// The write decides, by the revision. But a bucket that was restored from a
		// backup, or created anew, gives a revision twice: then it is another's entry.
		if err != nil || entry.Revision() != l.revision {
			return false, nil //nolint:nilerr // the write tells
		}
	}
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		l.forget()
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var r record
	_ = json.Unmarshal(entry.Value(), &r) // an invalid record is not this process's
	if r.Nonce != l.nonce {
		l.forget()
		return true, nil
	}
	// The entry is this process's own: the answer to an earlier attempt was lost.
	l.revision, l.token = entry.Revision(), r.Token
	l.token = cmp.Or(l.token, entry.Revision())
	return false, nil
}

// write begins a term, or renews the entry of the current one.
func (l *Lease) write(ctx context.Context) error {
	r := record{Holder: l.holder, Nonce: l.nonce, Token: l.token}
	if _, valid := l.Token(); l.revision != 0 && !valid {
		// The granted time has run out, so this is another term. It needs a new
		// token: another process may have held the lease in between.
		r.Token = 0
	}
	value, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var revision uint64
	if l.revision == 0 {
		revision, err = l.kv.Create(ctx, l.key, value)
	} else {
		revision, err = l.kv.Update(ctx, l.key, value, l.revision)
	}
	if err != nil {
		return err
	}
	l.revision = revision
	if r.Token == 0 {
		l.token = revision
	}
	return nil
}

func (l *Lease) forget() {
	l.revision, l.token = 0, 0
	l.term.Store(nil)
}

// Release gives the lease back, so that another process need not wait until it
// expires. It does nothing when this process does not have the lease.
func (l *Lease) Release(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	held, err := l.look(ctx)
	if err != nil {
		return fmt.Errorf("release lease %s: %w", l.key, natserr.Plain(err))
	}
	if held || l.revision == 0 {
		return nil
	}
	err = l.kv.Delete(ctx, l.key, jetstream.LastRevision(l.revision))
	if err != nil && !natserr.Conflict(err) {
		l.revision = 0 // the server may have deleted it: look next time
		return fmt.Errorf("release lease %s: %w", l.key, natserr.Plain(err))
	}
	l.forget()
	return nil
}

// Token returns the fencing token of the current term, and whether this process may
// still trust in it. A term's token is the revision of the entry that began it. It
// stays the same while the process renews the lease, and every later term of any
// process has a greater one. A store that remembers the greatest token it has seen and
// refuses smaller ones is safe from a process that was paused for longer than its lease
// and does not know. (A bucket restored from a backup continues with the backup's
// revisions: reset the token that such a store remembers. A holder of before notices at
// its next attempt that the entry of its revision is another's.) Token never waits. The trust
// also ends when the machine was suspended for that long, and when its clock is set
// forward.
func (l *Lease) Token() (token uint64, valid bool) {
	t := l.term.Load()
	if t == nil {
		return 0, false
	}
	return t.token, !t.until.HasPassed()
}

// Holder returns the name of the process that has the lease, or "" when no process has
// it.
func (l *Lease) Holder(ctx context.Context) (string, error) {
	entry, err := l.kv.Get(ctx, l.key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("lease %s: %w", l.key, natserr.Plain(err))
	}
	var r record
	if err := json.Unmarshal(entry.Value(), &r); err != nil {
		return "", fmt.Errorf("lease %s: the entry is not a lease's: %w", l.key, err)
	}
	return r.Holder, nil
}
