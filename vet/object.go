package vet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"
)

// scheme has the kinds that vet decodes; it skips every other kind.
var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, autoscalingv1.AddToScheme, autoscalingv2.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err) // two of the packages above define one type differently
		}
	}
	return s
}()

// object is one decoded document.
type object struct {
	*document
	kind, namespace, name string
}

func (o object) String() string {
	if o.namespace != "" {
		return o.kind + "/" + o.namespace + "/" + o.name
	}
	return o.kind + "/" + o.name
}

// workload is an object with pods.
type workload struct {
	object
	pod         *corev1.PodSpec
	podPath     fieldPath
	labels      map[string]string // of its pods
	annotations map[string]string // of its pods
	replicas    int               // the least; 1 when the object does not set it, 0 when there is no sure number
	most        int               // the greatest number of replicas
	scaler      *scaler           // what sets the replicas, nil for the object itself
	rollout     *workload         // the Rollout of Argo that makes its pods, nil for the object itself
	once        bool              // its pods run to completion: a Job, a hook, a test
	typed       any

	main      int              // the index of its service's container
	cfg       lifecycle.Config // with which its service starts
	given     map[string]place // the keys that the manifest sets, and where
	file      *place           // the text of the configuration's file, nil when the manifest does not have it
	noFile    bool             // its service reads no file
	unknown   map[string]bool  // the fields whose values the manifest sets and vet cannot know
	absent    []missingObject  // what its service may read and the files do not have
	senseless bool             // cfg has a value that means nothing
	ours      bool             // its configuration has a fault in a key of lifecycle
	compared  bool             // lifecycle runs it, as far as vet can tell
	delayed   []delayed        // findings about its settings, for when it is compared
}

// delayed is a finding that waits until it is known whether lifecycle runs the workload.
type delayed struct {
	place             place
	rule, reason, fix string
}

// pending adds a finding about the settings of the workload's service.
func (w *workload) pending(at place, rule, reason, fix string) {
	w.delayed = append(w.delayed, delayed{at, rule, reason, fix})
}

// self returns the object itself, of any kind that embeds it.
func (o object) self() object { return o }

