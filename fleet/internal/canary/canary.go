// Package canary finds out whether a bucket takes writes. A server whose disk was full
// accepts connections and answers reads, and gives a write no answer, also when there
// is space again.
//
// Begin with [Check], which writes to [Key]: a process calls it when it has a reason to doubt. Readers
// of a bucket, such as package workflow, skip the key. [Failed] stores nothing.
package canary

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Key is the key that a canary is written to. The package workflow hides it.
const Key = "_lifecycle.canary"

// ErrNoWrites is wrapped by the error of [Check] and [Failed] for a bucket that takes no writes.
var ErrNoWrites = errors.New("the bucket takes no writes")

// answerTime is how long Check and Failed wait for the server.
const answerTime = 2 * time.Second

// Check returns nil when the bucket takes a write. It stores a purge marker, which takes the
// place of the last one in the bucket, but not in a mirror of it. Check returns nil for a
// bucket that does not exist.
func Check(ctx context.Context, js jetstream.JetStream, bucket string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	kv, err := js.KeyValue(ctx, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check bucket %s: %w", bucket, err)
	}
	if err := kv.Purge(ctx, Key); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrNoWrites, bucket, err)
	}
	return nil
}

// Failed returns an error when a write to the bucket has failed on the server's disk: the server
// stores nothing in it from then on. It asks the server to remove what is under a key that has
// nothing, which such a server refuses. It needs the right to purge the bucket's stream. Failed
// returns nil for a bucket that does not exist.
func Failed(ctx context.Context, js jetstream.JetStream, bucket string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	stream, err := js.Stream(ctx, "KV_"+bucket)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check bucket %s: %w", bucket, err)
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSubject("$KV."+bucket+"."+Key+".none")); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrNoWrites, bucket, err)
	}
	return nil
}
