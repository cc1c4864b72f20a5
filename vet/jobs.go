package vet

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// job checks work that runs to completion.
func (c *container) job() {
	if !c.cfg.ExitOnSignal {
		reason := "lifecycle.exit_on_signal is false: unless its work is an App.Job, a pod that is stopped in the middle exits 0, and the Job counts as complete"
		if _, prefix := wrapped(c.spec); prefix != "" {
			reason = "lifecycle.exit_on_signal is false: when the program exits 0 at its stop signal, lifecycle-run does too, and the Job counts as complete"
		}
		c.faultOfPod("job-exit", reason, "set lifecycle.exit_on_signal to true")
	}
	at := []string{"spec", "podFailurePolicy"}
	if c.workload.kind == "CronJob" {
		at = []string{"spec", "jobTemplate", "spec", "podFailurePolicy"}
	}
	var policy batchv1.PodFailurePolicy
	if c.workload.read(&policy, at...) != nil {
		return
	}
	var path fieldPath
	for _, step := range at {
		path = append(path, step)
	}
	// What the policy does with a pod that Kubernetes stops: it exits with 128 and SIGTERM, and
	// has the condition DisruptionTarget.
	for i, rule := range policy.Rules {
		isStop := slices.ContainsFunc(rule.OnPodConditions, func(p batchv1.PodFailurePolicyOnPodConditionsPattern) bool {
			return p.Type == corev1.DisruptionTarget
		})
		if codes := rule.OnExitCodes; codes != nil && (codes.ContainerName == nil || *codes.ContainerName == c.spec.Name) {
			isStop = isStop || slices.Contains(codes.Values, stopped) == (codes.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn)
		}
		switch {
		case !isStop:
			continue
		case rule.Action == batchv1.PodFailurePolicyActionFailJob || rule.Action == batchv1.PodFailurePolicyActionFailIndex:
			c.at(c.workload.object, append(path, "rules", i), "job-policy",
				fmt.Sprintf("rule %d has the action %s for a pod that Kubernetes stops, which exits with %d", i, rule.Action, stopped),
				fmt.Sprintf("put {action: Ignore, onExitCodes: {operator: In, values: [130, %d]}} before it", stopped))
		}
		return // the first rule that matches decides
	}
}

// stopped is the exit status of a Job that SIGTERM has stopped, with exit_on_signal.
const stopped = 128 + 15
