package vet

import (
	"fmt"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/internal/cmdline"
	corev1 "k8s.io/api/core/v1"
)

// endpointPreStop is the path that the library serves for a preStop hook.
const endpointPreStop = "/admin/prestop"

// hook returns the preStop hook of the container, nil for none.
func (c *container) hook() *corev1.LifecycleHandler {
	if c.spec.Lifecycle == nil {
		return nil
	}
	return c.spec.Lifecycle.PreStop
}

// preStop returns the time that the container's hook takes before SIGTERM. known
// reports whether the manifest says it; if not, d is the configuration's pre_stop.
func (c *container) preStop() (d time.Duration, known bool) {
	configured := on(c.cfg.PreStop)
	switch h := c.hook(); {
	case h == nil:
		return configured, true
	case h.Sleep != nil:
		return max(configured, sec(h.Sleep.Seconds)), true
	case h.HTTPGet != nil && h.HTTPGet.Path == endpointPreStop:
		return configured, true // the hook is the window, and SIGTERM adds no second one
	case h.Exec != nil:
		if d, ok := cmdline.Sleep(h.Exec.Command); ok {
			return max(configured, d), true
		}
	}
	return configured, false
}

// withoutHook is the advice to remove the preStop hook.
func (c *container) withoutHook() string {
	if c.cfg.PreStop > 0 {
		return "remove the hook, and lifecycle.pre_stop with it"
	}
	if wait := on(c.cfg.DrainInterval); wait > 0 {
		return fmt.Sprintf("remove the hook: drain_interval, %v, already waits", wait)
	}
	return "remove the hook"
}

func (c *container) checkHook(takes time.Duration, known bool) {
	h := c.hook()
	declared := on(c.cfg.PreStop)
	switch {
	case h == nil && declared > 0:
		c.fault("prestop-undeclared", fmt.Sprintf("lifecycle.pre_stop is %v, and the container has no preStop hook", declared),
			"remove lifecycle.pre_stop; the time belongs to the drain")
	case h == nil:
	case !known && declared <= 0:
		c.fault("prestop-undeclared", "the time that the preStop hook takes is not known, and it is part of the grace",
			"set lifecycle.pre_stop to the longest that it takes", "lifecycle", "preStop")
	case known && takes > declared:
		set := c.set(fmt.Sprintf("set lifecycle.pre_stop to %v", takes), func(cfg *lifecycle.Config) { cfg.PreStop = takes })
		c.fault("prestop-undeclared", fmt.Sprintf("the preStop hook takes %v of the grace, and lifecycle.pre_stop is %v", takes, declared),
			or(set, c.withoutHook()), "lifecycle", "preStop")
	}
	if h == nil {
		return
	}
	if wait := on(c.cfg.DrainInterval); known && takes > 0 && wait > 0 {
		c.fault("prestop-sleep", fmt.Sprintf("every stop waits twice: %v in the preStop hook, and drain_interval, %v, after it", takes, wait),
			c.withoutHook(), "lifecycle", "preStop")
	}
	if h.Exec != nil && !c.HasShell {
		if program := usesShell(h.Exec.Command); program != "" {
			c.fault("prestop-shell", fmt.Sprintf("the preStop hook runs %s, which an image made from scratch or distroless does not have", program),
				"use preStop.sleep.seconds (Kubernetes 1.30), or no hook at all: the drain window already waits; --has-shell says that the image has a shell",
				"lifecycle", "preStop", "exec")
		}
	}
}

// usesShell returns the shell or the usual program with which a command begins, or
// "".
func usesShell(command []string) string {
	if len(command) == 0 {
		return ""
	}
	program := cmdline.Base(command[0])
	if slices.Contains([]string{"sh", "bash", "ash", "dash", "busybox", "sleep", "curl", "wget", "kill", "nc"}, program) {
		return program
	}
	return ""
}
