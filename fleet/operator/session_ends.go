package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// SessionEnds remembers which sessions of the dashboard have ended, for all replicas of a
// server. [OpenSessionEnds] returns one.
type SessionEnds interface {
	// End remembers that a session has ended. It may forget it after the longest life of
	// a session, which is 12 hours.
	End(ctx context.Context, id string) error
	// Ended reports whether a session has ended.
	Ended(ctx context.Context, id string) (bool, error)
}

// OpenSessionEnds returns a SessionEnds in a bucket of JetStream, which it creates when it
// is missing; "" is FLEET_SESSIONS.
func OpenSessionEnds(ctx context.Context, js jetstream.JetStream, bucket string) (SessionEnds, error) {
	if bucket == "" {
		bucket = "FLEET_SESSIONS"
	}
	kv, err := js.KeyValue(ctx, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket:       bucket,
			Description:  "sessions of the operators' dashboard that have ended",
			TTL:          sessionAge,
			History:      1,
			MaxValueSize: 1 << 10,
			MaxBytes:     256 << 20,
		})
		if errors.Is(err, jetstream.ErrBucketExists) { // another replica was faster
			kv, err = js.KeyValue(ctx, bucket)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("operator: sessions: %w", err)
	}
	return sessionBucket{kv}, nil
}

type sessionBucket struct{ kv jetstream.KeyValue }

func (b sessionBucket) End(ctx context.Context, id string) error {
	_, err := b.kv.PutString(ctx, id, "ended")
	return err
}

func (b sessionBucket) Ended(ctx context.Context, id string) (bool, error) {
	_, err := b.kv.Get(ctx, id)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return false, nil
	}
	return err == nil, err
}

// endsTime is how long one look may take.
const endsTime = 500 * time.Millisecond

// over reports whether a session has ended, here or on another replica. While the other
// replicas cannot be asked, what is known here counts: the dashboard must show what is
// wrong then.
func (l *sessions) over(ctx context.Context, s session) bool {
	l.mu.Lock()
	_, ended := l.ended[s.ID]
	l.mu.Unlock()
	if ended || l.ends == nil {
		return ended
	}
	ctx, cancel := context.WithTimeout(ctx, endsTime)
	defer cancel()
	ended, err := l.ends.Ended(ctx, s.ID)
	if err != nil {
		l.lost.warn(l.log, "operator: it is not known whether a session has ended on another replica", err)
		return false
	}
	return ended
}

// endedSession is a session that has ended, until it expires anyway.
type endedSession struct {
	owner string
	until time.Time
}

// owner names the person or the token of a session.
func (s *session) owner() string {
	if s.Who != nil {
		return s.Who.Issuer + " " + s.Who.Name
	}
	return s.Token
}

// forget remembers here that a session has ended. When one person ends very many, the
// oldest of that person are forgotten, and no others.
func (l *sessions) forget(s session) {
	now, owner := time.Now(), s.owner()
	l.mu.Lock()
	defer l.mu.Unlock()
	n, oldest := 0, ""
	for id, e := range l.ended {
		switch {
		case now.After(e.until):
			delete(l.ended, id)
		case e.owner == owner:
			if n++; oldest == "" || e.until.Before(l.ended[oldest].until) {
				oldest = id
			}
		}
	}
	if n >= maxEnded {
		delete(l.ended, oldest)
	}
	l.ended[s.ID] = endedSession{owner, s.Until}
}
