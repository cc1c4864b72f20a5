package vet_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/vet"
)

// Manifests of projects that do not use lifecycle have no error, and only these warnings
// and undecided pods, which are true.
func TestManifestsOfOthers(t *testing.T) {
	want := map[string][]string{
		"podinfo":            {"rollout-loses-capacity Deployment/default/podinfo"}, // maxUnavailable: 1, with up to 10 replicas
		"cert-manager":       nil,
		"microservices-demo": nil,
		"kube-prometheus": {
			"rollout-loses-capacity Deployment/monitoring/prometheus-adapter", // maxUnavailable: 1 of 2
		},
	}
	for name, want := range want {
		data, err := os.ReadFile("testdata/others/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		r := vet.Checker{}.Check(vet.File{Name: name, Data: data})
		for _, f := range r.Findings {
			if f.Rule != "not-compared" {
				have = append(have, f.Rule+" "+f.Object)
			}
		}
		slices.Sort(have)
		slices.Sort(want)
		if !slices.Equal(have, want) || r.Objects == 0 {
			t.Errorf("%s: %d workloads, %q, want %q", name, r.Objects, have, want)
		}
	}
}

const kubebuilder = `apiVersion: apps/v1
kind: Deployment
metadata: {name: controller-manager%s}
spec:
  replicas: 1
  selector: {matchLabels: {app: controller}}
  template:
    metadata: {labels: {app: controller}}
    spec:
      terminationGracePeriodSeconds: 10
      containers:
        - name: manager
          image: controller:latest
          command: [/manager]
          args: [--leader-elect, --health-probe-bind-address=:8081]
          livenessProbe: {httpGet: {path: /healthz, port: 8081}, initialDelaySeconds: 15, periodSeconds: 20}
          readinessProbe: {httpGet: {path: /readyz, port: 8081}, initialDelaySeconds: 5, periodSeconds: 10}
`

// An operator of Kubebuilder has probes on /healthz and /readyz at port 8081: they are no
// proof. An annotation decides where nothing else does.
func TestWhoseProgramItIs(t *testing.T) {
	for annotation, want := range map[string]string{
		"": "not-compared",
		", annotations: {lifecycle.pleme.io/vet: ignore}":    "",
		", annotations: {lifecycle.pleme.io/vet: ours}":      "not-compared",
		", annotations: {lifecycle.pleme.io/vet: lifecycle}": "grace-too-short",
	} {
		var ids []string
		for _, f := range check(lifecycle.Config{}, fmt.Sprintf(kubebuilder, annotation)).Findings {
			ids = append(ids, f.Rule)
		}
		if want == "grace-too-short" {
			if !slices.Contains(ids, want) || slices.Contains(ids, "not-compared") {
				t.Errorf("%q: %q, want %s among others", annotation, ids, want)
			}
		} else if strings.Join(ids, " ") != want {
			t.Errorf("%q: %q, want %q", annotation, ids, want)
		}
	}
}

// rules returns the rules that speak, sorted, without notes about other programs.
func rules(cfg lifecycle.Config, text string) (ids []string) {
	found := map[string]bool{}
	for _, f := range check(cfg, text).Findings {
		if f.Rule != "not-compared" {
			found[f.Rule] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

const (
	hpaV1    = "---\napiVersion: autoscaling/v1\nkind: HorizontalPodAutoscaler\nmetadata: {name: web}\nspec: {minReplicas: 1, maxReplicas: 9, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}\n"
	keda     = "---\napiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: web}\nspec: {minReplicaCount: 1, scaleTargetRef: {name: web}}\n"
	operator = "---\napiVersion: db.example.com/v1\nkind: Cluster\nmetadata: {name: db}\nspec: {instances: 3}\n"
)

// What else decides about pods counts: autoscalers of every kind, Rollouts of Argo, hooks
// and tests, operators.
func TestWhoMakesThePods(t *testing.T) {
	argo := strings.NewReplacer("apps/v1", "argoproj.io/v1alpha1", "kind: Deployment", "kind: Rollout",
		"    type: RollingUpdate\n    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}\n", "    canary: {maxSurge: 1, maxUnavailable: 0}\n").Replace(clean)
	budgeted := strings.Replace(clean, "maxUnavailable: 1\n", "minAvailable: 2\n", 1)
	scaled := func(text string) string { return strings.Replace(text, "  replicas: 3\n", "", 1) }
	only := scaled(clean)
	dumped := strings.Replace(clean, "  name: web\n", "  name: web\n  uid: a1\n", 1)
	percent := strings.Replace(clean, "maxSurge: 1, maxUnavailable: 0", "maxSurge: 1, maxUnavailable: 25%", 1)
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"HPA of version 1, one replica":       {only + hpaV1, []string{"single-replica"}},
		"HPA, a budget of two":                {scaled(budgeted) + hpaV1, []string{"pdb-blocks", "single-replica"}},
		"HPA, at the peak":                    {scaled(percent) + strings.Replace(hpaV1, "minReplicas: 1", "minReplicas: 3", 1), []string{"rollout-loses-capacity"}},
		"the same without an HPA":             {percent, nil},
		"HPA, in a dump of a cluster":         {dumped + hpaV1, []string{"single-replica"}},
		"ScaledObject":                        {only + keda, []string{"single-replica"}},
		"ScaledObject to zero":                {scaled(budgeted) + strings.Replace(keda, "minReplicaCount: 1, ", "", 1), nil},
		"Rollout":                             {argo, nil},
		"Rollout, short":                      {strings.Replace(argo, "PeriodSeconds: 30", "PeriodSeconds: 20", 1), []string{"grace-too-short"}},
		"Rollout, default strategy":           {strings.Replace(strings.Replace(argo, "canary: {maxSurge: 1, maxUnavailable: 0}", "canary: {}", 1), "replicas: 3", "replicas: 4", 1), []string{"rollout-loses-capacity"}},
		"Rollout, blue and green":             {strings.Replace(argo, "canary: {maxSurge: 1, maxUnavailable: 0}", "blueGreen: {activeService: web}", 1), nil},
		"operator with a template":            {strings.NewReplacer("apps/v1", "serving.example.com/v1", "kind: Deployment", "kind: Service").Replace(clean), nil},
		"operator, budget of its pods":        {strings.Replace(clean, "  maxUnavailable: 1\n  selector: {matchLabels: {app: web}}", "  maxUnavailable: 1\n  selector: {matchLabels: {db: web}}", 1) + operator, []string{"no-pdb"}},
		"hook with the labels of the pods":    {clean + "---\napiVersion: v1\nkind: Pod\nmetadata: {name: test, labels: {app: web}, annotations: {helm.sh/hook: test}}\nspec: {restartPolicy: Never, containers: [{name: t, image: t}]}\n", nil},
		"hook of Argo CD":                     {clean + "---\napiVersion: batch/v1\nkind: Job\nmetadata: {name: test, annotations: {argocd.argoproj.io/hook: PreSync}}\nspec: {template: {spec: {restartPolicy: Never, containers: [{name: t, image: t}]}}}\n", nil},
		"a budget of two Deployments":         {strings.Replace(clean, "maxUnavailable: 1\n", "minAvailable: 3\n", 1) + "---\n" + strings.Replace(strings.Split(clean, "---\n")[0], "name: web", "name: web2", 1), nil},
		"a volume that moves":                 {strings.Replace(strings.Replace(clean, "    type: RollingUpdate\n    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}", "    type: Recreate", 1), "      containers:\n", "      volumes: [{name: v, persistentVolumeClaim: {claimName: v}}]\n      containers:\n", 1), nil},
		"a port of the node":                  {strings.Replace(strings.Replace(clean, "maxUnavailable: 0}", "maxUnavailable: 1}", 1), "containerPort: 8080", "containerPort: 8080, hostPort: 80", 1), nil},
		"Kubernetes' defaults of readiness":   {strings.Replace(clean, "            periodSeconds: 1\n            failureThreshold: 2\n", "", 1), []string{"drain-unnoticed"}},
		"a selector that misses its template": {strings.Replace(clean, "labels: {app: web}", "labels: {app: wep}", 1), []string{"no-pdb", "pdb-selects-nothing"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := rules(lifecycle.Config{TerminationGrace: 30 * time.Second}, tt.text); !slices.Equal(got, tt.want) {
				t.Errorf("%q, want %q: %+v", got, tt.want, check(cleanConfig(), tt.text).Findings)
			}
		})
	}
	if r := check(cleanConfig(), strings.Replace(clean, "            periodSeconds: 1\n            failureThreshold: 2\n", "", 1)); r.AtLeast(vet.Error) > 0 {
		t.Errorf("the defaults of Kubernetes are no error: %+v", r.Findings)
	}
}
