// Package vet checks Kubernetes manifests against the configuration of a service
// that lifecycle runs, and reports where a stop would lose requests: a grace that ends
// before the drain, a probe that asks the wrong plane, a drain window that closes before
// the cluster has noticed, a rollout that removes more pods than it adds.
//
// Different people write the two in different files, and nothing sees both at run
// time: the downward API does not carry terminationGracePeriodSeconds, and the API
// server does not know how a process uses it. A contradiction shows up weeks later
// as requests that fail during a rollout.
//
//	report := vet.Checker{Config: cfg}.Check(vet.File{Name: "deployment.yaml", Data: data})
//	report.WriteText(os.Stdout)
//
// It reads every object that has a template of pods, in any API version, and the
// Services, PodDisruptionBudgets and autoscalers that belong to it. It reads only what
// decides about a stop: kubeconform and kubectl apply --dry-run=server check the schema.
// Each [Finding] has a stable rule, a file and line, the reason, and the fix with the
// number to change; [Rules] lists the rules. vet does not contact a cluster.
//
// [Checker.Check] in checker.go is the way through it: read.go finds the documents,
// objects.go keeps the objects, services.go and settings.go find the configuration of each
// service (the mounted file, then variables, then flags, as in config.Load), and the
// files grace.go, probes.go, rollout.go and others have the rules. A value that vet
// cannot know is a note.
package vet
