// Package canary finds out whether a bucket takes writes. A server whose disk was full
// accepts connections and answers reads, and gives a write no answer, also when there
// is space again: only a write tells.
//
// Begin with [Check], which writes to [Key]. Package broker calls it, and readers of a bucket,
// such as package workflow, skip the key.
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

// ErrNoWrites is wrapped by the error of [Check] for a bucket that takes no writes.
var ErrNoWrites = errors.New("the bucket takes no writes")

// answerTime is how long Check waits for the server.
const answerTime = 2 * time.Second

// Check returns nil when the bucket takes writes. It writes nothing when another write
// was stored within quiet, by the server's clock. Otherwise it stores a purge marker,
// which takes the place of the last one. Check returns nil for a bucket that does not
// exist.
func Check(ctx context.Context, js jetstream.JetStream, bucket string, quiet time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	kv, err := js.KeyValue(ctx, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check bucket %s: %w", bucket, err)
	}
	status, err := kv.Status(ctx)
	if err != nil {
		return fmt.Errorf("check bucket %s: %w", bucket, err)
	}
	if s, ok := status.(*jetstream.KeyValueBucketStatus); ok && quiet > 0 {
		if info := s.StreamInfo(); info.TimeStamp.Sub(info.State.LastTime) < quiet {
			return nil
		}
	}
	if err := kv.Purge(ctx, Key); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrNoWrites, bucket, err)
	}
	return nil
}
