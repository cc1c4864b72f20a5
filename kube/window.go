package kube

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// WindowConfig shapes [Client.Window].
type WindowConfig struct {
	// Margin is the time from the moment at which the endpoints have changed to the end
	// of the window. In it every node's kube-proxy, every ingress and every mesh reads
	// the change and acts on it. Defaults to 2 s.
	Margin time.Duration

	// Services are the names of the Services to look at. Defaults to all of the
	// namespace that have the pod as an endpoint; then the stop of each pod reads all
	// EndpointSlices of the namespace once.
	Services []string
}

// Window makes the App end its drain window when the cluster has noticed the stop. From
// T0 on it follows the EndpointSlices of the pod's Services:
//
//   - When the pod's endpoint is not ready, terminating or gone in every slice that had
//     it, and each of these Services has another endpoint that is ready, the window
//     ends Margin later, but not before DrainMin.
//   - While the pod's endpoint is in service, the window lasts, until DrainMax.
//   - In all other cases the window is DrainInterval: without another ready endpoint,
//     for a pod of no Service, without permission, outside a cluster, and when the API
//     server does not answer. One log line says why.
//
// The pod's service account needs list and watch for endpointslices of
// discovery.k8s.io. At rest Window costs one request at the start of the App, which
// shows whether the permission is there.
func (c *Client) Window(cfg WindowConfig) lifecycle.Option {
	return lifecycle.WithSetup(func(a *lifecycle.App) error {
		if cfg.Margin < 0 {
			return fmt.Errorf("kube: Margin is %v, want 0 (its default) or more", cfg.Margin)
		}
		cfg.Margin = cmp.Or(cfg.Margin, 2*time.Second)
		w := &window{client: c, app: a, WindowConfig: cfg, why: c.once("the drain window does not follow the endpoints")}
		a.Go("kube-window", w.run)
		return nil
	})
}

// window follows the endpoints of one stop. Only its unit's goroutine uses it.
type window struct {
	WindowConfig
	client *Client
	app    *lifecycle.App
	why    func(error)

	longest time.Time // when the window ends at the latest
	slices  map[string]slice
	had     map[string]bool // names of the Services that had the pod as an endpoint
	noticed time.Time       // since when the cluster sends clients elsewhere; zero while it does not
	state   string          // the last one that was logged
}

// slice is the used part of an EndpointSlice (discovery.k8s.io/v1).
type slice struct {
	Metadata struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Endpoints []endpoint `json:"endpoints"`
}

type endpoint struct {
	Conditions struct {
		Ready       *bool `json:"ready"`
		Serving     *bool `json:"serving"`
		Terminating *bool `json:"terminating"`
	} `json:"conditions"`
	TargetRef struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
	} `json:"targetRef"`
}

const serviceLabel = "kubernetes.io/service-name"

func (s slice) service() string {
	if name := s.Metadata.Labels[serviceLabel]; name != "" {
		return name
	}
	return s.Metadata.Name
}

// inService reports whether new clients may be sent to the endpoint. A missing condition
// counts as a good one (the API's rule). With publishNotReadyAddresses an endpoint is
// always ready, so the other two conditions decide.
func (e endpoint) inService() bool {
	yes := func(c *bool) bool { return c == nil || *c }
	return yes(e.Conditions.Ready) && yes(e.Conditions.Serving) && !value(e.Conditions.Terminating)
}

func (w *window) endpointSlices() object {
	return object{group: "discovery.k8s.io", version: "v1", resource: "endpointslices", namespace: w.client.cfg.Namespace}
}

func (w *window) run(ctx context.Context) error {
	defer w.client.Close()
	var page struct{}
	err := w.client.do(ctx, http.MethodGet, "list", w.endpointSlices(), url.Values{"limit": {"1"}}, nil, &page)
	if err != nil && ctx.Err() == nil {
		w.why(err)
	}
	w.client.Close() // until the stop, which may be months away, it needs no connection
	select {
	case <-w.app.Draining():
	case <-ctx.Done():
		return nil
	}
	cfg, t0 := w.app.Config(), time.Now()
	w.longest = t0.Add(max(cfg.DrainInterval, cfg.DrainMax, 0))
	ctx, cancel := context.WithDeadline(ctx, w.longest)
	defer cancel()
	query := url.Values{}
	if len(w.Services) > 0 {
		query.Set("labelSelector", serviceLabel+" in ("+strings.Join(w.Services, ",")+")")
	}
	var trouble error
	observe(ctx, w.client, observed[slice]{
		object: w.endpointSlices(),
		query:  query,
		read: func(ctx context.Context) (string, error) {
			version, err := w.read(ctx, query)
			if err == nil && len(w.had) == 0 {
				cancel() // no Service has the pod, and none will have it now
			}
			return version, err
		},
		take: w.take,
		trouble: func(err error) {
			trouble = err
			w.unknown(err)
		},
	})
	if w.slices == nil && trouble == nil {
		w.why(fmt.Errorf("kube: list %s: no answer before the end of the window", w.endpointSlices()))
	}
	return nil
}

// unknown gives the window its own length again.
func (w *window) unknown(err error) {
	w.noticed = time.Time{}
	w.app.EndWindow(time.Time{})
	w.why(err)
}

// read reads the endpoints as they are, and returns the version from which a watch goes on.
func (w *window) read(ctx context.Context, query url.Values) (version string, err error) {
	all, err := list[slice](ctx, w.client, w.endpointSlices(), query)
	if err != nil {
		return "", err
	}
	w.slices = make(map[string]slice)
	if w.had == nil {
		w.had = make(map[string]bool)
	}
	for _, s := range all.Items {
		if slices.ContainsFunc(s.Endpoints, w.own) {
			w.had[s.service()] = true
		}
	}
	for _, s := range all.Items {
		if w.had[s.service()] {
			w.slices[s.Metadata.Name] = s
		}
	}
	w.decide()
	return all.Metadata.ResourceVersion, nil
}

// take takes over a change of a slice.
func (w *window) take(kind string, s slice) {
	switch {
	case kind == "DELETED":
		delete(w.slices, s.Metadata.Name)
	case w.had[s.service()]:
		w.slices[s.Metadata.Name] = s
	default:
		return
	}
	w.decide()
}

func (w *window) own(e endpoint) bool {
	return e.TargetRef.Kind == "Pod" && e.TargetRef.Name == w.client.cfg.Pod
}

// decide moves the end of the window to what the endpoints say now.
func (w *window) decide() {
	in, others := false, make(map[string]bool)
	for _, s := range w.slices {
		for _, e := range s.Endpoints {
			switch {
			case !e.inService():
			case w.own(e):
				in = true
			default:
				others[s.service()] = true
			}
		}
	}
	switch {
	case len(w.had) == 0:
		w.note("no Service has the pod as an endpoint: the window keeps its length")
		w.app.EndWindow(time.Time{})
	case in:
		w.noticed = time.Time{}
		w.note("the pod's endpoint is in service: the window lasts until it is not")
		w.app.EndWindow(w.longest)
	case len(others) < len(w.had):
		w.noticed = time.Time{}
		w.note("no other endpoint is ready: the window keeps its length")
		w.app.EndWindow(time.Time{})
	case w.noticed.IsZero():
		w.noticed = time.Now()
		w.note("the pod's endpoint is out of service: the window ends after the margin")
		w.app.EndWindow(w.noticed.Add(w.Margin))
	}
}

// note logs what the endpoints say, once.
func (w *window) note(state string) {
	if state != w.state {
		w.state = state
		w.client.cfg.Logger.Info(state)
	}
}
