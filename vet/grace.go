package vet

import (
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go"
	corev1 "k8s.io/api/core/v1"
)

// defaultGrace is the grace of a pod that does not set one (core/v1 PodSpec).
const defaultGrace = 30

// grace compares the time that a stop may take with the grace of the pod and of its probes.
func (c *container) grace() {
	if c.isUnknown("PreStop", "DrainInterval", "DrainMax", "ShutdownGrace", "TerminationGrace") {
		return // a note says so
	}
	pre, known := c.preStop()
	need := pre + window(c.cfg) + c.cfg.ShutdownGrace + lifecycle.Margin
	sum := fmt.Sprintf("preStop %v + %s %v + shutdown_grace %v + margin %v = %v",
		pre, windowKey(c.cfg), window(c.cfg), c.cfg.ShutdownGrace, lifecycle.Margin, need)
	c.graceOfPod(need, sum)
	c.graceOfProbe("livenessProbe", "liveness_grace", c.spec.LivenessProbe, c.cfg.LivenessGrace, need, sum)
	c.graceOfProbe("startupProbe", "startup_grace", c.spec.StartupProbe, c.cfg.StartupGrace, need, sum)
	c.checkHook(pre, known)
}

func (c *container) graceOfPod(need time.Duration, sum string) {
	const field = "terminationGracePeriodSeconds"
	given, saying := int64(defaultGrace), "which is the default,"
	if g := c.workload.pod.TerminationGracePeriodSeconds; g != nil {
		given, saying = *g, "as it stands,"
	}
	declared := on(c.cfg.TerminationGrace)
	short := need - sec(given)
	if short > 0 {
		raise := raiseTo(field, "termination_grace", declared, need)
		reason := fmt.Sprintf("a stop may take %s, and %s, %s gives %v: the kubelet kills the container %v before it is done",
			sum, field, saying, sec(given), short)
		c.faultOfPod("grace-too-short", reason, or(raise, c.lower(short)), field)
	}
	if reason, fix := compareDeclared(field, "termination_grace", declared, sec(given), need); reason != "" && short <= 0 {
		c.faultOfPod("grace-declared", reason, fix, field)
	}
	if declared == 0 && short <= 0 {
		c.faultOfPod("grace-undeclared", "lifecycle.termination_grace is not set, so that New cannot check a stop that may take "+need.String(),
			fmt.Sprintf("set lifecycle.termination_grace to %v", sec(given)), field)
	}
}

// graceOfProbe checks the grace that replaces the pod's when the probe fails. key is the one
// of the configuration that declares it.
func (c *container) graceOfProbe(name, key string, probe *corev1.Probe, declared, need time.Duration, sum string) {
	const field = "terminationGracePeriodSeconds"
	if probe == nil || probe.TerminationGracePeriodSeconds == nil {
		if declared > 0 {
			fix := "remove lifecycle." + key
			if probe != nil && declared >= need && declared%time.Second == 0 {
				fix += fmt.Sprintf(", or set %s of the %s to %d", field, name, seconds(declared))
			}
			c.fault("grace-declared", fmt.Sprintf("lifecycle.%s is %v, and the %s has no %s of its own", key, declared, name, field), fix, name)
		}
		return
	}
	declared = on(declared)
	given := sec(*probe.TerminationGracePeriodSeconds)
	if short := need - given; short > 0 {
		raise := raiseTo(field+" of the "+name, key, declared, need)
		remove := ""
		if declared == 0 && need <= c.workload.grace() {
			remove = "remove it"
		}
		reason := fmt.Sprintf("a stop may take %s, and when the %s fails its own %s replaces the pod's and gives %v", sum, name, field, given)
		c.fault("probe-grace-too-short", reason, or(raise, remove, c.lower(short)), name, field)
		return
	}
	if reason, fix := compareDeclared(field+" of the "+name, key, declared, given, need); reason != "" {
		c.fault("grace-declared", reason, fix, name, field)
	}
}

// raiseTo says which grace is long enough, and what the configuration has to declare then: a
// grace that it declares already, and that is long enough, is the one to give.
func raiseTo(what, key string, declared, need time.Duration) string {
	switch enough := sec(seconds(need)); {
	case declared <= 0:
		return fmt.Sprintf("set %s to %d or more", what, seconds(need))
	case declared >= enough && declared%time.Second == 0:
		return fmt.Sprintf("set %s to %d", what, seconds(declared))
	default:
		return fmt.Sprintf("set %s to %d or more, and lifecycle.%s to %v", what, seconds(need), key, enough)
	}
}

// compareDeclared compares a grace with the one that the configuration declares.
func compareDeclared(what, key string, declared, given, need time.Duration) (reason, fix string) {
	if declared <= 0 || declared == given {
		return "", ""
	}
	reason = fmt.Sprintf("%s is %v, and lifecycle.%s says that it is %v", what, given, key, declared)
	fix = fmt.Sprintf("set lifecycle.%s to %v", key, given)
	if declared >= need && declared%time.Second == 0 {
		fix = or(fix, fmt.Sprintf("%s to %d", what, seconds(declared)))
	}
	return reason, fix
}
