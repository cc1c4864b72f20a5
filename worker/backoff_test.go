package worker_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/worker"
)

func TestBackoffSleepsAsLongAsAfterSays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := worker.Backoff{Min: time.Second, Max: 5 * time.Second, Jitter: worker.NoJitter}
		for n, want := range []time.Duration{time.Second, time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second} {
			began := time.Now()
			if err := b.Sleep(t.Context(), n); err != nil || time.Since(began) != want {
				t.Errorf("after %d failures: %v, %v; want %v", n, time.Since(began), err, want)
			}
		}
		over := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(over) })
		began := time.Now()
		if err := b.Sleep(ctx, 9); !errors.Is(err, over) || time.Since(began) != time.Second {
			t.Errorf("cut off: %v after %v", err, time.Since(began))
		}
		if err := b.Sleep(ctx, 1); !errors.Is(err, over) || time.Since(began) != time.Second {
			t.Errorf("with a context that has ended: %v after %v", err, time.Since(began))
		}
	})
}

// Waits of Max have jitter too. Otherwise all clients that wait for one server
// would come back to it at once.
func TestBackoffSpreadsTheLongestWaits(t *testing.T) {
	b := worker.Backoff{Min: time.Second, Max: 8 * time.Second, Jitter: 1}
	full := 0
	for range 1000 {
		switch wait := b.After(20); {
		case wait < 0 || wait > b.Max:
			t.Fatalf("waits %v", wait)
		case wait == b.Max:
			full++
		}
	}
	if full > 10 {
		t.Errorf("%d of 1000 waits are exactly Max", full)
	}
}
