package natserr_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConflictGoesByTheServersCode(t *testing.T) {
	refusal := func(code jetstream.ErrorCode) error {
		return fmt.Errorf("put: %w", &jetstream.APIError{Code: 400, ErrorCode: code, Description: "wrong last sequence: 7"})
	}
	for _, err := range []error{refusal(10071), refusal(10164), jetstream.ErrKeyExists, fmt.Errorf("create: %w", jetstream.ErrKeyExists)} {
		if !natserr.Conflict(err) {
			t.Errorf("%v is a conflict", err)
		}
	}
	for _, err := range []error{nil, errors.New("wrong last sequence: 7"), refusal(natserr.StoreFailed), refusal(0), jetstream.ErrStreamNotFound} {
		if natserr.Conflict(err) {
			t.Errorf("%v is not a conflict", err)
		}
	}
	if natserr.Is(errors.New("other"), 0) || !natserr.Is(refusal(natserr.HeadersTooLarge), natserr.StoreFailed, natserr.HeadersTooLarge) {
		t.Error("Is does not go by the server's code")
	}
}

func TestPlainNamesAnOutage(t *testing.T) {
	err := natserr.Plain(fmt.Errorf("create m-1: %w", nats.ErrReconnectBufExceeded))
	if err.Error() != "create m-1: nats: disconnected" || !errors.Is(err, nats.ErrReconnectBufExceeded) || !natserr.Away(err) {
		t.Errorf("an outage: %v", err)
	}
	if other := errors.New("other"); !errors.Is(natserr.Plain(other), other) || natserr.Plain(nil) != nil {
		t.Error("another error is changed")
	}
}
