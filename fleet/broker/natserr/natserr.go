// Package natserr recognizes the server's errors by their codes. The texts of these
// errors differ between one replica and several, and between versions of the server.
//
// It is separate from package broker so that a client of the server does not compile
// the server.
//
// Begin with [Is] for a code and with [Conflict], [Away] and [TooLarge] for a meaning.
// [Plain] is for the text of an outage.
package natserr

import (
	"errors"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Codes of the server for which package jetstream has no name.
const (
	ClusterNotAvailable   jetstream.ErrorCode = 10008 // JSClusterNotAvailErr
	InsufficientResources jetstream.ErrorCode = 10023 // JSInsufficientResourcesErr
	MemoryExceeded        jetstream.ErrorCode = 10028 // JSMemoryResourcesExceededErr
	StorageExceeded       jetstream.ErrorCode = 10047 // JSStorageResourcesExceededErr
	MessageTooLarge       jetstream.ErrorCode = 10054 // JSStreamMessageExceedsMaximumErr
	ReplicasUnsupported   jetstream.ErrorCode = 10074 // JSStreamReplicasNotSupportedErr
	StoreFailed           jetstream.ErrorCode = 10077 // JSStreamStoreFailedF: usually the stream is full
	HeadersTooLarge       jetstream.ErrorCode = 10097 // JSStreamHeaderExceedsMaximumErr
	WorkQueueDeliversAll  jetstream.ErrorCode = 10101 // JSConsumerWQConsumerNotDeliverAllErr
)

// Code returns the code of the server's error that err wraps, or 0 when err wraps none.
func Code(err error) jetstream.ErrorCode {
	var refusal jetstream.JetStreamError
	if errors.As(err, &refusal) && refusal.APIError() != nil {
		return refusal.APIError().ErrorCode
	}
	return 0
}

// Is reports whether err wraps an error of the server with one of the codes.
func Is(err error, codes ...jetstream.ErrorCode) bool {
	code := Code(err)
	return code != 0 && slices.Contains(codes, code)
}

// Conflict reports whether the server refused a write because another writer was
// faster: the key or the subject does not have the expected revision. A replicated
// stream also returns this error while another write is in progress.
func Conflict(err error) bool {
	return Is(err, jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// Away reports whether err says that no server answered, so that the call may succeed
// later: the connection is broken, no JetStream is there, or its cluster has no leader.
func Away(err error) bool {
	away := []error{
		nats.ErrConnectionClosed, nats.ErrConnectionReconnecting, nats.ErrDisconnected, nats.ErrReconnectBufExceeded, nats.ErrNoServers,
		nats.ErrNoResponders, nats.ErrTimeout, nats.ErrStaleConnection, nats.ErrConnectionDraining, jetstream.ErrNoStreamResponse,
	}
	return slices.ContainsFunc(away, func(target error) bool { return errors.Is(err, target) }) ||
		Is(err, ClusterNotAvailable, InsufficientResources)
}

// Plain returns an error whose text says "disconnected" where the client says "outbound
// buffer limit exceeded". A broker's connection keeps no writes for later, so this is what
// every request returns while there is no server. The chain of err stays as it is.
func Plain(err error) error {
	if !errors.Is(err, nats.ErrReconnectBufExceeded) {
		return err
	}
	return plain{err}
}

// plain is an error during an outage.
type plain struct{ error }

func (p plain) Error() string {
	return strings.ReplaceAll(p.error.Error(), nats.ErrReconnectBufExceeded.Error(), "nats: disconnected")
}

func (p plain) Unwrap() error { return p.error }

// TooLarge reports whether a server, or the client before it, refuses a message because of
// its size. It would refuse it again.
func TooLarge(err error) bool {
	return errors.Is(err, nats.ErrMaxPayload) || Is(err, MessageTooLarge)
}
