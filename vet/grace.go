package vet

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
	corev1 "k8s.io/api/core/v1"
)

// defaultGrace is the grace of a pod that does not set one (core/v1 PodSpec).
const defaultGrace = 30

// grace compares the time that a stop may take with the grace.
func (c container) grace() {
	for _, field := range []string{"PreStop", "DrainInterval", "DrainMax", "ShutdownGrace", "TerminationGrace"} {
		if c.w.unknown[field] {
			return // a note says so
		}
	}
	pre, known := c.preStop()
	need := pre + window(c.cfg) + c.cfg.ShutdownGrace + lifecycle.Margin
	sum := fmt.Sprintf("preStop %v + %s %v + shutdown_grace %v + margin %v = %v",
		pre, windowKey(c.cfg), window(c.cfg), c.cfg.ShutdownGrace, lifecycle.Margin, need)
	lower := func(by time.Duration) string {
		if by < c.cfg.ShutdownGrace {
			return fmt.Sprintf("lower lifecycle.shutdown_grace to %v", c.cfg.ShutdownGrace-by)
		}
		return fmt.Sprintf("lower lifecycle.%s and lifecycle.shutdown_grace by %v together", windowKey(c.cfg), by)
	}

	given, saying := int64(defaultGrace), "which is the default,"
	if g := c.w.pod.TerminationGracePeriodSeconds; g != nil {
		given, saying = *g, "as it stands,"
	}
	field := c.w.podPath.with("terminationGracePeriodSeconds")
	if short := need - sec(given); short > 0 {
		c.at(c.w.object, field, "grace-too-short",
			fmt.Sprintf("a stop may take %s, and terminationGracePeriodSeconds, %s gives %v: the kubelet kills the container %v before it is done", sum, saying, sec(given), short),
			fmt.Sprintf("set terminationGracePeriodSeconds to %d or more, or %s", seconds(need), lower(short)))
	}
	c.declared("terminationGracePeriodSeconds", "termination_grace", on(c.cfg.TerminationGrace), sec(given), field)
	if on(c.cfg.TerminationGrace) == 0 {
		c.at(c.w.object, field, "grace-undeclared", "lifecycle.termination_grace is not set, so that New cannot check a stop that may take "+need.String(),
			fmt.Sprintf("set lifecycle.termination_grace to %v", sec(given)))
	}

	for _, p := range []struct {
		name, key string
		probe     *corev1.Probe
		declared  time.Duration
	}{
		{"livenessProbe", "liveness_grace", c.c.LivenessProbe, c.cfg.LivenessGrace},
		{"startupProbe", "startup_grace", c.c.StartupProbe, c.cfg.StartupGrace},
		{"readinessProbe", "", c.c.ReadinessProbe, 0},
	} {
		if p.probe == nil || p.probe.TerminationGracePeriodSeconds == nil {
			if p.declared > 0 {
				c.fault("grace-declared", fmt.Sprintf("lifecycle.%s is %v, and the %s has no terminationGracePeriodSeconds of its own", p.key, p.declared, p.name),
					fmt.Sprintf("remove lifecycle.%s, or set terminationGracePeriodSeconds of the %s to %d", p.key, p.name, seconds(p.declared)), p.name)
			}
			continue
		}
		given := sec(*p.probe.TerminationGracePeriodSeconds)
		field := c.path.with(p.name, "terminationGracePeriodSeconds")
		if p.key == "" {
			c.fault("probe-grace-too-short", "a readiness probe cannot have terminationGracePeriodSeconds: the API server refuses it, because the kubelet kills nothing when that probe fails",
				"remove it from the readinessProbe", p.name, "terminationGracePeriodSeconds")
			continue
		}
		if short := need - given; short > 0 {
			c.fault("probe-grace-too-short", fmt.Sprintf("a stop may take %s, and when the %s fails its own terminationGracePeriodSeconds replaces the pod's and gives %v", sum, p.name, given),
				fmt.Sprintf("set terminationGracePeriodSeconds of the %s to %d or more, or remove it, or %s", p.name, seconds(need), lower(short)), p.name, "terminationGracePeriodSeconds")
		}
		c.declared("terminationGracePeriodSeconds of the "+p.name, p.key, on(p.declared), given, field)
	}
	c.hook(pre, known)
}

