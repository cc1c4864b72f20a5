package main

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go"
)

// outbox is a queue in this process: handlers add orders, and run publishes them. What
// waits in it is lost when the process is killed; answer a request only after its order
// is stored when that must not be.
type outbox struct {
	js jetstream.JetStream

	mu      sync.Mutex // guards everything below
	waiting []string
}

func (o *outbox) add(order string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = append(o.waiting, order)
}

// run publishes until its context ends. It does not stop when the App drains: the
// handlers of this process, which fill the queue, serve until the window is over and
// their requests have ended. The context ends after that, so nothing is added any more:
// run empties the queue and returns. The connection closes later, in a hook.
func (o *outbox) run(ctx context.Context) error {
	work := context.WithoutCancel(ctx) // what run has begun is not cut
	publish := func(context.Context) error { return o.publish(work) }
	if err := lifecycle.RunLoop(ctx, 20*time.Millisecond, publish, lifecycle.WithBackoff(time.Second)); err != nil {
		return err
	}
	return o.publish(work)
}

// publish empties the queue. After an error the orders are still in it.
func (o *outbox) publish(ctx context.Context) error {
	for {
		batch := o.first(500)
		if len(batch) == 0 {
			return nil
		}
		if err := o.send(ctx, batch); err != nil {
			return err
		}
		o.remove(len(batch))
	}
}

// send publishes a batch and waits until the server has stored all of it.
func (o *outbox) send(ctx context.Context, batch []string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var stored []jetstream.PubAckFuture
	for _, order := range batch {
		ack, err := o.js.PublishAsync("orders", []byte(order), jetstream.WithMsgID(order))
		if err != nil {
			return err
		}
		stored = append(stored, ack)
	}
	for _, ack := range stored {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// first returns a copy of the first n orders, or fewer.
func (o *outbox) first(n int) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]string(nil), o.waiting[:min(n, len(o.waiting))]...)
}

func (o *outbox) remove(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting = o.waiting[n:]
}
