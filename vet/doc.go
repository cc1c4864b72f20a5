// Package vet holds Kubernetes manifests against the configuration of a service
// that is run by lifecycle, and says where the two contradict each other: a grace
// that ends before the drain does, a probe that asks the wrong plane, a window
// that closes before anybody noticed, a rollout that takes away more than it
// brings.
//
// The two are written by different people in different files, and nothing at run
// time sees both: the downward API does not carry terminationGracePeriodSeconds,
// and the API server does not know what a process means to do with it. A
// contradiction shows itself as failed requests in some rollout, weeks later.
//
//	report := vet.Checker{Config: cfg}.Check(vet.File{Name: "deployment.yaml", Data: data})
//	report.WriteText(os.Stdout)
//
// It reads Deployments, StatefulSets, DaemonSets, ReplicaSets, Pods, Jobs and
// CronJobs, and what stands around them: Services, PodDisruptionBudgets and
// HorizontalPodAutoscalers. Files may be YAML of many documents, JSON, Lists,
// rendered Helm charts, the output of kustomize, and Dockerfiles. Each [Finding]
// has a stable rule, a place down to the line, the reason, and the fix with the
// number to change; [Rules] lists them. Nothing asks a cluster.
//
// What it cannot see: settings that reach the process by environment or flag and
// not by the given configuration, and PodDisruptionBudgets or Services in files
// that it was not given.
package vet