// declared compares a grace with the one that the configuration declares.
func (c container) declared(what, key string, declared, given time.Duration, field fieldPath) {
	if declared > 0 && declared != given {
		c.at(c.w.object, field, "grace-declared", fmt.Sprintf("%s is %v, and lifecycle.%s says that it is %v", what, given, key, declared),
			fmt.Sprintf("set lifecycle.%s to %v, or %s to %d", key, given, what, seconds(declared)))
	}
}

// endpointPreStop is the path that the library serves for a preStop hook.
const endpointPreStop = "/admin/prestop"

// sleeping matches a sleep command of shells and coreutils, with fractions and
// units; the unit defaults to seconds.
var sleeping = regexp.MustCompile(`\bsleep\s+(\d+(?:\.\d+)?)([smhd]?)(?:$|[^\w.])`)

// sleeps returns the sum of a command line's sleeps, and whether it has any.
func sleeps(line string) (d time.Duration, any bool) {
	for _, m := range sleeping.FindAllStringSubmatch(line, -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			continue
		}
		unit := map[string]time.Duration{"": time.Second, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[m[2]]
		d, any = min(d+time.Duration(min(n*unit.Seconds(), longest)*float64(time.Second)), sec(longest)), true
	}
	return d, any
}

// preStop returns the time that the container's hook takes before SIGTERM. known
// reports whether the manifest says it; if not, d is the configuration's pre_stop.
func (c container) preStop() (d time.Duration, known bool) {
	configured := on(c.cfg.PreStop)
	if c.c.Lifecycle == nil || c.c.Lifecycle.PreStop == nil {
		return configured, true
	}
	switch h := c.c.Lifecycle.PreStop; {
	case h.Sleep != nil:
		return max(configured, sec(h.Sleep.Seconds)), true
	case h.HTTPGet != nil && h.HTTPGet.Path == endpointPreStop:
		return configured, true // the hook is the window, and SIGTERM adds no second one
	case h.Exec != nil:
		if d, ok := sleeps(strings.Join(h.Exec.Command, " ")); ok {
			return max(configured, d), true
		}
	}
	return configured, false
}

// hook checks the preStop hook.
func (c container) hook(takes time.Duration, known bool) {
	if c.c.Lifecycle == nil || c.c.Lifecycle.PreStop == nil {
		if c.cfg.PreStop > 0 {
			c.fault("prestop-undeclared", fmt.Sprintf("lifecycle.pre_stop is %v, and the container has no preStop hook", c.cfg.PreStop),
				"remove lifecycle.pre_stop; the time belongs to the drain")
		}
		return
	}
	h := c.c.Lifecycle.PreStop
	switch {
	case !known && c.cfg.PreStop <= 0:
		c.fault("prestop-undeclared", "the time that the preStop hook takes is not known, and it is part of the grace",
			"set lifecycle.pre_stop to the longest that it takes", "lifecycle", "preStop")
	case known && takes > on(c.cfg.PreStop):
		c.fault("prestop-undeclared", fmt.Sprintf("the preStop hook takes %v of the grace, and lifecycle.pre_stop is %v", takes, on(c.cfg.PreStop)),
			fmt.Sprintf("set lifecycle.pre_stop to %v, or remove the hook: drain_interval, %v, already waits", takes, on(c.cfg.DrainInterval)), "lifecycle", "preStop")
	}
	if known && takes > 0 && on(c.cfg.DrainInterval) > 0 {
		c.fault("prestop-sleep", fmt.Sprintf("every stop waits twice: %v in the preStop hook, and drain_interval, %v, after it", takes, on(c.cfg.DrainInterval)),
			"remove the hook, or set lifecycle.drain_interval to what is still missing", "lifecycle", "preStop")
	}
	if h.Exec != nil && !c.HasShell {
		if program := usesShell(h.Exec.Command); program != "" {
			c.fault("prestop-shell", fmt.Sprintf("the preStop hook runs %s, which an image made from scratch or distroless does not have", program),
				"use preStop.sleep.seconds (Kubernetes 1.30), or no hook at all: the drain window already waits; --has-shell says that the image has a shell", "lifecycle", "preStop", "exec")
		}
	}
}

// usesShell returns the shell or the usual program with which a command begins, or
// "".
func usesShell(command []string) string {
	if len(command) == 0 {
		return ""
	}
	program := command[0][strings.LastIndexByte(command[0], '/')+1:]
	if slices.Contains([]string{"sh", "bash", "ash", "dash", "busybox", "sleep", "curl", "wget", "kill", "nc"}, program) {
		return program
	}
	return ""
}
