package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
)

// service stores orders that arrive over HTTP, and publishes and consumes them on NATS.
type service struct {
	db    *pgxpool.Pool
	queue *nats.Conn
	ship  func(ctx context.Context, order string) error
}

func (s *service) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		if _, err := s.db.Exec(r.Context(), "insert into orders (id) values ($1)", r.PathValue("id")); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		if err := s.queue.Publish("orders", []byte(r.PathValue("id"))); err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	return mux
}

// consume marks the orders that arrive as shipped, until ctx ends. It takes its
// subscription back when it returns: after a restart NATS would give a part of the orders
// to the old one, which nothing reads any more. What that one has received is handled first.
func (s *service) consume(ctx context.Context) error {
	sub, err := s.queue.QueueSubscribeSync("orders", "shipping")
	if err != nil {
		return err
	}
	return s.shipAll(ctx, sub)
}

// shipped marks an order as shipped in the database.
func (s *service) shipped(ctx context.Context, order string) error {
	_, err := s.db.Exec(ctx, "update orders set shipped = true where id = $1", order)
	return err
}

// shipAll ships each order of the subscription until ctx ends, and then the orders that have been
// received.
func (s *service) shipAll(ctx context.Context, sub *nats.Subscription) (err error) {
	work := context.WithoutCancel(ctx)
	defer func() { err = errors.Join(err, s.drain(work, sub)) }()
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if ctx.Err() != nil && msg == nil {
			return nil // the service stops
		}
		if err != nil {
			return err
		}
		if err := s.ship(work, string(msg.Data)); err != nil {
			return err
		}
	}
}

// drain ends the subscription and ships the orders that it has received until then.
func (s *service) drain(ctx context.Context, sub *nats.Subscription) error {
	if err := sub.Drain(); err != nil {
		return err
	}
	for {
		msg, err := sub.NextMsg(time.Second)
		switch {
		case errors.Is(err, nats.ErrTimeout) && sub.IsValid():
			continue // the server has not confirmed the end yet
		case err != nil:
			return nil //nolint:nilerr // the subscription has ended, and no order is left
		}
		if err := s.ship(ctx, string(msg.Data)); err != nil {
			return err
		}
	}
}

func (s *service) connected(context.Context) error {
	if !s.queue.IsConnected() {
		return errors.New("not connected to NATS")
	}
	return nil
}
