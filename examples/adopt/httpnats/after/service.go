package main

import (
	"context"
	"errors"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
)

// service stores orders that arrive over HTTP, and publishes and consumes them on NATS.
type service struct {
	db    *pgxpool.Pool
	queue *nats.Conn
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

// consume marks the orders that arrive as shipped, until ctx ends.
func (s *service) consume(ctx context.Context) error {
	sub, err := s.queue.QueueSubscribeSync("orders", "shipping")
	if err != nil {
		return err
	}
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the service stops
		}
		if err != nil {
			return err
		}
		if _, err := s.db.Exec(context.WithoutCancel(ctx), "update orders set shipped = true where id = $1", string(msg.Data)); err != nil {
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
