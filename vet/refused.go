package vet

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// refused checks the parts of a workload that decide how its pods stop and that the API server
// refuses. All other validation is the API server's own.
func (r *run) refused(w *workload) {
	if w.isCustom() {
		return
	}
	r.refusedStrategy(w)
	for i := range w.pod.Containers {
		r.container(w, "containers", i).refusedHandlers()
	}
	for i := range w.pod.InitContainers {
		c := r.container(w, "initContainers", i)
		if isSidecar(c.spec) {
			c.refusedHandlers()
			continue
		}
		for field, isSet := range map[string]bool{
			"lifecycle":      c.spec.Lifecycle != nil,
			"livenessProbe":  c.spec.LivenessProbe != nil,
			"readinessProbe": c.spec.ReadinessProbe != nil,
			"startupProbe":   c.spec.StartupProbe != nil,
		} {
			if isSet {
				c.fault("stop-refused", fmt.Sprintf("init container %s has %s, which only containers and sidecars may have", c.spec.Name, field),
					"remove it, or make the init container a sidecar with restartPolicy: Always", field)
			}
		}
	}
}

func (r *run) refusedStrategy(w *workload) {
	field := "strategy"
	var s struct {
		Type          string `json:"type"`
		RollingUpdate *struct {
			MaxSurge       *intstr.IntOrString `json:"maxSurge"`
			MaxUnavailable *intstr.IntOrString `json:"maxUnavailable"`
		} `json:"rollingUpdate"`
	}
	switch w.kind {
	case "Deployment":
	case "DaemonSet":
		field = "updateStrategy"
	default:
		return
	}
	if w.read(&s, "spec", field) != nil || s.RollingUpdate == nil {
		return
	}
	isZero := func(n *intstr.IntOrString) bool { return n != nil && (n.String() == "0" || n.String() == "0%") }
	surge, unavailable := s.RollingUpdate.MaxSurge, s.RollingUpdate.MaxUnavailable
	hasNoSurge := isZero(surge) || surge == nil && w.kind == "DaemonSet" // whose default is 0
	at := fieldPath{"spec", field, "rollingUpdate"}
	switch {
	case s.Type == string(appsv1.RecreateDeploymentStrategyType):
		r.at(w.object, at, "stop-refused", "rollingUpdate stands beside type Recreate", "set type to RollingUpdate, or remove rollingUpdate")
	case hasNoSurge && isZero(unavailable):
		r.at(w.object, at, "stop-refused", "maxSurge and maxUnavailable are both 0: a rollout could neither start a pod nor stop one", "set maxSurge to 1")
	}
}

// refusedHandlers checks the hooks and probes of a container.
func (c *container) refusedHandlers() {
	if l := c.spec.Lifecycle; l != nil {
		for name, h := range map[string]*corev1.LifecycleHandler{"preStop": l.PreStop, "postStart": l.PostStart} {
			if n := handlers(h); h != nil && n != 1 {
				c.fault("stop-refused", fmt.Sprintf("the %s hook has %d handlers", name, n), "give it exactly one of exec, httpGet and sleep", "lifecycle", name)
			}
		}
	}
	for name, p := range map[string]*corev1.Probe{"livenessProbe": c.spec.LivenessProbe, "startupProbe": c.spec.StartupProbe} {
		if p != nil && p.SuccessThreshold > 1 {
			c.fault("stop-refused", fmt.Sprintf("the %s has successThreshold %d", name, p.SuccessThreshold),
				"remove successThreshold: only a readinessProbe may have one above 1", name, "successThreshold")
		}
	}
}

// handlers counts the handlers of a hook.
func handlers(h *corev1.LifecycleHandler) (n int) {
	if h == nil {
		return 0
	}
	for _, isSet := range []bool{h.Exec != nil, h.HTTPGet != nil, h.TCPSocket != nil, h.Sleep != nil} {
		if isSet {
			n++
		}
	}
	return n
}
