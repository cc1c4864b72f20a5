// Package vet checks Kubernetes manifests against the configuration of a service
// that lifecycle runs, and reports where the two contradict each other: a grace
// that ends before the drain, a probe that asks the wrong plane, a drain window
// that closes before the cluster has noticed, a rollout that removes more pods
// than it adds.
//
// Different people write the two in different files, and nothing sees both at run
// time: the downward API does not carry terminationGracePeriodSeconds, and the API
// server does not know how a process uses it. A contradiction shows up weeks later
// as requests that fail during a rollout.
//
//	report := vet.Checker{Config: cfg}.Check(vet.File{Name: "deployment.yaml", Data: data})
//	report.WriteText(os.Stdout)
//
// It reads Deployments, StatefulSets, DaemonSets, ReplicaSets, Pods, Jobs and
// CronJobs, and the objects that belong to them: Services, PodDisruptionBudgets
// and HorizontalPodAutoscalers. Files can be YAML with many documents, JSON, Lists,
// rendered Helm charts, the output of kustomize, and Dockerfiles. Each [Finding]
// has a stable rule, a file and line, the reason, and the fix with the number to
// change; [Rules] lists the rules. vet does not contact a cluster.
//
// vet reads the settings with which the service starts, wherever the files have them,
// and in the order of config.Load: the file, mounted from a ConfigMap or a Secret; the
// variables, also those of envFrom and of other objects' keys; the flags of command and
// args. It compares a workload with a configuration when the manifest or the caller says
// that lifecycle runs it. A value that it cannot know is a note.
package vet