// isHook reports whether the object is a hook or a test of Helm or Argo CD.
func isHook(o object) bool {
	meta, _ := o.value["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	return annotations["helm.sh/hook"] != nil || annotations["argocd.argoproj.io/hook"] != nil
}

// budget, service and scaler are objects that refer to workloads.
type budget struct {
	object
	*policyv1.PodDisruptionBudget
	selector labels.Selector
}

type service struct {
	object
	*corev1.Service
}

type scaler struct {
	object
	targetKind, targetName string
	least, most            int
	field                  string // the field of spec that has the least
}

// keepScaler keeps a HorizontalPodAutoscaler of any version. Its minReplicas is 1 by
// default.
func (r *run) keepScaler(o object, kind, name string, least *int32, most int32) {
	s := scaler{o, kind, name, 1, int(most), "minReplicas"}
	if least != nil {
		s.least = int(*least)
	}
	r.scalers = append(r.scalers, s)
}

// runsOnce reports whether the pods run to completion and serve nothing: those of a Job,
// of a hook or test of Helm or Argo CD, and pods that the kubelet does not restart.
func runsOnce(o object, pod corev1.PodSpec) bool {
	return isHook(o) || o.kind == "Job" || o.kind == "CronJob" ||
		pod.RestartPolicy == corev1.RestartPolicyNever || pod.RestartPolicy == corev1.RestartPolicyOnFailure
}

// retired are versions that manifests still use and no API server serves, each with
// its replacement.
var retired = map[string]string{
	"extensions/v1beta1": "apps/v1", "apps/v1beta1": "apps/v1", "apps/v1beta2": "apps/v1",
	"policy/v1beta1": "policy/v1", "batch/v1beta1": "batch/v1", "autoscaling/v2beta2": "autoscaling/v2", "autoscaling/v2beta1": "autoscaling/v2",
}

// decode reads a document as the API server would, and keeps the objects that the
// rules check.
func (r *run) decode(d *document) {
	text := func(m map[string]any, key string) string { s, _ := m[key].(string); return s }
	meta, _ := d.value["metadata"].(map[string]any)
	o := object{d, text(d.value, "kind"), text(meta, "namespace"), text(meta, "name")}
	version := text(d.value, "apiVersion")
	if o.kind == "" || version == "" {
		r.at(o, nil, "not-an-object", "this is not a Kubernetes object: it has no "+missing(o.kind, "kind", version, "apiVersion"),
			"an object has apiVersion, kind, metadata and spec; give a configuration with --config")
		return
	}
	if now, ok := retired[version]; ok {
		r.at(o, fieldPath{"apiVersion"}, "retired-version", fmt.Sprintf("no maintained Kubernetes serves %s of %s", o.kind, version), "set apiVersion to "+now)
		version = now
	}
	gv, err := schema.ParseGroupVersion(version)
	if err != nil {
		r.at(o, fieldPath{"apiVersion"}, "wrong-type", fmt.Sprintf("apiVersion is %q", version), "want group/version, as apps/v1")
		return
	}
	typed, err := scheme.New(gv.WithKind(o.kind))
	if err != nil {
		r.custom(o, gv)
		return
	}
	if p, ok := braces(d.value, nil); ok && o.kind != "ConfigMap" && o.kind != "Secret" {
		line, _ := d.place(p)
		r.notRendered(d.file, line)
		return
	}
	data, err := json.Marshal(d.value)
	if err != nil {
		r.at(o, nil, "wrong-type", err.Error(), "mend the object")
		return
	}
	strict, err := kjson.UnmarshalStrict(data, typed, kjson.DisallowUnknownFields)
	for _, s := range strict {
		var field kjson.FieldError
		if errors.As(s, &field) {
			p := parsePath(field.FieldPath())
			r.at(o, p, "unknown-field", fmt.Sprintf("%s %s has no field %s: the API server drops it or refuses the object", gv, o.kind, p), meant(reflect.TypeOf(typed), p))
		}
	}
	if err != nil {
		r.unread = true
		fix := "give the field the type that it has in the API"
		if strings.HasSuffix(err.Error(), "of type string") {
			fix = "put the value in quotes"
		}
		r.at(o, wrongValue(d.value, err), "wrong-type", fmt.Sprintf("it cannot be read as %s %s: %v", gv, o.kind, strings.TrimPrefix(err.Error(), "json: ")), fix)
		return
	}
	r.keep(o, typed)
}

func (r *run) keep(o object, typed any) {
	add := func(pod *corev1.PodTemplateSpec, replicas *int32, at ...any) {
		n := 1
		if replicas != nil {
			n = int(*replicas)
		}
		r.workloads = append(r.workloads, &workload{object: o, pod: &pod.Spec, podPath: append(at, "spec"), labels: pod.Labels, annotations: pod.Annotations,
			replicas: n, most: n, once: runsOnce(o, pod.Spec), typed: typed})
	}
	none := new(int32)
	switch t := typed.(type) {
	case *appsv1.Deployment:
		add(&t.Spec.Template, t.Spec.Replicas, "spec", "template")
	case *appsv1.StatefulSet:
		add(&t.Spec.Template, t.Spec.Replicas, "spec", "template")
	case *appsv1.ReplicaSet:
		add(&t.Spec.Template, t.Spec.Replicas, "spec", "template")
	case *appsv1.DaemonSet:
		add(&t.Spec.Template, none, "spec", "template")
	case *batchv1.Job:
		add(&t.Spec.Template, none, "spec", "template")
	case *batchv1.CronJob:
		add(&t.Spec.JobTemplate.Spec.Template, none, "spec", "jobTemplate", "spec", "template")
	case *corev1.Pod:
		add(&corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: t.Labels, Annotations: t.Annotations}, Spec: t.Spec}, none)
	case *corev1.ConfigMap:
		r.configMaps = append(r.configMaps, configMap{o, t})
	case *corev1.Secret:
		r.secrets = append(r.secrets, secret{o, t})
	case *policyv1.PodDisruptionBudget:
		r.budgets = append(r.budgets, budget{o, t, selector(t.Spec.Selector)})
	case *corev1.Service:
		r.services = append(r.services, service{o, t})
	case *autoscalingv2.HorizontalPodAutoscaler:
		r.keepScaler(o, t.Spec.ScaleTargetRef.Kind, t.Spec.ScaleTargetRef.Name, t.Spec.MinReplicas, t.Spec.MaxReplicas)
	case *autoscalingv1.HorizontalPodAutoscaler:
		r.keepScaler(o, t.Spec.ScaleTargetRef.Kind, t.Spec.ScaleTargetRef.Name, t.Spec.MinReplicas, t.Spec.MaxReplicas)
	}
}

// dropOwned drops the workloads whose owner is here too. A dump of a cluster has the
// ReplicaSets of a Deployment, also those of earlier templates, and their pods.
func (r *run) dropOwned() {
	here := make(map[string]bool, len(r.workloads))
	for _, w := range r.workloads {
		here[w.kind+"/"+w.namespace+"/"+w.name] = true
	}
	r.workloads = slices.DeleteFunc(r.workloads, func(w *workload) bool {
		meta, _ := w.value["metadata"].(map[string]any)
		owners, _ := meta["ownerReferences"].([]any)
		return slices.ContainsFunc(owners, func(o any) bool {
			owner, _ := o.(map[string]any)
			return owner["controller"] == true && here[fmt.Sprint(owner["kind"], "/", w.namespace, "/", owner["name"])]
		})
	})
}

