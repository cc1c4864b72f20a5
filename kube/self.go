package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/health"
)

// SelfConfig shapes [Client.Self].
type SelfConfig struct {
	// Container is the name of the container in which this process runs. Defaults to the
	// one that the annotation kubectl.kubernetes.io/default-container names, and without the
	// annotation to the first.
	Container string

	// Strict makes a manifest that does not fit an error: the App does not start.
	// Without it the log and the metrics say so.
	Strict bool
}

// ErrManifest is in the error of Run when [SelfConfig].Strict is set and the pod's
// manifest does not fit the configuration.
var ErrManifest = errors.New("kube: the pod's manifest does not fit the configuration")

// selfName is the name of the unit and of the probe.
const selfName = "kube-self"

// Self compares the pod's own manifest with the App's configuration, and fits a stop
// to the time that the pod really has.
//
// At the start it reads terminationGracePeriodSeconds of the pod and its probes, and the
// preStop hook, and checks that a stop fits. When it does not, one log line names each
// number to change, and the non-critical readiness probe "kube-self" is down, so that
// the metrics show it (lifecycle_probe_state). The probe follows [lifecycle.App.Reconfigure]. A
// program that cannot read its pod starts all the same; the probe is then unknown.
//
// At T0 it reads the grace with which the pod is being deleted: kubectl delete
// --grace-period, an eviction and a preemption may give less than the manifest. The App
// then shortens every step of the stop in proportion (App.EndBy).
//
// The pod's service account needs get and watch for pods.
func (c *Client) Self(cfg SelfConfig) lifecycle.Option {
	return lifecycle.WithSetup(func(a *lifecycle.App) error {
		s := &self{client: c, app: a, SelfConfig: cfg, why: c.once("the pod's manifest is not read")}
		a.Probe(selfName, lifecycle.ProbeFunc(s.probe), health.WithNonCritical())
		var opts []lifecycle.UnitOption
		if cfg.Strict {
			opts = append(opts, lifecycle.WithStartCondition())
		}
		a.Go(selfName, s.run, opts...)
		return nil
	})
}

// self is the unit of Self.
type self struct {
	SelfConfig
	client *Client
	app    *lifecycle.App
	why    func(error)
	read   atomic.Pointer[pod] // as it was at the start; nil before, and when it could not be read
}

// probe returns ErrUnknown before the pod was read, and an error while its manifest does
// not fit.
func (s *self) probe(context.Context) error {
	p := s.read.Load()
	if p == nil {
		return fmt.Errorf("%w: the pod was not read", lifecycle.ErrUnknown)
	}
	return s.check(p)
}

func (s *self) run(ctx context.Context) error {
	defer s.client.Close()
	if p, err := s.client.pod(ctx); err != nil {
		if ctx.Err() == nil {
			s.why(err)
		}
	} else {
		s.read.Store(&p)
		if err := s.check(&p); err != nil {
			s.client.cfg.Logger.Error("the pod's manifest does not fit the configuration", "pod", s.client.podObject().String(), "error", err)
			if s.Strict {
				return err
			}
		}
	}
	lifecycle.MarkStarted(ctx)
	s.client.Close() // the next request is hours away
	select {
	case <-s.app.Draining():
		s.fit(ctx, time.Now())
	case <-ctx.Done():
	}
	return nil
}

