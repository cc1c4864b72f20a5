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
	given, saying := int64(defaultGrace), "which is the default,"
	if g := c.w.pod.TerminationGracePeriodSeconds; g != nil {
		given, saying = *g, "as it stands,"
	}
	field := c.w.podPath.with("terminationGracePeriodSeconds")
	if short := need - sec(given); short > 0 {
		raise := fmt.Sprintf("set terminationGracePeriodSeconds to %d or more", seconds(need))
		if declared := on(c.cfg.TerminationGrace); declared > 0 && declared != sec(seconds(need)) {
			raise += fmt.Sprintf(", and lifecycle.termination_grace to %v", sec(seconds(need)))
		}
		c.at(c.w.object, field, "grace-too-short",
			fmt.Sprintf("a stop may take %s, and terminationGracePeriodSeconds, %s gives %v: the kubelet kills the container %v before it is done", sum, saying, sec(given), short),
			or(raise, c.lower(short)))
	}
	c.declared("terminationGracePeriodSeconds", "termination_grace", on(c.cfg.TerminationGrace), sec(given), need, field)
	if on(c.cfg.TerminationGrace) == 0 && sec(given) >= need {
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
					c.undeclare(p.name, p.key, p.probe, p.declared, need), p.name)
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
			fix := fmt.Sprintf("set terminationGracePeriodSeconds of the %s to %d or more", p.name, seconds(need))
			remove := ""
			if declared := on(p.declared); declared == 0 && need <= c.w.grace() {
				remove = "remove it"
			} else if declared > 0 && declared != sec(seconds(need)) {
				fix += fmt.Sprintf(", and lifecycle.%s to %v", p.key, sec(seconds(need)))
			}
			c.fault("probe-grace-too-short", fmt.Sprintf("a stop may take %s, and when the %s fails its own terminationGracePeriodSeconds replaces the pod's and gives %v", sum, p.name, given),
				or(fix, remove, c.lower(short)), p.name, "terminationGracePeriodSeconds")
		}
		c.declared("terminationGracePeriodSeconds of the "+p.name, p.key, on(p.declared), given, need, field)
	}
	c.hook(pre, known)
}

// undeclare is the advice for a grace that the configuration declares and no probe has.
func (c container) undeclare(name, key string, probe *corev1.Probe, declared, need time.Duration) string {
	fix := "remove lifecycle." + key
	if probe != nil && declared >= need && declared%time.Second == 0 {
		fix += fmt.Sprintf(", or set terminationGracePeriodSeconds of the %s to %d", name, seconds(declared))
	}
	return fix
}

// declared compares a grace with the one that the configuration declares.
func (c container) declared(what, key string, declared, given, need time.Duration, field fieldPath) {
	if declared <= 0 || declared == given {
		return
	}
	fix := fmt.Sprintf("set lifecycle.%s to %v", key, given)
	if given < need { // both are to change
		need = max(sec(seconds(need)), declared)
		fix = fmt.Sprintf("set %s to %d, and lifecycle.%s to %v", what, seconds(need), key, need)
	} else if declared >= need && declared%time.Second == 0 {
		fix = or(fix, fmt.Sprintf("%s to %d", what, seconds(declared)))
	}
	c.at(c.w.object, field, "grace-declared", fmt.Sprintf("%s is %v, and lifecycle.%s says that it is %v", what, given, key, declared), fix)
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

// withoutHook is the advice to remove the preStop hook.
func (c container) withoutHook() string {
	if c.cfg.PreStop > 0 {
		return "remove the hook, and lifecycle.pre_stop with it"
	}
	if wait := on(c.cfg.DrainInterval); wait > 0 {
		return fmt.Sprintf("remove the hook: drain_interval, %v, already waits", wait)
	}
	return "remove the hook"
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
			or(c.set(fmt.Sprintf("set lifecycle.pre_stop to %v", takes), func(cfg *lifecycle.Config) { cfg.PreStop = takes }), c.withoutHook()), "lifecycle", "preStop")
	}
	if known && takes > 0 && on(c.cfg.DrainInterval) > 0 {
		c.fault("prestop-sleep", fmt.Sprintf("every stop waits twice: %v in the preStop hook, and drain_interval, %v, after it", takes, on(c.cfg.DrainInterval)),
			c.withoutHook(), "lifecycle", "preStop")
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
