package vet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// budget checks a PodDisruptionBudget against all pods that it selects together, as the
// disruption controller does. That rounds percentages up.
func (r *run) budget(b budget) {
	if b.Spec.MinAvailable != nil && b.Spec.MaxUnavailable != nil {
		r.at(b.object, fieldPath{"spec", "maxUnavailable"}, "pdb-invalid", "minAvailable and maxUnavailable are both set", "keep maxUnavailable: 1")
		return
	}
	var selected []*workload
	for _, w := range r.workloads {
		if !w.once && sameNamespace(b.object, w.object) && b.selector.Matches(labels.Set(w.labels)) {
			selected = append(selected, w)
		}
	}
	switch {
	case len(selected) == 0 && len(r.customs) > 0:
		r.at(b.object, fieldPath{"spec", "selector"}, "pods-undecided", "no pod template in these files has the labels that it selects; an operator may make such pods: of "+r.operators(),
			"compare it with the labels of the pods in the cluster")
	case len(selected) == 0 && len(r.workloads) > 0 && !r.unread:
		r.at(b.object, fieldPath{"spec", "selector"}, "pdb-selects-nothing", "no pod template in these files has the labels that it selects", "copy the labels of spec.template.metadata.labels into spec.selector.matchLabels")
	case slices.ContainsFunc(selected, func(w *workload) bool { return r.wanted(w.object) }):
		r.limit(b, "minAvailable", b.Spec.MinAvailable, selected)
		r.limit(b, "maxUnavailable", b.Spec.MaxUnavailable, selected)
	}
}

// limit checks whether a limit of a budget lets any pod go.
func (r *run) limit(b budget, field string, limit *intstr.IntOrString, selected []*workload) {
	if limit == nil {
		return
	}
	var names []string
	total, known := 0, true
	for _, w := range selected {
		names = append(names, w.String())
		total += w.replicas
		known = known && w.replicas > 0
	}
	of := strings.Join(names, ", ")
	allows, err := evictions(field, limit, max(total, 1))
	// A share of all or of none does not depend on the number of pods.
	always := field == "minAvailable" && limit.String() == "100%" || field == "maxUnavailable" && strings.TrimSuffix(limit.String(), "%") == "0"
	p := fieldPath{"spec", field}
	switch {
	case err != nil:
		r.at(b.object, p, "wrong-type", fmt.Sprintf("%s is %q: %v", field, limit.String(), err), "want a number or a percentage, as 1 or 25%")
	case !always && (!known || allows > 0):
	case field == "maxUnavailable":
		r.at(b.object, p, "pdb-blocks", fmt.Sprintf("maxUnavailable is %s: no eviction of a pod of %s is ever allowed", limit.String(), of), "set maxUnavailable: 1")
	default:
		reason := fmt.Sprintf("minAvailable is %s of the pods of %s: no eviction is ever allowed", limit.String(), of)
		if known {
			reason = fmt.Sprintf("minAvailable is %s, which is %d of the %d replicas of %s: no eviction is ever allowed", limit.String(), total-allows, total, of)
		}
		fix := "set maxUnavailable: 1 in place of minAvailable"
		if with, err := evictions(field, limit, 2); known && total == 1 && err == nil && with > 0 {
			_, name := selected[0].replicasAt()
			fix = "set " + name + " to 2 or more, or " + fix
		}
		r.at(b.object, p, "pdb-blocks", reason, fix)
	}
}

// evictions returns how many of so many healthy pods a budget lets go at once.
func evictions(field string, limit *intstr.IntOrString, pods int) (int, error) {
	n, err := intstr.GetScaledValueFromIntOrPercent(limit, pods, true)
	if field == "minAvailable" {
		n = max(0, pods-n)
	}
	return n, err
}

// service checks a Service against the pods that it selects. A named port has endpoints
// in the pods that have it.
func (r *run) service(s service) {
	if len(s.Spec.Selector) == 0 {
		return
	}
	var selected []*workload
	for _, w := range r.workloads {
		if !w.once && sameNamespace(s.object, w.object) && selects(s.Spec.Selector, w.labels) {
			selected = append(selected, w)
		}
	}
	if len(selected) == 0 && len(r.workloads) > 0 && len(r.Only) == 0 && !r.unread {
		reason := "no pod template in these files has the labels that it selects"
		if len(r.customs) > 0 {
			reason += "; an operator may make such pods: of " + r.operators()
		}
		r.at(s.object, fieldPath{"spec", "selector"}, "pods-undecided", reason, "compare it with the labels of the pods, or give the files that have them")
	}
	if !slices.ContainsFunc(selected, func(w *workload) bool { return r.wanted(w.object) }) {
		return
	}
	for i, port := range s.Spec.Ports {
		if port.TargetPort.Type == intstr.String && !slices.ContainsFunc(selected, func(w *workload) bool { return hasPort(w.pod, port.TargetPort.StrVal) }) {
			r.at(s.object, fieldPath{"spec", "ports", i, "targetPort"}, "service-port", fmt.Sprintf("targetPort %q is not a port of any container of %s", port.TargetPort.StrVal, selected[0]),
				"give a container's port that name, or the Service the number")
		}
	}
	for _, w := range selected {
		if w.compared && !w.unknown["DrainWait"] && w.cfg.DrainWait == lifecycle.WaitNever {
			r.at(s.object, fieldPath{"spec", "selector"}, "drain-unnoticed", fmt.Sprintf("drain_wait is never: a pod of %s that stops closes its listeners while the Service still sends it requests", w),
				"remove lifecycle.drain_wait")
		}
	}
	if s.Spec.PublishNotReadyAddresses && s.Spec.ClusterIP != corev1.ClusterIPNone {
		r.at(s.object, fieldPath{"spec", "publishNotReadyAddresses"}, "not-ready-published", fmt.Sprintf("publishNotReadyAddresses is true: the Service still sends requests to a pod of %s that has closed its listeners", selected[0]),
			"remove it, or give peers a Service of their own, with clusterIP: None")
	}
	if !slices.ContainsFunc(selected, func(w *workload) bool {
		return w.compared && !w.unknown["DrainReadiness"] && w.cfg.WithDefaults().DrainReadiness == lifecycle.ReadinessDown
	}) {
		return
	}
	const fix = "set lifecycle.drain_readiness to serving"
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		r.at(s.object, fieldPath{"spec", "externalTrafficPolicy"}, "traffic-local", "externalTrafficPolicy is Local, and drain_readiness is down: a node whose only pod drains drops what load balancers still send it", fix)
	}
	if policy := s.Spec.InternalTrafficPolicy; policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal {
		r.at(s.object, fieldPath{"spec", "internalTrafficPolicy"}, "traffic-local", "internalTrafficPolicy is Local, and drain_readiness is down: a node whose only pod drains drops what the clients on it send", fix)
	}
}

func selects(selector, own map[string]string) bool {
	for k, v := range selector {
		if own[k] != v {
			return false
		}
	}
	return true
}

func hasPort(pod *corev1.PodSpec, name string) bool {
	has := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == name })
	}
	return slices.ContainsFunc(pod.Containers, has) || slices.ContainsFunc(pod.InitContainers, func(c corev1.Container) bool { return isSidecar(c) && has(c) })
}
