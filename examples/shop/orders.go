package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/lease"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

const (
	bucket        = "ORDERS"
	orderWorkflow = "order"
)

// phases is the life of an order.
var phases = workflow.Transitions{
	"placed":    {"paid", "cancelled"},
	"paid":      {"shipped"},
	"shipped":   {},
	"cancelled": {},
}

// Basket is what a client orders.
type Basket struct {
	Item     string `json:"item"`
	Quantity int    `json:"quantity"`
}

// Order is stored with every change. Its ID is the client's idempotency key, so a client
// that asks twice gets one order.
type Order struct {
	ID     string `json:"id"    lifecycle:"id"`
	State  string `json:"phase" lifecycle:"phase"`
	Basket Basket `json:"basket"`
	Cents  int    `json:"cents"`
	Label  string `json:"label,omitempty"`
}

func (o *Order) EntityID() string     { return o.ID }
func (*Order) Workflow() string       { return orderWorkflow }
func (o *Order) Phase() string        { return o.State }
func (o *Order) IsTerminal() bool     { return workflow.DefaultIsTerminal(o, phases) }
func (*Order) KVBucket() string       { return bucket }
func (*Order) KVKey(id string) string { return id }
func (*Order) ParentEntityID() string { return "" }
func newOrder() workflow.Participant  { return new(Order) }

func orderOf(r workflow.Reaction) *Order {
	order, _ := r.Record.Participant.(*Order) // newOrder makes no other
	return order
}

// newManager adds the workflow. One process of all leads: it watches the deadlines and
// calls the hooks. When it is killed, another one leads as soon as the lease has expired.
func newManager(ctx context.Context, app *lifecycle.App, b *broker.Broker, payWithin time.Duration) (*workflow.Manager, error) {
	mgr := workflow.NewManager(b.JetStream(), nil)
	app.OnShutdown("orders", func(context.Context) error { return mgr.Close() })
	err := mgr.Register(orderWorkflow, newOrder, phases,
		workflow.WithJournal(),
		workflow.WithDeadline("placed", "cancelled", payWithin),
		workflow.WithHook(workflow.Hook{
			Name:   "pack",
			On:     []string{"paid"},
			Replay: true, // also what was paid before any process led
			Do:     func(ctx context.Context, r workflow.Reaction) error { return pack(ctx, b.JetStream(), r) },
		}))
	if err != nil {
		return nil, err
	}
	for name, lead := range map[string]func(context.Context) error{"deadlines": mgr.Deadlines, "hooks": mgr.Hooks} {
		l, err := lease.New(ctx, b.JetStream(), lease.Config{Bucket: "LEASES", Key: name})
		if err != nil {
			return nil, err
		}
		app.Lead(name, l, lead)
	}
	return mgr, nil
}

// pack hands an order that was paid to the hosted worker. A hook may be called more than
// once; the stream keeps one message of each ID.
func pack(ctx context.Context, js jetstream.JetStream, r workflow.Reaction) error {
	data, err := json.Marshal(orderOf(r))
	if err != nil {
		return err
	}
	_, err = js.Publish(ctx, parcelOf+r.Record.EntityID, data, jetstream.WithMsgID(r.ID))
	return err
}