// sameNamespace assumes that an object without a namespace is in the namespace of
// the other.
func sameNamespace(a, b object) bool {
	return a.namespace == b.namespace || a.namespace == "" || b.namespace == ""
}

func missing(pairs ...string) string {
	var names []string
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i] == "" {
			names = append(names, pairs[i+1])
		}
	}
	return strings.Join(names, " and no ")
}

// braces finds a value that begins with a template's braces. Quoted braces are
// valid YAML, so the parser does not find them.
func braces(v any, p fieldPath) (fieldPath, bool) {
	switch v := v.(type) {
	case string:
		return p, strings.HasPrefix(strings.TrimSpace(v), "{{")
	case map[string]any:
		for k, child := range v {
			if k == "annotations" {
				continue // an annotation may hold the template of another tool
			}
			if p, ok := braces(child, p.with(k)); ok {
				return p, true
			}
		}
	case []any:
		for i, child := range v {
			if p, ok := braces(child, p.with(i)); ok {
				return p, true
			}
		}
	}
	return nil, false
}

// wrongField returns the field that a decoding error names.
func wrongField(err error) fieldPath {
	var typeErr *json.UnmarshalTypeError
	if errors.As(err, &typeErr) {
		return parsePath(typeErr.Field)
	}
	// sigs.k8s.io/json has a copy of that type, which it does not export.
	if _, after, ok := strings.Cut(err.Error(), "struct field "); ok {
		name, _, _ := strings.Cut(after, " ")
		if _, fields, ok := strings.Cut(name, "."); ok {
			return parsePath(fields)
		}
	}
	return nil
}

// wrongValue returns the place of the value that a decoding error is about. The error names
// the fields without the indices of lists and the keys of maps.
func wrongValue(v any, err error) fieldPath {
	field := wrongField(err)
	_, after, _ := strings.Cut(err.Error(), "cannot unmarshal ")
	kind, _, _ := strings.Cut(after, " ")
	if p, ok := firstOf(v, field, kind); ok {
		return p
	}
	return field
}

// firstOf returns the path of the first value at the field, or below it, that is of this
// kind of JSON.
func firstOf(v any, field fieldPath, kind string) (fieldPath, bool) {
	is := func(k string) (fieldPath, bool) { return nil, len(field) == 0 && kind == k }
	below := func(key any, child any, field fieldPath) (fieldPath, bool) {
		p, ok := firstOf(child, field, kind)
		return append(fieldPath{key}, p...), ok
	}
	switch v := v.(type) {
	case map[string]any:
		if len(field) > 0 {
			name, _ := field[0].(string)
			return below(name, v[name], field[1:])
		}
		if kind == "object" {
			return nil, true
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if p, ok := below(key, v[key], nil); ok {
				return p, true
			}
		}
	case []any:
		if p, ok := is("array"); ok {
			return p, ok
		}
		for i, item := range v {
			if p, ok := below(i, item, field); ok {
				return p, true
			}
		}
	case string:
		return is("string")
	case bool:
		return is("bool")
	case int, int64, uint64, float64:
		return is("number")
	}
	return nil, false
}

// meant names the field for which p is probably a misspelling.
func meant(t reflect.Type, p fieldPath) string {
	const none = "remove it, or move it to the object that has it"
	if len(p) == 0 {
		return none
	}
	for _, step := range p[:len(p)-1] {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch _, isIndex := step.(int); {
		case isIndex && t.Kind() == reflect.Slice, !isIndex && t.Kind() == reflect.Map:
			t = t.Elem()
		case !isIndex && t.Kind() == reflect.Struct:
			f, ok := fields(t)[step.(string)] //nolint:errcheck // the case says that it is one
			if !ok {
				return none
			}
			t = f
		default:
			return none
		}
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name, ok := p[len(p)-1].(string)
	if !ok || t.Kind() != reflect.Struct {
		return none
	}
	known := make(map[string]string) // by the name in lower case, because authors mistake the case
	for candidate := range fields(t) {
		known[strings.ToLower(candidate)] = candidate
	}
	best := known[suggest.Nearest(strings.ToLower(name), slices.Collect(maps.Keys(known)))]
	if best == "" {
		return none
	}
	return fmt.Sprintf("did you mean %s?", best)
}

// fields returns the JSON fields of a struct, with those of embedded structs.
func fields(t reflect.Type) map[string]reflect.Type {
	all := make(map[string]reflect.Type)
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" && f.Anonymous && f.Type.Kind() == reflect.Struct:
			for k, v := range fields(f.Type) {
				all[k] = v
			}
		case name != "" && name != "-":
			all[name] = f.Type
		}
	}
	return all
}
