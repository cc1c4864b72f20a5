package otel

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/pleme-io/lifecycle-go"
)

// A stop that was asked for is no error: nor is one because another process has taken over.
func TestCausesThatAreNoFailure(t *testing.T) {
	for _, cause := range []error{nil, lifecycle.ErrStopRequested, lifecycle.ErrUpgraded, fmt.Errorf("stop: %w", lifecycle.ErrUpgraded), context.Canceled} {
		if err := failure(cause); err != nil {
			t.Errorf("a stop because of %v is a failure", cause)
		}
	}
	if boom := errors.New("boom"); !errors.Is(failure(boom), boom) {
		t.Error("a stop because of an error is no failure")
	}
}
