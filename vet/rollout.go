package vet

import (
	"fmt"
	"slices"

	"github.com/pleme-io/lifecycle-go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// scale sets the replicas of each workload that an autoscaler owns to those of the
// autoscaler.
func (r *run) scale() {
	for i := range r.scalers {
		s := &r.scalers[i]
		for _, w := range r.workloads {
			target := w.object
			if w.rollout != nil {
				target = w.rollout.object
			}
			if target.kind == s.targetKind && target.name == s.targetName && sameNamespace(target, s.object) {
				w.replicas, w.most, w.scaler = s.least, max(s.least, s.most), s
			}
		}
	}
}

// replicasAt returns the object that sets the number of replicas, and its field.
func (w *workload) replicasAt() (o object, field string) {
	switch {
	case w.scaler != nil:
		return w.scaler.object, w.scaler.field
	case w.rollout != nil:
		return w.rollout.object, "replicas"
	}
	return w.object, "replicas"
}

// rollout checks how a rollout replaces the pods.
func (r *run) rollout(w *workload) {
	r.selector(w)
	if w.once {
		return
	}
	o, field := w.replicasAt()
	if w.replicas > 1 && !r.budgeted(w) {
		r.at(o, fieldPath{"spec", field}, "no-pdb", fmt.Sprintf("there are %d replicas and no PodDisruptionBudget that selects them", w.replicas),
			"add a PodDisruptionBudget with maxUnavailable: 1; if it is in another file, give that too")
	}
	if _, perNode := w.typed.(*appsv1.DaemonSet); w.pod.HostNetwork && !perNode {
		r.inPod(w, "host-network", "hostNetwork is true: a new pod cannot bind the ports of the old one on the same node, and the health planes are on the node's address",
			"remove hostNetwork, or set the rollout's maxUnavailable to 1 and accept the gap", "hostNetwork")
	}
	served := r.cfg.DrainReadiness == lifecycle.ReadinessDown && on(r.cfg.DrainInterval) > 0
	switch t := w.typed.(type) {
	case *appsv1.Deployment:
		if w.rollout != nil {
			r.argoStrategy(w, w.rollout.object)
		} else {
			r.deployment(w, t)
		}
		if w.replicas == 1 && served && w.compared && !w.unknown["DrainReadiness"] {
			r.at(o, fieldPath{"spec", field}, "single-replica", "there is one replica, and drain_readiness is down: while it drains, the Service has no ready endpoint",
				"set "+field+" to 2 or more, or lifecycle.drain_readiness to serving")
		}
	case operated:
		if t.argo {
			r.argoStrategy(w, w.object)
		}
	case *appsv1.DaemonSet:
		roll := t.Spec.UpdateStrategy.RollingUpdate
		if t.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType || bindsNode(w.pod) {
			return
		}
		if roll == nil || roll.MaxSurge == nil || roll.MaxSurge.String() == "0" || roll.MaxSurge.String() == "0%" {
			r.at(w.object, fieldPath{"spec", "updateStrategy", "rollingUpdate"}, "rollout-loses-capacity", "maxUnavailable is 1, which is the default, or more, and maxSurge 0: a node has no pod while its pod is replaced",
				"set updateStrategy.rollingUpdate to {maxSurge: 1, maxUnavailable: 0}")
		}
	}
}

// bindsNode reports whether the pod has a port of its node, so that no other pod can take
// its place while it runs.
func bindsNode(pod *corev1.PodSpec) bool {
	return pod.HostNetwork || slices.ContainsFunc(pod.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 })
	})
}

// bindsVolume reports whether the pod has a claim, which another pod may not be able to
// mount while it runs.
func bindsVolume(pod *corev1.PodSpec) bool {
	return slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil })
}

func (r *run) deployment(w *workload, d *appsv1.Deployment) {
	if bindsNode(w.pod) || bindsVolume(w.pod) {
		return // old pods may have to end before new ones can start
	}
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		r.at(w.object, fieldPath{"spec", "strategy", "type"}, "recreate", fmt.Sprintf("strategy Recreate stops all %d pods before it starts one", w.most),
			"set strategy to {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}")
		return
	}
	// The defaults of apps/v1 RollingUpdateDeployment.
	unavailable, given := intstr.FromString("25%"), "which is the default"
	if roll := d.Spec.Strategy.RollingUpdate; roll != nil && roll.MaxUnavailable != nil {
		unavailable, given = *roll.MaxUnavailable, "as it stands"
	}
	r.capacity(w, w.object, fieldPath{"spec", "strategy", "rollingUpdate", "maxUnavailable"}, unavailable, given, "set strategy.rollingUpdate to {maxSurge: 1, maxUnavailable: 0}")
}

// capacity checks how many pods a rollout removes before others are ready.
func (r *run) capacity(w *workload, o object, p fieldPath, unavailable intstr.IntOrString, given, fix string) {
	n, err := intstr.GetScaledValueFromIntOrPercent(&unavailable, w.most, false)
	switch {
	case err != nil:
		r.at(o, p, "wrong-type", fmt.Sprintf("maxUnavailable is %q: %v", unavailable.String(), err), "want a number or a percentage, as 0 or 25%")
	case n > 0 && w.most > 0:
		r.at(o, p, "rollout-loses-capacity", fmt.Sprintf("maxUnavailable is %s, %s: of %d replicas a rollout removes %d before their successors are ready", unavailable.String(), given, w.most, n), fix)
	}
}

// selector checks that a workload selects its own pods.
func (r *run) selector(w *workload) {
	var s *metav1.LabelSelector
	switch t := w.typed.(type) {
	case *appsv1.Deployment:
		s = t.Spec.Selector
	case *appsv1.StatefulSet:
		s = t.Spec.Selector
	case *appsv1.ReplicaSet:
		s = t.Spec.Selector
	case *appsv1.DaemonSet:
		s = t.Spec.Selector
	default:
		return
	}
	const fix = "copy the labels of spec.template.metadata.labels into spec.selector.matchLabels"
	version, _ := w.value["apiVersion"].(string)
	switch {
	case s == nil && retired[version] == "": // older versions have a default
		r.at(w.object, fieldPath{"spec", "selector"}, "selector-mismatch", "there is no spec.selector", fix)
	case s != nil && !selector(s).Matches(labels.Set(w.labels)):
		r.at(w.object, fieldPath{"spec", "selector"}, "selector-mismatch", "spec.selector does not select the labels of spec.template", fix)
	}
}

func (r *run) budgeted(w *workload) bool {
	for _, b := range r.budgets {
		if sameNamespace(b.object, w.object) && b.selector.Matches(labels.Set(w.labels)) {
			return true
		}
	}
	return false
}
