package vet

import (
	"fmt"
	"slices"

	"github.com/pleme-io/lifecycle-go"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// job checks work that runs to completion.
func (c *container) job() {
	c.restartRules()
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

// restartRules checks whether the kubelet starts the container again when its work is done, or
// when its settings cannot be used (KEP-5307). The pod then never ends, and the Job does not see
// the status.
func (c *container) restartRules() {
	for _, end := range []struct {
		status int32
		says   string
	}{
		{0, "with which the work is done: the Job never completes"},
		{lifecycle.ExitConfig, "with which the settings cannot be used: the Job never fails"},
	} {
		matches := func(rule corev1.ContainerRestartRule) bool {
			codes := rule.ExitCodes
			return codes != nil && slices.Contains(codes.Values, end.status) == (codes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn)
		}
		i := slices.IndexFunc(c.spec.RestartPolicyRules, matches) // the first that matches decides
		if i < 0 {
			continue
		}
		rule := c.spec.RestartPolicyRules[i]
		reason := fmt.Sprintf("rule %d of restartPolicyRules has the action %s at exit status %d, %s", i+1, rule.Action, end.status, end.says)
		fix := fmt.Sprintf("add %d to its values", end.status)
		if rule.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn {
			fix = fmt.Sprintf("remove %d from its values", end.status)
		}
		c.fault("job-policy", reason, fix, "restartPolicyRules", i)
	}
}

// stopped is the exit status of a Job that SIGTERM has stopped, with exit_on_signal.
const stopped = 128 + 15
