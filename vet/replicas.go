package vet

// scaler is an autoscaler: the HorizontalPodAutoscaler of Kubernetes, or the ScaledObject
// of KEDA.
type scaler struct {
	object
	targetKind, targetName string
	least, most            int
	field                  string // the field of spec that has the least
}

// readScaler reads an autoscaler. By default Kubernetes keeps 1 replica at least, and KEDA
// 0 to 100 replicas of a Deployment.
func readScaler(o object) (scaler, error) {
	spec := struct {
		ScaleTargetRef struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
		} `json:"scaleTargetRef"`
		MinReplicas     int `json:"minReplicas"`
		MaxReplicas     int `json:"maxReplicas"`
		MinReplicaCount int `json:"minReplicaCount"`
		MaxReplicaCount int `json:"maxReplicaCount"`
	}{MinReplicas: 1, MaxReplicaCount: 100}
	if o.isCustom() {
		spec.ScaleTargetRef.Kind = "Deployment"
	}
	err := o.read(&spec, "spec")
	s := scaler{
		object:     o,
		targetKind: spec.ScaleTargetRef.Kind,
		targetName: spec.ScaleTargetRef.Name,
		least:      spec.MinReplicas,
		most:       spec.MaxReplicas,
		field:      "minReplicas",
	}
	if o.isCustom() {
		s.least, s.most, s.field = spec.MinReplicaCount, spec.MaxReplicaCount, "minReplicaCount"
	}
	return s, err
}

// readReplicas reads the number of replicas that the object itself has. A custom resource
// without a number has the one that its operator chooses.
func (w *workload) readReplicas() error {
	n := int32(1)
	switch {
	case w.kind == "Pod", w.kind == "DaemonSet", w.isJob(), w.isCustom() && w.kind != "Rollout":
		n = 0
	}
	err := w.read(&n, "spec", "replicas")
	w.replicas = max(0, int(n))
	w.most = w.replicas
	return err
}

// scale sets the replicas of each workload that an autoscaler owns.
func (r *run) scale() {
	for i := range r.scalers {
		s := &r.scalers[i]
		for _, w := range r.workloads {
			if w.kind == s.targetKind && w.name == s.targetName && sameNamespace(w.object, s.object) {
				w.replicas, w.most, w.scaler = s.least, max(s.least, s.most), s
			}
		}
	}
}

// replicasAt returns the object that sets the number of replicas, and its field.
func (w *workload) replicasAt() (o object, field string) {
	if w.scaler != nil {
		return w.scaler.object, w.scaler.field
	}
	return w.object, "replicas"
}
