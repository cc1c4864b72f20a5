package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/pleme-io/lifecycle-go/procpool"
)

// front is what clients see. A client that got no answer, or a 503, asks again with the
// same Idempotency-Key, at any process.
type front struct {
	orders workflow.Typed[*Order]
	prices prices
}

func (f *front) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders", answer(http.StatusCreated, f.place))
	mux.HandleFunc("POST /orders/{id}/pay", answer(http.StatusOK, f.pay))
	mux.HandleFunc("GET /orders/{id}", answer(http.StatusOK, f.show))
	return mux
}

var (
	errNoKey    = errors.New("a request that changes something needs the header Idempotency-Key")
	errOtherKey = errors.New("this Idempotency-Key was used for another basket")
	errBody     = errors.New(`want a basket, such as {"item":"tea","quantity":3}`)
)

func (f *front) place(r *http.Request) (*Order, error) {
	order := &Order{ID: r.Header.Get("Idempotency-Key"), State: "placed"}
	if order.ID == "" {
		return nil, errNoKey
	}
	if json.NewDecoder(http.MaxBytesReader(nil, r.Body, 1<<10)).Decode(&order.Basket) != nil {
		return nil, errBody
	}
	var err error
	if order.Cents, err = f.prices.of(r.Context(), order.Basket); err != nil {
		return nil, err
	}
	err = f.orders.Create(r.Context(), order)
	if !errors.Is(err, workflow.ErrEntityExists) {
		return order, err
	}
	first, err := f.orders.Get(r.Context(), order.ID) // by then it may be paid
	if err == nil && first.Basket != order.Basket {
		return nil, errOtherKey
	}
	return first, err
}

// pay pays an order once for each key, also when the answer to the first request was lost.
func (f *front) pay(r *http.Request) (*Order, error) {
	id, key := r.PathValue("id"), r.Header.Get("Idempotency-Key")
	if key == "" {
		return nil, errNoKey
	}
	err := f.orders.Transition(r.Context(), id, "paid", workflow.TransitionSourceOperator, "", workflow.Key(key))
	if err != nil {
		return nil, err
	}
	return f.orders.Get(r.Context(), id)
}

func (f *front) show(r *http.Request) (*Order, error) {
	return f.orders.Get(r.Context(), r.PathValue("id"))
}

// answer writes the order that do returns, or its error with the status that it means.
func answer(status int, do func(*http.Request) (*Order, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		order, err := do(r)
		if err != nil {
			http.Error(w, err.Error(), statusOf(err))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(order)
	}
}

func statusOf(err error) int {
	var refused *procpool.WorkerError // price.py has raised an error
	switch {
	case errors.Is(err, errNoKey), errors.Is(err, errBody), errors.Is(err, workflow.ErrInvalidEntityID):
		return http.StatusBadRequest
	case errors.Is(err, workflow.ErrEntityNotFound):
		return http.StatusNotFound
	case errors.Is(err, workflow.ErrInvalidTransition), errors.Is(err, workflow.ErrTerminalPhase):
		return http.StatusConflict
	case errors.Is(err, errOtherKey), errors.As(err, &refused):
		return http.StatusUnprocessableEntity
	case errors.Is(err, context.Canceled):
		return 499 // the client has gone
	}
	return http.StatusServiceUnavailable // ask again with the same key
}
