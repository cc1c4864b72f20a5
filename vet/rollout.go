package vet

import (
	"fmt"
	"slices"

	"github.com/pleme-io/lifecycle-go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// rollout checks how a rollout replaces the pods.
func (r *run) rollout(w *workload) {
	if w.once {
		return
	}
	o, field := w.replicasAt()
	isBudgeted := slices.ContainsFunc(r.budgets, func(b budget) bool { return b.selects(w) })
	if w.replicas > 1 && !isBudgeted {
		r.at(o, fieldPath{"spec", field}, "no-pdb", fmt.Sprintf("there are %d replicas and no PodDisruptionBudget that selects them", w.replicas),
			"add a PodDisruptionBudget with maxUnavailable: 1; if it is in another file, give that too")
	}
	isFromCluster := w.part("metadata", "uid") != nil // there the autoscaler has written them
	if w.scaler != nil && !isFromCluster && w.part("spec", "replicas") != nil {
		r.at(w.object, fieldPath{"spec", "replicas"}, "replicas-reset",
			fmt.Sprintf("%s sets the replicas too: each apply of this manifest stops pods, or starts them, until the autoscaler has decided again", w.scaler),
			"remove replicas")
	}
	switch {
	case w.kind == "Deployment" && !w.isCustom():
		r.deployment(w)
	case w.kind == "DaemonSet":
		r.daemonSet(w)
	case w.kind == "Rollout":
		r.rolloutOfArgo(w)
	}
	readinessGoesDown := w.main.cfg.DrainReadiness == lifecycle.ReadinessDown && on(w.main.cfg.DrainInterval) > 0
	if w.kind == "Deployment" && w.replicas == 1 && w.compared && readinessGoesDown && !w.main.isUnknown("DrainReadiness") {
		r.at(o, fieldPath{"spec", field}, "single-replica", "there is one replica, and drain_readiness is down: while it drains, the Service has no ready endpoint",
			"set "+field+" to 2 or more, or lifecycle.drain_readiness to serving")
	}
}

// needsOldPodGone reports whether the pod has a port of its node, or a claim, so that no
// other pod may be able to take its place while it runs.
func needsOldPodGone(pod *corev1.PodSpec) bool {
	return bindsNode(pod) || slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil })
}

func bindsNode(pod *corev1.PodSpec) bool {
	return pod.HostNetwork || slices.ContainsFunc(pod.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 })
	})
}

func (r *run) deployment(w *workload) {
	if needsOldPodGone(w.pod) {
		return
	}
	var strategy appsv1.DeploymentStrategy
	if w.read(&strategy, "spec", "strategy") != nil {
		return
	}
	if strategy.Type == appsv1.RecreateDeploymentStrategyType {
		r.at(w.object, fieldPath{"spec", "strategy", "type"}, "recreate", fmt.Sprintf("strategy Recreate stops all %d pods before it starts one", w.most),
			"set strategy to {type: RollingUpdate, rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}")
		return
	}
	var unavailable *intstr.IntOrString
	if strategy.RollingUpdate != nil {
		unavailable = strategy.RollingUpdate.MaxUnavailable
	}
	r.capacity(w, fieldPath{"spec", "strategy", "rollingUpdate", "maxUnavailable"}, unavailable,
		"set strategy.rollingUpdate to {maxSurge: 1, maxUnavailable: 0}")
}

// rolloutOfArgo checks how a Rollout of Argo replaces pods. A blue-green one keeps the old
// pods until the new ones are ready.
func (r *run) rolloutOfArgo(w *workload) {
	var canary *struct {
		MaxUnavailable *intstr.IntOrString `json:"maxUnavailable"`
	}
	if w.read(&canary, "spec", "strategy", "canary") != nil || canary == nil {
		return
	}
	r.capacity(w, fieldPath{"spec", "strategy", "canary", "maxUnavailable"}, canary.MaxUnavailable,
		"set strategy.canary.maxSurge to 1 and strategy.canary.maxUnavailable to 0")
}

// capacity checks how many pods a rollout removes before others are ready. nil is the
// default of Deployments and of Argo's Rollouts.
func (r *run) capacity(w *workload, p fieldPath, unavailable *intstr.IntOrString, fix string) {
	saying := "as it stands"
	if unavailable == nil {
		quarter := intstr.FromString("25%")
		unavailable, saying = &quarter, "which is the default"
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(unavailable, w.most, false)
	if err == nil && n > 0 && w.most > 0 {
		r.at(w.object, p, "rollout-loses-capacity",
			fmt.Sprintf("maxUnavailable is %s, %s: of %d replicas a rollout removes %d before their successors are ready", unavailable, saying, w.most, n), fix)
	}
}

func (r *run) daemonSet(w *workload) {
	var strategy appsv1.DaemonSetUpdateStrategy
	if bindsNode(w.pod) || w.read(&strategy, "spec", "updateStrategy") != nil || strategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
		return
	}
	surge := "0"
	if roll := strategy.RollingUpdate; roll != nil && roll.MaxSurge != nil {
		surge = roll.MaxSurge.String()
	}
	if surge == "0" || surge == "0%" {
		r.at(w.object, fieldPath{"spec", "updateStrategy", "rollingUpdate"}, "rollout-loses-capacity",
			"maxUnavailable is 1, which is the default, or more, and maxSurge 0: a node has no pod while its pod is replaced",
			"set updateStrategy.rollingUpdate to {maxSurge: 1, maxUnavailable: 0}")
	}
}

// selects reports whether the budget is about the workload's pods.
func (b budget) selects(w *workload) bool {
	return sameNamespace(b.object, w.object) && b.selector.Matches(labels.Set(w.labels))
}
