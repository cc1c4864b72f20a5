package operator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	foreign "github.com/pleme-io/lifecycle-go/internal/call"
)

// Dependency is a service behind the server, such as NATS. While it is away the server
// answers from what it knows, or with ReasonUnavailable, the name, and since when.
type Dependency struct {
	// Name of the service, for people: "NATS".
	Name string
	// Check returns nil when the service answers. The server calls it about once a
	// second, one call at a time, with a context that ends after 2 s: broker.Broker.Check.
	// A call that has not returned 2 s later counts as an error, and the next one may begin.
	Check func(ctx context.Context) error
}

// Times of the checks of dependencies.
const (
	dependencyEvery = time.Second
	dependencyTime  = 2 * time.Second
)

// outage is a dependency that does not answer.
type outage struct {
	name  string
	since time.Time
	err   error // of the latest check
}

func (o outage) String() string {
	return fmt.Sprintf("%s is away since %s (%v): %v",
		o.name, o.since.UTC().Format(time.RFC3339), time.Since(o.since).Round(time.Second), o.err)
}

// dependencies knows which dependencies are away, and since when.
type dependencies struct {
	list []Dependency
	log  *slog.Logger

	mu   sync.Mutex // guards away
	away map[string]outage
}

// run checks the dependencies until ctx ends.
func (d *dependencies) run(ctx context.Context) {
	if len(d.list) == 0 {
		return
	}
	every(ctx, dependencyEvery, func() {
		for _, dep := range d.list {
			within, cancel := context.WithTimeout(ctx, dependencyTime)
			begun := time.Now()
			err := foreign.Within(within, dep.Name, dependencyTime, func() error { return dep.Check(within) })
			cancel()
			if ctx.Err() != nil {
				return
			}
			d.note(dep.Name, begun, err)
		}
	})
}

// every calls do at once and then at regular times, until ctx ends.
func every(ctx context.Context, pause time.Duration, do func()) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		do()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// note records the result of a check. It logs the start and the end of an outage.
func (d *dependencies) note(name string, at time.Time, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	was, down := d.away[name]
	switch {
	case err != nil && down:
		d.away[name] = outage{name, was.since, err}
	case err != nil:
		d.away[name] = outage{name, at, err}
		d.log.Warn("operator: a dependency is away; answers are old or say so", "dependency", name, "error", err)
	case down:
		delete(d.away, name)
		d.log.Info("operator: the dependency is back",
			"dependency", name, "was_away", time.Since(was.since).Round(time.Second))
	}
}

// outages returns the dependencies that are away, in the order of the configuration.
func (d *dependencies) outages() (list []outage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dep := range d.list {
		if o, ok := d.away[dep.Name]; ok {
			list = append(list, o)
		}
	}
	return list
}

// asOf returns the time up to which the server knows everything: now, or the start of the
// oldest outage.
func (d *dependencies) asOf() time.Time {
	at := time.Now()
	for _, o := range d.outages() {
		if o.since.Before(at) {
			at = o.since
		}
	}
	return at
}

// sayAway puts into the header of an answer from when its content is, and what is away.
func (d *dependencies) sayAway(h http.Header) {
	h.Set(client.HeaderAsOf, d.asOf().UTC().Format(time.RFC3339Nano))
	for _, o := range d.outages() {
		h.Add(client.HeaderAway, o.name)
	}
}

// away describes the dependencies that are away, a sentence each, for pages.
func (s *Server) away() (list []string) {
	for _, o := range s.deps.outages() {
		list = append(list, fmt.Sprintf("%s has been away since %s UTC: what this page shows is from then.",
			o.name, o.since.UTC().Format("15:04:05")))
	}
	return list
}

// explain turns the error of an area into one that names the dependency that is away.
// It passes on all other errors.
func (d *dependencies) explain(err error) error {
	var ours *Error
	var ready *connect.Error
	switch {
	case err == nil, errors.As(err, &ready), errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &ours) && ours.Reason != ReasonUnavailable && ours.Reason != ReasonTimeout:
		return err
	}
	unavailable := func(format string, args ...any) error {
		e := Errorf(connect.CodeUnavailable, ReasonUnavailable, "", format, args...)
		e.Err = err
		return e
	}
	away, timedOut := natserr.Away(err), errors.Is(err, context.DeadlineExceeded)
	switch down := d.outages(); {
	case len(down) == 0 && ours != nil && ours.Reason == ReasonTimeout:
		return err
	case len(down) > 0 && ours != nil && ours.Reason == ReasonTimeout: // such as a write whose outcome is not known
		return unavailable("%s; %s", ours.Message, down[0])
	case len(down) > 0 && (away || ours != nil || timedOut):
		return unavailable("%s", down[0])
	case away:
		return unavailable("NATS does not answer: %v", natserr.Plain(err))
	case errors.Is(err, jetstream.ErrBucketNotFound), errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, nats.ErrStreamNotFound),
		natserr.Is(err, jetstream.JSErrCodeStreamNotFound):
		return unavailable("NATS does not have what this needs, and the service that owns it has not made it again: %v", err)
	}
	return err
}

// repeatLog logs a failure that repeats: the first time, when its text changes, and then
// once a minute with the number of times.
type repeatLog struct {
	mu    sync.Mutex // guards the fields below
	last  string
	at    time.Time
	times int
}

// repeatEvery is how often a failure that repeats is logged.
const repeatEvery = time.Minute

func (l *repeatLog) warn(log *slog.Logger, what string, err error, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times++
	text := fmt.Sprint(err)
	if text == l.last && time.Since(l.at) < repeatEvery {
		return
	}
	log.Warn(what, append(args, "error", err, "times", l.times)...)
	l.last, l.at, l.times = text, time.Now(), 0
}
