package workflow

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
)

// Key gives a write an idempotency key, for a caller that may crash or lose the
// answer and then asks again, from any process: the write with that key happens once. A
// later write of the same entity with the same key writes nothing and returns nil, also
// when it is not the same verb. [RevisionTo] gets the revision of the first.
//
//	key := "order-77/ship" // the same after a restart
//	err := orders.Transition(ctx, "77", "shipped", workflow.TransitionSourceComponent, "", workflow.Key(key))
//
// Every write of an entity, a deletion too, carries the keys of its last [MaxKeys] writes with
// a key. So the check is part of the compare-and-set, without another request. An older key is
// not known any more: a write with it happens again. The keys are also lost when another program
// writes the entity. An empty key does nothing.
func Key(key string) WriteOption {
	return func(w *writeOptions) { w.key = keyHash(key) }
}

// MaxKeys is how many idempotency keys an entity remembers.
const MaxKeys = 64

// Landed answers a caller that does not know whether its write with [Key] happened:
// the revision of that write, and whether there is one among the entity's last [MaxKeys]
// writes with a key. It asks the server.
func (m *Manager) Landed(ctx context.Context, workflow, entityID, key string) (revision uint64, landed bool, err error) {
	r, at, err := m.locate(workflow, entityID)
	var cur *entry
	if err == nil {
		cur, err = r.bucket.last(ctx, at)
	}
	if err != nil && !isNotFound(err) {
		return 0, false, fmt.Errorf("look for a write of %s %q: %w", workflow, entityID, err)
	}
	revision, landed = cur.landed(keyHash(key))
	return revision, landed, nil
}

// hashLen is the length of a key's hash: 60 bits. That a key counts as one of 64 others happens
// once in 18 quadrillion writes.
const hashLen = 10

// hashes is base64 for headers, without the letter N: the server looks for its own headers in those
// of each message some twenty times, by their first letter.
var hashes = base64.NewEncoding("ABCDEFGHIJKLM.OPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_").WithPadding(base64.NoPadding)

// keyHash makes a key short and fit for a header.
func keyHash(key string) string {
	if key == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(key))
	return hashes.EncodeToString(sum[:8])[:hashLen]
}

// landed returns the revision of the write with a key, if the entry has it.
func (e *entry) landed(hash string) (revision uint64, ok bool) {
	if e == nil || hash == "" || !strings.Contains(e.keys, hash) {
		return 0, false
	}
	for key := range strings.SplitSeq(e.keys, ",") {
		at, is := strings.CutPrefix(key, hash)
		if !is {
			continue
		}
		if at == "" {
			return e.revision, true
		}
		if n, err := strconv.ParseUint(at, 36, 64); err == nil {
			return n, true
		}
	}
	return 0, false
}

// addKey returns the keys that the write behind cur carries: cur's keys, and hash unless it is
// "". They are separated by commas, the oldest first: each is a hash and the revision of its write
// in base 36. The revision of this write is not known yet, so its key is the hash alone. Every byte
// goes through the client, the server and its disk with each write, so keys are short.
func addKey(cur *entry, hash string) string {
	var keys []string
	if cur != nil && cur.keys != "" {
		keys = strings.Split(cur.keys, ",")
		if newest := &keys[len(keys)-1]; len(*newest) == hashLen {
			*newest += strconv.FormatUint(cur.revision, 36)
		}
	}
	if hash != "" {
		keys = append(keys, hash)
	}
	return strings.Join(keys[max(0, len(keys)-MaxKeys):], ",")
}

// landedError says that the write with this key has happened. It is not returned to
// callers.
type landedError struct{ revision uint64 }

func (e *landedError) Error() string {
	return fmt.Sprintf("it has happened as revision %d", e.revision)
}

// repeated turns the error of a write that has happened into its result. cur is the record.
func (o *operation) repeated(cur *entry, err error) error {
	landed, ok := err.(*landedError) //nolint:errorlint // it is never wrapped
	if !ok {
		return err
	}
	if o.options.revision != nil {
		*o.options.revision = landed.revision
	}
	if o.options.result != nil && !cur.deleted() {
		*o.options.result, err = o.r.decode(cur)
		return err
	}
	return nil
}
