package kube

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// costAnnotation is read by the ReplicaSet controller.
const costAnnotation = "controller.kubernetes.io/pod-deletion-cost"

// costEvery is the shortest time between two writes: the documentation of the
// annotation asks not to write it often.
const costEvery = time.Minute

// CostConfig shapes [Client.DeletionCost].
type CostConfig struct {
	// Load returns how much would be lost with this pod: a greater number is deleted
	// later. It is called once a minute. Defaults to the requests in flight and the
	// connections that handlers have taken over, of all servers of the App.
	Load func() int
}

// DeletionCost writes the pod's load into its annotation
// controller.kubernetes.io/pod-deletion-cost, so that a Deployment that is scaled down
// deletes the least busy pods first. It writes at most once a minute, and only when the
// load has changed by more than a quarter and by more than ten. It ends when the
// App drains.
//
// The pod's service account needs patch for pods. That permission cannot be limited to
// one pod or to annotations: give it only where that is acceptable.
func (c *Client) DeletionCost(cfg CostConfig) lifecycle.Option {
	return lifecycle.WithSetup(func(a *lifecycle.App) error {
		if cfg.Load == nil {
			cfg.Load = func() int { return serving(a) }
		}
		a.Go("kube-deletion-cost", func(ctx context.Context) error { return c.follow(ctx, a, cfg.Load) })
		return nil
	})
}

// serving returns what the App's servers serve now.
func serving(a *lifecycle.App) (n int) {
	for _, s := range a.Status().Servers {
		n += int(s.InFlight) + s.Hijacked
	}
	return n
}

// follow writes the load until the App drains.
func (c *Client) follow(ctx context.Context, a *lifecycle.App, load func() int) error {
	defer c.Close()
	why := c.once("the pod's deletion cost is not written")
	if c.none != nil {
		why(c.none)
		return nil
	}
	tick := time.NewTicker(costEvery)
	defer tick.Stop()
	written, last := false, 0
	for {
		select {
		case <-tick.C:
		case <-a.Draining():
			return nil
		case <-ctx.Done():
			return nil
		}
		now := min(max(load(), 0), math.MaxInt32) // what the annotation can hold
		if written && !differs(last, now) {
			continue
		}
		notes := map[string]string{costAnnotation: strconv.Itoa(now)}
		patch := map[string]any{"metadata": map[string]any{"annotations": notes}}
		err := c.do(ctx, http.MethodPatch, "patch", c.podObject(), nil, patch, nil)
		c.Close() // the next request is a minute away
		switch {
		case err == nil:
			written, last = true, now
		case ctx.Err() == nil:
			why(err)
		}
	}
}

// differs reports whether the load has changed by more than a quarter and more than ten.
func differs(last, now int) bool {
	by := max(now-last, last-now)
	return by > 10 && by > max(now, last)/4
}
