package vet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// operated marks a workload that an operator makes; argo, one of Argo Rollouts.
type operated struct{ argo bool }

// custom keeps an object of a kind that Kubernetes itself does not have. Its operator may
// make pods of it. vet reads them when they stand where they do in a Deployment, as those
// of a Rollout of Argo do.
func (r *run) custom(o object, gv schema.GroupVersion) {
	if !strings.Contains(gv.Group, ".") || strings.HasSuffix(gv.Group, ".k8s.io") && !strings.HasSuffix(gv.Group, ".x-k8s.io") {
		return // a kind of Kubernetes that has no pods
	}
	spec, _ := o.value["spec"].(map[string]any)
	number := func(name string, otherwise int) int {
		switch n := spec[name].(type) {
		case int:
			return max(0, min(n, longest))
		case float64:
			return int(max(0, min(n, longest)))
		}
		return otherwise
	}
	words := func(m any, name string) string {
		section, _ := m.(map[string]any)
		text, _ := section[name].(string)
		return text
	}
	if o.kind == "ScaledObject" && gv.Group == "keda.sh" {
		target := spec["scaleTargetRef"]
		// KEDA's defaults: a Deployment, from 0 to 100 replicas.
		s := scaler{o, words(target, "kind"), words(target, "name"), number("minReplicaCount", 0), number("maxReplicaCount", 100), "minReplicaCount"}
		if s.targetKind == "" {
			s.targetKind = "Deployment"
		}
		r.scalers = append(r.scalers, s)
		return
	}
	argo := o.kind == "Rollout" && gv.Group == "argoproj.io"
	w := &workload{object: o, podPath: fieldPath{"spec", "template", "spec"}, typed: operated{argo}, replicas: number("replicas", 0)}
	if _, set := spec["replicas"]; argo && !set {
		w.replicas = 1
	}
	w.most = w.replicas
	if ref := spec["workloadRef"]; ref != nil && argo {
		r.rollouts = append(r.rollouts, rollout{w, words(ref, "kind"), words(ref, "name")})
		return
	}
	template, _ := spec["template"].(map[string]any)
	pod, _ := template["spec"].(map[string]any)
	containers, _ := pod["containers"].([]any)
	var typed corev1.PodTemplateSpec
	data, err := json.Marshal(template)
	if err == nil {
		err = json.Unmarshal(data, &typed)
	}
	if _, set := spec["replicas"]; len(containers) == 0 || err != nil || !argo && !set {
		r.customs = append(r.customs, o) // its operator decides about its pods, or about their number
	}
	if len(containers) == 0 || err != nil {
		return
	}
	w.pod, w.labels, w.annotations, w.once = &typed.Spec, typed.Labels, typed.Annotations, runsOnce(o, typed.Spec)
	r.workloads = append(r.workloads, w)
}

// rollout is a Rollout of Argo that takes the template of another object.
type rollout struct {
	*workload
	kind, name string
}

// refer gives the replicas of each Rollout to the Deployment that has its template: the
// pods are those of the Rollout.
func (r *run) refer() {
	for _, own := range r.rollouts {
		i := slices.IndexFunc(r.workloads, func(w *workload) bool {
			return w.kind == own.kind && w.name == own.name && sameNamespace(w.object, own.object)
		})
		if i < 0 {
			r.at(own.object, fieldPath{"spec", "workloadRef"}, "pods-undecided", fmt.Sprintf("the pods are those of %s/%s, which is not in these files", own.kind, own.name),
				"give that object too")
			continue
		}
		w := r.workloads[i]
		w.replicas, w.most, w.rollout = own.replicas, own.most, own.workload
	}
}

// argoStrategy checks how a Rollout of Argo replaces pods. A blue-green one keeps the old
// pods until the new ones are ready.
func (r *run) argoStrategy(w *workload, o object) {
	spec, _ := o.value["spec"].(map[string]any)
	strategy, _ := spec["strategy"].(map[string]any)
	canary, ok := strategy["canary"].(map[string]any)
	if !ok {
		return
	}
	// The default of Argo Rollouts.
	unavailable, given := intstr.FromString("25%"), "which is the default"
	if v, set := canary["maxUnavailable"]; set {
		unavailable, given = intstr.Parse(fmt.Sprint(v)), "as it stands"
	}
	r.capacity(w, o, fieldPath{"spec", "strategy", "canary", "maxUnavailable"}, unavailable, given, "set strategy.canary.maxSurge to 1 and strategy.canary.maxUnavailable to 0")
}

// operators names the kinds of objects whose operators may make pods.
func (r *run) operators() string {
	var kinds []string
	for _, o := range r.customs {
		kinds = append(kinds, o.kind)
	}
	slices.Sort(kinds)
	kinds = slices.Compact(kinds)
	if len(kinds) > 4 {
		kinds = append(kinds[:4], "others")
	}
	return strings.Join(kinds, ", ")
}
