package vet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	kjson "sigs.k8s.io/json"
)

// object is one document that is a Kubernetes object. vet reads only the parts of it that
// decide about a stop, and leaves the rest to validators of the schema.
type object struct {
	*document
	group, kind, namespace, name string
}

func (o object) String() string {
	if o.namespace != "" {
		return o.kind + "/" + o.namespace + "/" + o.name
	}
	return o.kind + "/" + o.name
}

// isCustom reports whether the object is of a kind that Kubernetes itself does not have.
func (o object) isCustom() bool {
	own := strings.HasSuffix(o.group, ".k8s.io") && !strings.HasSuffix(o.group, ".x-k8s.io")
	return strings.Contains(o.group, ".") && !own
}

// part returns a part of the object, nil when the object does not have it.
func (o object) part(path ...string) any {
	part := any(o.value)
	for _, name := range path {
		section, _ := part.(map[string]any)
		part = section[name]
	}
	return part
}

// read decodes a part of the object into v. It leaves v as it is when the object does not
// have the part.
func (o object) read(v any, path ...string) error {
	part := o.part(path...)
	if part == nil {
		return nil
	}
	data, err := json.Marshal(part)
	if err != nil {
		return err
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(data, v)
}

// isHook reports whether the object is a hook or a test of Helm or Argo CD.
func (o object) isHook() bool {
	return o.part("metadata", "annotations", "helm.sh/hook") != nil || o.part("metadata", "annotations", "argocd.argoproj.io/hook") != nil
}

// sameNamespace assumes that an object without a namespace is in the namespace of
// the other.
func sameNamespace(a, b object) bool {
	return a.namespace == b.namespace || a.namespace == "" || b.namespace == ""
}

type workload struct {
	object
	pod      *corev1.PodSpec
	podPath  fieldPath
	labels   map[string]string // of its pods
	replicas int               // the least; 0 when there is no sure number
	most     int               // the greatest number of replicas
	scaler   *scaler           // what sets the replicas, nil for the object itself
	once     bool              // its pods run to completion: a Job, a hook, a test

	main     *container   // the service's container, nil for a workload that the caller does not want
	services []*container // main, and the other containers that lifecycle runs
	compared bool         // lifecycle runs it, as far as vet can tell
}

func (w *workload) isJob() bool { return w.kind == "Job" || w.kind == "CronJob" }

// budget and service are the objects that refer to the pods of workloads.
type budget struct {
	object
	spec     policyv1.PodDisruptionBudgetSpec
	selector labels.Selector
}

type service struct {
	object
	spec corev1.ServiceSpec
}

// texts is a ConfigMap or a Secret, whose texts a container may read.
type texts struct {
	object
	values map[string]string
	fields map[string]string // in which field of the object each value is
}

// at returns the place of a value.
func (t texts) at(key string) place {
	return place{object: t.object, field: fieldPath{t.fields[key], key}}
}

// object reads a document as an object, and keeps it when the rules need it.
func (r *run) object(d *document) {
	o := object{document: d}
	version := ""
	for to, path := range map[*string][]string{
		&o.kind: {"kind"}, &version: {"apiVersion"}, &o.namespace: {"metadata", "namespace"}, &o.name: {"metadata", "name"},
	} {
		*to, _ = o.part(path...).(string)
	}
	if o.kind == "" || version == "" {
		line, _ := d.place(nil)
		r.unreadable(d, line, "not-an-object", "this is not a Kubernetes object: it has no kind or no apiVersion",
			"an object has apiVersion, kind, metadata and spec; give a configuration with --config")
		return
	}
	if group, _, hasGroup := strings.Cut(version, "/"); hasGroup {
		o.group = group
	}
	if err := r.keep(o); err != nil {
		line, _ := d.place(nil)
		r.unreadable(d, line, "not-an-object", fmt.Sprintf("%s cannot be read: %v", o, err),
			"kubeconform, or kubectl apply --dry-run=server, names the field; the rest of the file was checked")
	}
}

// keep keeps an object that the rules need. The version of its group does not matter: the
// parts that vet reads are the same in all versions.
func (r *run) keep(o object) (err error) {
	kind := o.kind
	if o.isCustom() {
		kind += "." + o.group
	}
	switch kind {
	case "ConfigMap", "Secret":
		var t texts
		if t, err = readTexts(o); err == nil {
			r.texts = append(r.texts, t)
		}
	case "Service":
		s := service{object: o}
		if err = o.read(&s.spec, "spec"); err == nil {
			r.services = append(r.services, s)
		}
	case "PodDisruptionBudget":
		b := budget{object: o}
		if err = o.read(&b.spec, "spec"); err == nil {
			b.selector = selector(b.spec.Selector)
			r.budgets = append(r.budgets, b)
		}
	case "HorizontalPodAutoscaler", "ScaledObject.keda.sh":
		var s scaler
		if s, err = readScaler(o); err == nil {
			r.scalers = append(r.scalers, s)
		}
	default:
		return r.keepWorkload(o)
	}
	return err
}

func readTexts(o object) (texts, error) {
	t := texts{o, map[string]string{}, map[string]string{}}
	encoded := map[string][]byte{}
	fields := map[string]any{"data": &t.values}
	if o.kind == "Secret" {
		fields = map[string]any{"data": &encoded, "stringData": &t.values}
	}
	for field, to := range fields {
		if err := o.read(to, field); err != nil {
			return t, err
		}
	}
	for key := range t.values {
		t.fields[key] = "data"
		if o.kind == "Secret" {
			t.fields[key] = "stringData"
		}
	}
	for key, value := range encoded {
		if _, plain := t.values[key]; !plain {
			t.values[key], t.fields[key] = string(value), "data"
		}
	}
	return t, nil
}

// selector returns a selector, nil for none, in the form that compares. One that the API
// server refuses selects nothing.
func selector(s *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}

// keepWorkload keeps an object that has a template of pods, of any kind. The operator of a
// custom resource without one may make pods too.
func (r *run) keepWorkload(o object) error {
	w := &workload{object: o}
	at := []string{"spec", "template"}
	switch o.kind {
	case "Pod":
		at = nil
	case "CronJob":
		at = []string{"spec", "jobTemplate", "spec", "template"}
	}
	var template corev1.PodTemplateSpec
	containers, _ := o.part(append(slices.Clone(at), "spec", "containers")...).([]any)
	hasPods := len(containers) > 0
	err := o.read(&template, at...)
	if hasPods && err == nil {
		err = w.readReplicas()
	}
	isUnsure := o.isCustom() && (!hasPods || err != nil)
	r.unsure = r.unsure || isUnsure
	switch {
	case !hasPods, isUnsure:
		return nil
	case err != nil:
		return err
	}
	for _, step := range at {
		w.podPath = append(w.podPath, step)
	}
	w.podPath = append(w.podPath, "spec")
	w.pod, w.labels = &template.Spec, template.Labels
	runsToTheEnd := w.pod.RestartPolicy == corev1.RestartPolicyNever || w.pod.RestartPolicy == corev1.RestartPolicyOnFailure
	w.once = o.isHook() || w.isJob() || runsToTheEnd
	r.workloads = append(r.workloads, w)
	return nil
}

// dropOwned drops the workloads whose owner is here too. A dump of a cluster has the
// ReplicaSets of a Deployment, also of its earlier templates, and their pods.
func (r *run) dropOwned() {
	here := make(map[string]bool, len(r.workloads))
	for _, w := range r.workloads {
		here[w.kind+"/"+w.namespace+"/"+w.name] = true
	}
	r.workloads = slices.DeleteFunc(r.workloads, func(w *workload) bool {
		owners, _ := w.part("metadata", "ownerReferences").([]any)
		return slices.ContainsFunc(owners, func(o any) bool {
			owner, _ := o.(map[string]any)
			return owner["controller"] == true && here[fmt.Sprint(owner["kind"], "/", w.namespace, "/", owner["name"])]
		})
	})
}
