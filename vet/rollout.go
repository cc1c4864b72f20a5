package vet

import (
	"fmt"

	"github.com/pleme-io/lifecycle-go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// scale sets the replicas of each workload that an autoscaler owns to the
// autoscaler's minimum.
func (r *run) scale() {
	for _, s := range r.scalers {
		least := 1
		if s.Spec.MinReplicas != nil {
			least = int(*s.Spec.MinReplicas)
		}
		for _, w := range r.workloads {
			if w.kind == s.Spec.ScaleTargetRef.Kind && w.name == s.Spec.ScaleTargetRef.Name && sameNamespace(w.object, s.object) {
				w.replicas = least
			}
		}
	}
}

// rollout checks how a rollout replaces the pods.
func (r *run) rollout(w *workload) {
	if w.replicas > 1 && !r.budgeted(w) {
		r.at(w.object, fieldPath{"spec", "replicas"}, "no-pdb", fmt.Sprintf("there are %d replicas and no PodDisruptionBudget that selects them", w.replicas),
			"add a PodDisruptionBudget with maxUnavailable: 1; if it is in another file, give that too")
	}
	if w.pod.HostNetwork && !w.isJob() {
		r.inPod(w, "host-network", "hostNetwork is true: a new pod cannot bind the ports of the old one on the same node, and the health planes are on the node's address",
			"remove hostNetwork, or set the rollout's maxUnavailable to 1 and accept the gap", "hostNetwork")
	}
	served := r.cfg.DrainReadiness == lifecycle.ReadinessDown && on(r.cfg.DrainInterval) > 0
	switch t := w.typed.(type) {
	case *appsv1.Deployment:
		r.deployment(w, t)
		if w.replicas == 1 && served && w.compared {
			r.at(w.object, fieldPath{"spec", "replicas"}, "single-replica", "there is one replica, and drain_readiness is down: while it drains, the Service has no ready endpoint",
				"set replicas to 2 or more, or lifecycle.drain_readiness to serving")
		}
	case *appsv1.DaemonSet:
		roll := t.Spec.UpdateStrategy.RollingUpdate
		if t.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType || w.pod.HostNetwork {
			return
		}
		if roll == nil || roll.MaxSurge == nil || roll.MaxSurge.String() == "0" || roll.MaxSurge.String() == "0%" {
			r.at(w.object, fieldPath{"spec", "updateStrategy", "rollingUpdate"}, "rollout-loses-capacity", "maxUnavailable is 1, which is the default, or more, and maxSurge 0: a node has no pod while its pod is replaced",
				"set updateStrategy.rollingUpdate to {maxSurge: 1, maxUnavailable: 0}")
		}
	}
}

func (r *run) deployment(w *workload, d *appsv1.Deployment) {
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		r.at(w.object, fieldPath{"spec", "strategy", "type"}, "recreate", fmt.Sprintf("strategy Recreate stops all %d pods, each for up to %v, before it starts one",
			w.replicas, window(r.cfg)+r.cfg.ShutdownGrace),
			"set strategy to {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}")
		return
	}
	// The defaults of apps/v1 RollingUpdateDeployment.
	unavailable, given := intstr.FromString("25%"), "which is the default"
	if roll := d.Spec.Strategy.RollingUpdate; roll != nil && roll.MaxUnavailable != nil {
		unavailable, given = *roll.MaxUnavailable, "as it stands"
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(&unavailable, w.replicas, false)
	p := fieldPath{"spec", "strategy", "rollingUpdate", "maxUnavailable"}
	switch {
	case err != nil:
		r.at(w.object, p, "wrong-type", fmt.Sprintf("maxUnavailable is %q: %v", unavailable.String(), err), "want a number or a percentage, as 0 or 25%")
	case n > 0:
		r.at(w.object, p, "rollout-loses-capacity", fmt.Sprintf("maxUnavailable is %s, %s: of %d replicas a rollout removes %d before their successors are ready", unavailable.String(), given, w.replicas, n),
			"set strategy.rollingUpdate to {maxSurge: 1, maxUnavailable: 0}")
	}
}

func (r *run) budgeted(w *workload) bool {
	for _, b := range r.budgets {
		if sameNamespace(b.object, w.object) && matches(b.Spec.Selector, w.labels) {
			return true
		}
	}
	return false
}

// budget checks a PodDisruptionBudget against the pods that it selects. The
// percentages are rounded up, as the disruption controller does.
func (r *run) budget(b budget) {
	lowest, blocks, found := b.Spec.MinAvailable, b.Spec.MaxUnavailable, false
	if lowest != nil && blocks != nil {
		r.at(b.object, fieldPath{"spec", "maxUnavailable"}, "pdb-invalid", "minAvailable and maxUnavailable are both set", "keep maxUnavailable: 1")
		return
	}
	for _, w := range r.workloads {
		if !sameNamespace(b.object, w.object) || !matches(b.Spec.Selector, w.labels) {
			continue
		}
		found = true
		if w.replicas < 1 || !r.wanted(w.object) {
			continue
		}
		for _, limit := range []struct {
			field string
			value *intstr.IntOrString
		}{{"minAvailable", lowest}, {"maxUnavailable", blocks}} {
			if limit.value == nil {
				continue
			}
			p := fieldPath{"spec", limit.field}
			n, err := intstr.GetScaledValueFromIntOrPercent(limit.value, w.replicas, true)
			switch {
			case err != nil:
				r.at(b.object, p, "wrong-type", fmt.Sprintf("%s is %q: %v", limit.field, limit.value.String(), err), "want a number or a percentage, as 1 or 25%")
			case limit.field == "minAvailable" && n >= w.replicas:
				fix := "set maxUnavailable: 1 in place of minAvailable"
				if w.replicas == 1 {
					fix = "set replicas to 2 or more, or remove the budget: one replica cannot be kept available while it is evicted"
				}
				r.at(b.object, p, "pdb-blocks", fmt.Sprintf("minAvailable is %s, which is %d of the %d replicas of %s: no eviction is ever allowed", limit.value.String(), n, w.replicas, w), fix)
			case limit.field == "maxUnavailable" && n == 0:
				r.at(b.object, p, "pdb-blocks", fmt.Sprintf("maxUnavailable is %s: no eviction of a pod of %s is ever allowed", limit.value.String(), w), "set maxUnavailable: 1")
			}
		}
	}
	if !found && len(r.workloads) > 0 {
		r.at(b.object, fieldPath{"spec", "selector"}, "pdb-selects-nothing", "no pod template in these files has the labels that it selects", "copy the labels of spec.template.metadata.labels into spec.selector.matchLabels")
	}
}

// service checks a Service against the pods that it selects.
func (r *run) service(s service) {
	if len(s.Spec.Selector) == 0 {
		return
	}
	for _, w := range r.workloads {
		if !sameNamespace(s.object, w.object) || !selects(s.Spec.Selector, w.labels) || !r.wanted(w.object) {
			continue
		}
		for i, port := range s.Spec.Ports {
			if port.TargetPort.Type == intstr.String && !hasPort(w.pod, port.TargetPort.StrVal) {
				r.at(s.object, fieldPath{"spec", "ports", i, "targetPort"}, "service-port", fmt.Sprintf("targetPort %q is not a port of any container of %s", port.TargetPort.StrVal, w),
					"give a container's port that name, or the Service the number")
			}
		}
		if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && w.cfg.WithDefaults().DrainReadiness == lifecycle.ReadinessDown {
			r.at(s.object, fieldPath{"spec", "externalTrafficPolicy"}, "traffic-local", "externalTrafficPolicy is Local, and drain_readiness is down: a node whose only pod drains drops what load balancers still send it",
				"set lifecycle.drain_readiness to serving")
		}
	}
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return true
}

func hasPort(pod *corev1.PodSpec, name string) bool {
	for _, c := range append(pod.Containers[:len(pod.Containers):len(pod.Containers)], pod.InitContainers...) {
		for _, p := range c.Ports {
			if p.Name == name {
				return true
			}
		}
	}
	return false
}
