package vet

import (
	"fmt"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go"
	corev1 "k8s.io/api/core/v1"
)

// A fix must not lead to another error. The functions below try a change of the
// configuration before a finding advises it.

// stop returns the longest time of a stop with this configuration, after a preStop hook
// of that length.
func stop(cfg lifecycle.Config, hook time.Duration) time.Duration {
	cfg = cfg.WithDefaults()
	return max(hook, on(cfg.PreStop)) + window(cfg) + on(cfg.ShutdownGrace) + lifecycle.Margin
}

func (w *workload) grace() time.Duration {
	if g := w.pod.TerminationGracePeriodSeconds; g != nil {
		return sec(*g)
	}
	return sec(defaultGrace)
}

// refusedBy reports whether New refuses the configuration for a fault that the service's
// own does not have.
func (c *container) refusedBy(cfg lifecycle.Config) bool {
	old := configFaults(c.given.Validate())
	return slices.ContainsFunc(configFaults(cfg.Validate()), func(f *lifecycle.ConfigError) bool {
		return !slices.ContainsFunc(old, func(o *lifecycle.ConfigError) bool { return slices.Equal(o.Fields, f.Fields) })
	})
}

// set returns the advice to change the configuration, together with the graces that the
// change needs. It is "" when the result does not fit into a probe's own grace, or New
// would refuse it all the same.
func (c *container) set(advice string, change func(*lifecycle.Config)) string {
	cfg := c.given
	change(&cfg)
	hook, _ := c.preStop()
	need, grace := sec(seconds(stop(cfg, hook))), c.workload.grace()
	for _, p := range []*corev1.Probe{c.spec.LivenessProbe, c.spec.StartupProbe} {
		if p != nil && p.TerminationGracePeriodSeconds != nil {
			if own := sec(*p.TerminationGracePeriodSeconds); own < need && own >= stop(c.given, hook) {
				return ""
			}
		}
	}
	if need > grace && stop(c.given, hook) <= grace {
		grace = need
		advice += fmt.Sprintf(", terminationGracePeriodSeconds to %d", seconds(need))
	}
	if declared := on(cfg.TerminationGrace); declared > 0 && (declared < need || grace > c.workload.grace() && declared != grace) {
		cfg.TerminationGrace = max(need, grace)
		advice += fmt.Sprintf(", lifecycle.termination_grace to %v", cfg.TerminationGrace)
	}
	if c.refusedBy(cfg) {
		return ""
	}
	return advice
}

// lower returns the advice to make a stop shorter by this time, "" when shutdown_grace is
// too short for that.
func (c *container) lower(by time.Duration) string {
	cfg := c.given
	cfg.ShutdownGrace = c.cfg.ShutdownGrace - by
	if cfg.ShutdownGrace < time.Second || c.refusedBy(cfg) {
		return ""
	}
	return fmt.Sprintf("lower lifecycle.shutdown_grace to %v", cfg.ShutdownGrace)
}

// or joins the alternatives of a fix.
func or(alternatives ...string) (fix string) {
	for _, a := range alternatives {
		switch {
		case a == "":
		case fix == "":
			fix = a
		default:
			fix += ", or " + a
		}
	}
	return fix
}
