package e2e

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Every loop of requests is bounded, also when something else fails.
const (
	maxRequests = 20_000           // of one client
	maxLoad     = 10 * time.Minute // of one load
	answerIn    = 30 * time.Second // a request that takes longer is lost
)

// client sends requests to 127.0.0.1:port and enters them into l until ctx
// ends. It still awaits a request that was sent.
type client func(ctx context.Context, addr string, l *ledger)

// crowd is a number of clients of one kind.
type crowd struct {
	kind   string
	number int
	client client
}

// load is a number of running crowds.
type load struct {
	ledgers []*ledger
	cancel  context.CancelFunc
	clients sync.WaitGroup
}

// startLoad starts the crowds on addr. Call stop. onLoss may be nil.
func startLoad(ctx context.Context, addr string, onLoss func(), crowds ...crowd) *load {
	ctx, cancel := context.WithTimeout(ctx, maxLoad)
	l := &load{cancel: cancel}
	for _, c := range crowds {
		led := newLedger(c.kind)
		led.onLoss = onLoss
		l.ledgers = append(l.ledgers, led)
		for range c.number {
			l.clients.Go(func() {
				if pause(ctx, rand.N(500*time.Millisecond)) { // not all at the same time
					c.client(ctx, addr, led)
				}
			})
		}
	}
	return l
}

// stop ends the load and returns when every request is accounted for.
func (l *load) stop() []*ledger {
	l.cancel()
	l.clients.Wait()
	return l.ledgers
}

// pause waits for d. It reports false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// between returns a client's idle time, anything from low to high.
func between(low, high time.Duration) func() time.Duration {
	return func() time.Duration { return low + rand.N(high-low+1) }
}
