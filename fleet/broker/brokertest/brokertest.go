package brokertest

import (
	"cmp"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
)

// patience is how long a test waits for a condition, on a machine that may be busy.
const patience = 60 * time.Second

// Quiet returns a logger that discards everything.
func Quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// Embedded returns a broker with a server in this process, on a temporary folder. Both
// end with the test. Empty fields of cfg get values for speed: the operating system
// chooses when to flush writes; the server does not flush each one.
func Embedded(tb testing.TB, cfg broker.Config) *broker.Broker {
	tb.Helper()
	if cfg.StoreDir == "" {
		cfg.StoreDir = tb.TempDir()
	}
	cfg.Sync = cmp.Or(cfg.Sync, broker.SyncInterval)
	return Connect(tb, cfg)
}

// Connect calls [broker.Connect], and closes the broker when the test ends.
func Connect(tb testing.TB, cfg broker.Config) *broker.Broker {
	tb.Helper()
	cfg.Logger = cmp.Or(cfg.Logger, Quiet())
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b, err := broker.Connect(ctx, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = b.Close(ctx) // a test may have taken its server away
	})
	return b
}

// Await waits until is returns true. It fails the test after a minute. What is costs is at most
// a fifth of the time, so that it does not keep others from what it waits for.
func Await(tb testing.TB, what string, is func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); ; {
		began := time.Now()
		if is() {
			return
		}
		if began.After(end) {
			tb.Fatalf("waited %v for %s", patience, what)
		}
		time.Sleep(max(5*time.Millisecond, 4*time.Since(began)))
	}
}
