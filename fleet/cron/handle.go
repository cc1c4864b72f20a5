package cron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/internal/asynclog"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Tick is a time of a schedule.
type Tick struct {
	// Schedule is the schedule's name.
	Schedule string
	// ID identifies the time. Every call for it has this ID, and no other time ever has it: give
	// it to the effect as its idempotency key, for example to workflow.Key.
	ID string
	// At is when the server stored it, by the server's clock: within a second of the time, or when
	// the server was started again.
	At time.Time
	// Attempt is 1 for the first call.
	Attempt int
	// Data is the schedule's.
	Data []byte
}

const (
	// ackWait is how long the server waits for a sign of the process that has a tick.
	ackWait = 30 * time.Second
	// heartbeat is how often the process gives one.
	heartbeat = ackWait / 3
	// beatTime is how long a sign waits for the server's answer; then the next one is given.
	beatTime = 2 * time.Second
	// answerTime bounds a question to the server.
	answerTime = 5 * time.Second
	// patience is how long a function may take to return when its context has ended.
	patience = time.Second
	// trusted is how long after the begin of an answered heartbeat the tick is this process's.
	trusted = ackWait - heartbeat/2 - patience
)

// again is the pause after a call that failed.
var again = worker.Backoff{Min: time.Second, Max: 5 * time.Minute, Jitter: 0.2}

func durable(name string) string { return "cron_" + name }

// Handle calls do at each time of a schedule, until ctx ends; then it returns nil. Any number of
// processes may run it: one call runs at a time among all of them. The schedule need not exist yet.
//
// An error or a panic of do is a failure: it is logged, by the App's logger in a unit and else by
// slog.Default, and the call comes again after a pause that grows from a second to five minutes, in
// whichever process is free, until it succeeds or the schedule's next time comes. A call may come again
// after a crash: see [Tick].ID. The context of do ends with ctx, and when the server has not answered
// for 24 seconds: after 30 it gives the tick to another process. Handle waits a second for a do that
// ignores that. A call goes on when [Remove] removes the schedule.
//
// Handle returns an error when the stream or the consumer is gone or cannot be reached. Run it
// where a failure is tried again, as App.Supervise does.
func Handle(ctx context.Context, js jetstream.JetStream, stream, name string, do func(context.Context, Tick) error) error {
	err := handle(ctx, js, stream, name, do)
	if err == nil || ctx.Err() != nil {
		return nil //nolint:nilerr // the end of ctx is no failure
	}
	return fmt.Errorf("handle the schedule %q of %s: %w", name, stream, natserr.Plain(err))
}

func handle(ctx context.Context, js jetstream.JetStream, stream, name string, do func(context.Context, Tick) error) error {
	switch {
	case !validName.MatchString(name):
		return fmt.Errorf("%w: its name must be 1 to 64 letters, digits, - and _", ErrInvalid)
	case do == nil:
		return fmt.Errorf("%w: its function is nil", ErrInvalid)
	}
	attempt, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	at, err := open(attempt, js, stream)
	if err != nil {
		return err
	}
	consumer, err := at.CreateOrUpdateConsumer(attempt, jetstream.ConsumerConfig{
		Durable:       durable(name),
		FilterSubject: Topic(stream, name),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       ackWait,
		MaxDeliver:    -1,
		MaxAckPending: 1,
	})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(1))
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, messages.Stop)
	defer func() {
		if stop() {
			messages.Stop()
		}
	}()
	for {
		msg, err := messages.Next()
		if errors.Is(err, jetstream.ErrNoHeartbeat) {
			if isGone(ctx, js, stream, name) {
				return jetstream.ErrConsumerNotFound
			}
			continue // the connection is away, and comes back
		}
		if err != nil {
			return err
		}
		if err := one(ctx, js, stream, name, msg, do); err != nil {
			return err
		}
	}
}

// one calls do for a message, and answers it. Its error is the server's.
func one(
	ctx context.Context, js jetstream.JetStream, stream, name string, msg jetstream.Msg,
	do func(context.Context, Tick) error,
) error {
	meta, err := msg.Metadata()
	if err != nil {
		return err
	}
	tick := Tick{
		Schedule: name,
		ID:       fmt.Sprintf("%s/%s@%d.%d", stream, name, meta.Sequence.Stream, meta.Timestamp.UnixNano()),
		At:       meta.Timestamp,
		Attempt:  int(meta.NumDelivered),
		Data:     msg.Data(),
	}
	own, end := context.WithCancel(ctx)
	defer end()
	c := call.Start("schedule "+name, func() error { return do(own, tick) })
	var beats sync.WaitGroup
	var beatErr error
	beats.Go(func() {
		beatErr = keep(own, js.Conn(), msg.Reply(), func(ctx context.Context) bool { return isGone(ctx, js, stream, name) })
		if beatErr != nil {
			end()
		}
	})
	select {
	case <-c.Done():
	case <-own.Done():
	}
	end()
	beats.Wait()
	err = c.Wait(own.Done(), patience)
	if err != nil && ctx.Err() == nil {
		log := cmp.Or(asynclog.Logger(ctx), slog.Default())
		log.Warn("a schedule's function failed; it is called again", "stream", stream, "schedule", name, "attempt", tick.Attempt, "error", err)
	}
	var abandoned *call.AbandonedError
	switch {
	case beatErr != nil:
		return beatErr
	case errors.As(err, &abandoned):
		return err // the server gives the tick to another process when it hears no more of this one
	case err != nil:
		return msg.NakWithDelay(again.After(int(min(meta.NumDelivered, 100))))
	}
	answer, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTime)
	defer cancel()
	return msg.DoubleAck(answer)
}

// isGone reports whether the server says that the consumer does not exist.
func isGone(ctx context.Context, js jetstream.JetStream, stream, name string) bool {
	attempt, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	_, err := js.Consumer(attempt, stream, durable(name))
	return errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound)
}

// keep tells the server that a call goes on, until ctx ends. It returns an error when the server has not
// answered for so long that it may soon give the tick to another process: a message without an answer
// may be lost in a connection that only seems to work. It returns nil also when isGone says that the
// consumer does not exist, so that no other process can get the tick. It asks that when the server has
// refused two heartbeats in a row.
func keep(ctx context.Context, nc *nats.Conn, reply string, isGone func(context.Context) bool) error {
	heard, unheard := time.Now(), false
	for wait := heartbeat; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		asked := time.Now()
		attempt, cancel := context.WithTimeout(ctx, min(beatTime, time.Until(heard.Add(trusted))))
		_, err := nc.RequestWithContext(attempt, reply, []byte("+WPI")) // as msg.InProgress, which asks for no answer
		again := unheard
		unheard = errors.Is(err, nats.ErrNoResponders)
		gone := again && unheard && isGone(attempt)
		cancel()
		switch {
		case gone:
			return nil
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the call has ended
		case err == nil:
			heard, wait = asked, heartbeat
		case time.Since(heard) >= trusted:
			return fmt.Errorf("the server has not answered for %v and may give the tick to another process: %w", trusted, err)
		default:
			wait = patience
		}
	}
}
