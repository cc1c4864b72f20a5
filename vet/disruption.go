package vet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// budget checks a PodDisruptionBudget against all pods that it selects together, as the
// disruption controller does. That rounds percentages up.
func (r *run) budget(b budget) {
	var selected []*workload
	for _, w := range r.workloads {
		if !w.once && b.selects(w) {
			selected = append(selected, w)
		}
	}
	switch {
	case len(selected) == 0 && len(r.workloads) > 0 && !r.unsure:
		r.at(b.object, fieldPath{"spec", "selector"}, "pdb-selects-nothing", "no pod template in these files has the labels that it selects",
			"copy the labels of spec.template.metadata.labels into spec.selector.matchLabels")
	case slices.ContainsFunc(selected, func(w *workload) bool { return r.wants(w.object) }):
		r.limit(b, "minAvailable", b.spec.MinAvailable, selected)
		r.limit(b, "maxUnavailable", b.spec.MaxUnavailable, selected)
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
	keepsAll := field == "minAvailable" && limit.String() == "100%"
	allowsNone := field == "maxUnavailable" && strings.TrimSuffix(limit.String(), "%") == "0"
	always := keepsAll || allowsNone
	p := fieldPath{"spec", field}
	switch {
	case err != nil, !always && (!known || allows > 0):
	case field == "maxUnavailable":
		r.at(b.object, p, "pdb-blocks", fmt.Sprintf("maxUnavailable is %s: no eviction of a pod of %s is ever allowed", limit, of), "set maxUnavailable: 1")
	default:
		reason := fmt.Sprintf("minAvailable is %s of the pods of %s: no eviction is ever allowed", limit, of)
		if known {
			reason = fmt.Sprintf("minAvailable is %s, which is %d of the %d replicas of %s: no eviction is ever allowed", limit, total-allows, total, of)
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

// service checks whether a Service goes on sending requests to pods that stop.
func (r *run) service(s service) {
	var selected []*workload
	for _, w := range r.workloads {
		if !w.once && w.main != nil && sameNamespace(s.object, w.object) && s.selects(w) {
			selected = append(selected, w)
		}
	}
	if len(selected) == 0 {
		return
	}
	readinessGoesDown := false
	for _, w := range selected {
		if !w.compared {
			continue
		}
		cfg := w.main.cfg
		if cfg.DrainWait == lifecycle.WaitNever && !w.main.isUnknown("DrainWait") {
			r.at(s.object, fieldPath{"spec", "selector"}, "drain-unnoticed",
				fmt.Sprintf("drain_wait is never: a pod of %s that stops closes its listeners while the Service still sends it requests", w),
				"remove lifecycle.drain_wait")
		}
		readinessGoesDown = readinessGoesDown || cfg.DrainReadiness == lifecycle.ReadinessDown && !w.main.isUnknown("DrainReadiness")
	}
	if s.spec.PublishNotReadyAddresses && s.spec.ClusterIP != corev1.ClusterIPNone {
		r.at(s.object, fieldPath{"spec", "publishNotReadyAddresses"}, "not-ready-published",
			fmt.Sprintf("publishNotReadyAddresses is true: the Service still sends requests to a pod of %s that has closed its listeners", selected[0]),
			"remove it, or give peers a Service of their own, with clusterIP: None")
	}
	if !readinessGoesDown {
		return
	}
	const fix = "set lifecycle.drain_readiness to serving"
	if s.spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		r.at(s.object, fieldPath{"spec", "externalTrafficPolicy"}, "traffic-local",
			"externalTrafficPolicy is Local, and drain_readiness is down: a node whose only pod drains drops what load balancers still send it", fix)
	}
	if policy := s.spec.InternalTrafficPolicy; policy != nil && *policy == corev1.ServiceInternalTrafficPolicyLocal {
		r.at(s.object, fieldPath{"spec", "internalTrafficPolicy"}, "traffic-local",
			"internalTrafficPolicy is Local, and drain_readiness is down: a node whose only pod drains drops what the clients on it send", fix)
	}
}

// selects reports whether the Service sends requests to the workload's pods.
func (s service) selects(w *workload) bool {
	for key, value := range s.spec.Selector {
		if w.labels[key] != value {
			return false
		}
	}
	return len(s.spec.Selector) > 0
}
