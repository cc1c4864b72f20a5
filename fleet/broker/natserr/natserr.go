// Package natserr tells what the server refuses by its codes. The server's texts
// differ between one replica and several, and between versions.
//
// It is apart from package broker so that a client of the server does not build
// the server.
package natserr

import (
	"errors"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// The server's codes that package jetstream has no name for.
const (
	InsufficientResources jetstream.ErrorCode = 10023 // JSInsufficientResourcesErr
	MemoryExceeded        jetstream.ErrorCode = 10028 // JSMemoryResourcesExceededErr
	StorageExceeded       jetstream.ErrorCode = 10047 // JSStorageResourcesExceededErr
	ReplicasUnsupported   jetstream.ErrorCode = 10074 // JSStreamReplicasNotSupportedErr
	StoreFailed           jetstream.ErrorCode = 10077 // JSStreamStoreFailedF: mostly because the stream is full
	HeadersTooLarge       jetstream.ErrorCode = 10097 // JSStreamHeaderExceedsMaximumErr
	WorkQueueDeliversAll  jetstream.ErrorCode = 10101 // JSConsumerWQConsumerNotDeliverAllErr
)

// Code returns the code of the server's refusal that err wraps, and 0 when it
// wraps none.
func Code(err error) jetstream.ErrorCode {
	var refusal jetstream.JetStreamError
	if errors.As(err, &refusal) && refusal.APIError() != nil {
		return refusal.APIError().ErrorCode
	}
	return 0
}

// Is reports whether err wraps a refusal with one of the codes.
func Is(err error, codes ...jetstream.ErrorCode) bool {
	code := Code(err)
	return code != 0 && slices.Contains(codes, code)
}

// Conflict reports whether a write was refused because another writer was
// faster: the key or the subject has another revision than the one expected. A
// replicated stream also says so while another write is under way.
func Conflict(err error) bool {
	return Is(err, jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
