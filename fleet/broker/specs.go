package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
)

// SpecError says how an existing bucket or stream differs from its declaration. The
// bucket or stream is unchanged.
type SpecError struct {
	Kind        string // "bucket" or "stream"
	Name        string
	Differences []Difference
}

// Difference is one setting.
type Difference struct {
	Setting   string // "history", "replicas", …
	Is, Wants string
}

// Error names every setting that differs, with its value and the declared one.
func (e *SpecError) Error() string {
	parts := make([]string, len(e.Differences))
	for i, d := range e.Differences {
		parts[i] = fmt.Sprintf("%s is %s, want %s", d.Setting, d.Is, d.Wants)
	}
	return fmt.Sprintf("%s %s is not what was declared: %s; change the declaration, or the %s with the nats command",
		e.Kind, e.Name, strings.Join(parts, ", "), e.Kind)
}

// differ adds a setting to e when its value differs from the declared one.
func differ[T comparable](e *SpecError, setting string, is, wants T) {
	if is != wants {
		e.Differences = append(e.Differences, Difference{setting, fmt.Sprint(is), fmt.Sprint(wants)})
	}
}

// Ensure creates missing buckets and streams and compares existing ones with their
// declarations. Two processes may call it at the same time. It goes on after an error
// and returns all errors, joined. A difference is a [*SpecError].
func Ensure(ctx context.Context, js jetstream.JetStream, buckets []jetstream.KeyValueConfig, streams []jetstream.StreamConfig) error {
	return ensure(ctx, js, buckets, streams, func(string) {})
}

// ensure is Ensure that calls made for each bucket and stream that it has created.
func ensure(
	ctx context.Context, js jetstream.JetStream, buckets []jetstream.KeyValueConfig, streams []jetstream.StreamConfig,
	made func(what string),
) error {
	var errs []error
	for _, want := range buckets {
		errs = append(errs, ensureBucket(ctx, js, want, made))
	}
	for _, want := range streams {
		errs = append(errs, ensureStream(ctx, js, want, made))
	}
	return errors.Join(errs...)
}

func ensureBucket(
	ctx context.Context, js jetstream.JetStream, want jetstream.KeyValueConfig, made func(what string),
) error {
	kv, err := js.KeyValue(ctx, want.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		if _, err = js.CreateKeyValue(ctx, want); err == nil {
			made("bucket " + want.Bucket)
			return nil
		}
		// Another process may have created it first, with another declaration.
		if found, again := js.KeyValue(ctx, want.Bucket); again == nil {
			kv, err = found, nil
		}
	}
	if err != nil {
		return fmt.Errorf("create bucket %q: %w", want.Bucket, explain(err))
	}
	status, err := kv.Status(ctx)
	if err != nil {
		return fmt.Errorf("look at bucket %q: %w", want.Bucket, err)
	}
	is := status.Config()
	e := &SpecError{Kind: "bucket", Name: want.Bucket}
	differ(e, "history", max(is.History, 1), max(want.History, 1))
	differ(e, "replicas", max(is.Replicas, 1), max(want.Replicas, 1))
	differ(e, "storage", is.Storage, want.Storage)
	differ(e, "TTL", is.TTL, want.TTL)
	differ(e, "delete marker TTL", is.LimitMarkerTTL, want.LimitMarkerTTL)
	differ(e, "max bytes", limit(is.MaxBytes), limit(want.MaxBytes))
	differ(e, "max value size", limit(int64(is.MaxValueSize)), limit(int64(want.MaxValueSize)))
	differ(e, "compression", is.Compression, want.Compression)
	if len(e.Differences) > 0 {
		return e
	}
	return nil
}

func ensureStream(
	ctx context.Context, js jetstream.JetStream, want jetstream.StreamConfig, made func(what string),
) error {
	stream, err := js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if _, err = js.CreateStream(ctx, want); err == nil {
			made("stream " + want.Name)
			return nil
		}
		if found, again := js.Stream(ctx, want.Name); again == nil {
			stream, err = found, nil
		}
	}
	if err != nil {
		return fmt.Errorf("create stream %q: %w", want.Name, explain(err))
	}
	is := stream.CachedInfo().Config
	e := &SpecError{Kind: "stream", Name: want.Name}
	differ(e, "subjects", strings.Join(is.Subjects, " "), strings.Join(want.Subjects, " "))
	differ(e, "mirrored stream", mirrored(is), mirrored(want))
	differ(e, "retention", is.Retention, want.Retention)
	differ(e, "discard", is.Discard, want.Discard)
	differ(e, "storage", is.Storage, want.Storage)
	differ(e, "replicas", max(is.Replicas, 1), max(want.Replicas, 1))
	differ(e, "max age", is.MaxAge, want.MaxAge)
	differ(e, "max messages", limit(is.MaxMsgs), limit(want.MaxMsgs))
	differ(e, "max messages per subject", limit(is.MaxMsgsPerSubject), limit(want.MaxMsgsPerSubject))
	differ(e, "max bytes", limit(is.MaxBytes), limit(want.MaxBytes))
	differ(e, "max message size", limit(int64(is.MaxMsgSize)), limit(int64(want.MaxMsgSize)))
	if want.Duplicates != 0 {
		differ(e, "duplicate window", is.Duplicates, want.Duplicates)
	}
	if len(e.Differences) > 0 {
		return e
	}
	return nil
}

// mirrored returns the stream that another one mirrors.
func mirrored(c jetstream.StreamConfig) string {
	if c.Mirror == nil {
		return "none"
	}
	return c.Mirror.Name
}

// limit formats a limit for people: 0 and -1 both mean none.
func limit(n int64) string {
	if n <= 0 {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

// explain adds a remedy to errors that name none.
func explain(err error) error {
	switch {
	case errors.Is(err, jetstream.ErrHistoryTooLarge):
		return fmt.Errorf("%w: want 1 to %d", err, jetstream.KeyValueMaxHistory)
	case errors.Is(err, jetstream.ErrInvalidBucketName):
		return fmt.Errorf("%w: want letters, digits, - and _", err)
	case natserr.Is(err, natserr.ReplicasUnsupported):
		return fmt.Errorf("%w: a single server keeps one replica, three need a cluster of three", err)
	}
	return err
}