// fit passes the time at which the process will be killed to the App, as often as it changes.
func (s *self) fit(ctx context.Context, t0 time.Time) {
	all := s.client.podObject()
	all.name = ""
	read, last := false, time.Duration(-1) // the grace of the deletion, -1 before one
	take := func(p pod) {
		grace, deleted := p.deletionGrace()
		isNews := deleted && (last < 0 || grace < last)
		switch {
		case !isNews:
		case !read:
			// The hook has run before T0, in the same grace.
			c, _ := p.main(s.Container)
			hook, known := preStop(c)
			if !known {
				hook = max(s.app.Config().PreStop, 0)
			}
			s.endBy(t0, max(grace-hook, 2*time.Second))
			last = grace
		default: // deleted only now, or again with a shorter grace, which counts from now
			s.endBy(time.Now(), grace)
			last = grace
		}
		read = true
	}
	observe(ctx, s.client, observed[pod]{
		object: all,
		query:  url.Values{"fieldSelector": {"metadata.name=" + s.client.cfg.Pod}},
		read: func(ctx context.Context) (string, error) {
			p, err := s.client.pod(ctx)
			if err == nil {
				take(p)
			}
			// From now on: the version of a pod that has not changed for a while is too
			// old for a watch.
			return "", err
		},
		take:    func(_ string, p pod) { take(p) },
		trouble: s.why,
	})
}

func (s *self) endBy(from time.Time, grace time.Duration) {
	cfg := s.app.Config()
	if need := budget(cfg); grace < need {
		s.client.cfg.Logger.Info("the pod has less time than a stop may take: every step is shortened", "grace", grace, "budget", need)
	}
	s.app.EndBy(from.Add(grace))
}

// budget returns how long a stop may take from T0 on.
func budget(cfg lifecycle.Config) time.Duration {
	return max(cfg.DrainInterval, cfg.DrainMax, 0) + cfg.ShutdownGrace + lifecycle.Margin
}

// preStop returns the time that the hook takes before T0, and whether that is known.
// The App's own hook begins the drain itself, and so takes none.
func preStop(c container) (takes time.Duration, known bool) {
	switch hook := c.Lifecycle.PreStop; {
	case hook == nil:
		return 0, true
	case hook.Sleep != nil:
		return time.Duration(hook.Sleep.Seconds) * time.Second, true
	case hook.HTTPGet != nil && strings.HasSuffix(hook.HTTPGet.Path, "/admin/prestop"):
		return 0, true
	}
	return 0, false
}

// check returns an error that is [ErrManifest] and names every number of the pod that
// does not fit the App's configuration, or nil.
func (s *self) check(p *pod) error {
	cfg := s.app.Config()
	c, found := p.main(s.Container)
	if !found {
		name := cmp.Or(s.Container, p.Metadata.Annotations[defaultContainer])
		return fmt.Errorf("%w: the pod has no container %q", ErrManifest, name)
	}
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }

	hook, known := preStop(c)
	declared := max(cfg.PreStop, 0)
	if known && hook > declared {
		fault("the preStop hook sleeps %v and PreStop is %v: declare it, or remove the hook, because the drain window is the same wait",
			hook, declared)
	}
	if !known {
		hook = declared
	}
	need := hook + budget(cfg)
	sum := fmt.Sprintf("preStop %v + window %v + ShutdownGrace %v + margin %v = %v",
		hook, max(cfg.DrainInterval, cfg.DrainMax, 0), cfg.ShutdownGrace, lifecycle.Margin, need)
	grace := func(field string, has time.Duration) {
		if has < need {
			fault("%s is %v, and a stop may take %s: the kubelet would kill the process; set it to %d or more",
				field, has, sum, (need+time.Second-1)/time.Second)
		}
	}
	grace("terminationGracePeriodSeconds", p.grace())
	if cfg.TerminationGrace > p.grace() {
		fault("TerminationGrace is %v, and the pod's terminationGracePeriodSeconds is %v", cfg.TerminationGrace, p.grace())
	}
	for _, own := range []struct {
		name  string
		probe *probe
	}{{"livenessProbe", c.LivenessProbe}, {"startupProbe", c.StartupProbe}} {
		if own.probe != nil && own.probe.TerminationGracePeriodSeconds != nil {
			grace(own.name+".terminationGracePeriodSeconds", time.Duration(*own.probe.TerminationGracePeriodSeconds)*time.Second)
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrManifest, strings.Join(faults, "; "))
}
