package prove

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/prove/load"
)

type object = map[string]any

// jobStart bounds the time until the Job's container runs.
const jobStart = 2 * time.Minute

// jobName returns a new name for the Job of one proof.
func jobName() string { return "lifecyclectl-prove-" + strings.ToLower(rand.Text()[:6]) }

// jobLabel is the key of the label with which the Job's pod names its Job.
const jobLabel = "lifecycle.pleme.io/prove-load"

// jobObject returns the Job that makes the load. It runs in a namespace with the restricted Pod
// Security Standard, and ends by itself when this process cannot end it.
func jobObject(name, image string, secrets []corev1.LocalObjectReference, plan load.Plan, limit time.Duration) (object, error) {
	text, err := json.Marshal(plan)
	if err != nil {
		return nil, err
	}
	labels := object{"app.kubernetes.io/name": "lifecyclectl-prove", jobLabel: name}
	container := object{
		"name":  "load",
		"image": image,
		"args":  []string{Command, string(text)},
		"securityContext": object{
			"allowPrivilegeEscalation": false,
			"readOnlyRootFilesystem":   true,
			"capabilities":             object{"drop": []string{"ALL"}},
		},
		"resources": object{
			"requests": object{"cpu": "50m", "memory": "32Mi"},
			"limits":   object{"memory": "256Mi"},
		},
	}
	pod := object{
		"restartPolicy":                 "Never",
		"terminationGracePeriodSeconds": 1,
		"automountServiceAccountToken":  false,
		"enableServiceLinks":            false,
		"imagePullSecrets":              secrets,
		"securityContext":               object{"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": object{"type": "RuntimeDefault"}},
		"containers":                    []object{container},
	}
	return object{
		"apiVersion": "batch/v1",
		"kind":       "Job",
		"metadata":   object{"name": name, "labels": labels},
		"spec": object{
			"backoffLimit":            0,
			"activeDeadlineSeconds":   int(limit / time.Second),
			"ttlSecondsAfterFinished": 60,
			"template":                object{"metadata": object{"labels": labels}, "spec": pod},
		},
	}, nil
}

// Command is the hidden subcommand of lifecyclectl that the Job runs, with the plan
// as its argument.
const Command = "prove-load"

// awaitJob waits until the Job's container runs and returns the pod's name.
func (p *proof) awaitJob(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, jobStart, cli.Fail(cli.ExitFindings, "job/%s: its pod did not run within %v", p.job, jobStart).
		Hint("kubectl -n %s describe job %s", p.k.namespace, p.job))
	defer cancel()
	began := time.Now()
	for {
		var pods list[corev1.Pod]
		if err := p.k.get(ctx, &pods, "pods", "--selector", jobLabel+"="+p.job); err != nil {
			return "", causeOr(ctx, err)
		}
		if len(pods.Items) == 0 && time.Since(began) > 10*time.Second {
			if said := p.jobEvents(ctx); said != "" {
				return "", cli.Fail(cli.ExitFindings, "job/%s: the cluster does not create its pod: %s", p.job, said)
			}
		}
		for _, pod := range pods.Items {
			if err := startFault(pod, p.opts.Image, time.Since(began)); err != nil {
				return "", err
			}
			for _, c := range pod.Status.ContainerStatuses {
				if c.State.Running != nil {
					return pod.Name, nil
				}
			}
		}
		if !cli.Pause(ctx, 500*time.Millisecond) {
			return "", causeOr(ctx, context.Canceled)
		}
	}
}

// startFault says why the pod of the load will not start. A cluster may first have to
// add a node.
func startFault(pod corev1.Pod, image string, waited time.Duration) error {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && waited > time.Minute {
			return cli.Fail(cli.ExitFindings, "pod/%s of the load has no node: %s", pod.Name, c.Message)
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		if end := c.State.Terminated; end != nil {
			said := strings.TrimSpace(end.Reason + " " + end.Message)
			return cli.Fail(cli.ExitFindings, "image %s did not run as the load: exit status %d, %s", image, end.ExitCode, said).
				Hint("it has to be an image whose entry point is this version of lifecyclectl; give it with --image")
		}
		wait := c.State.Waiting
		if wait == nil {
			continue
		}
		switch wait.Reason {
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable":
			return cli.Fail(cli.ExitFindings, "image %s cannot be pulled (%s): %s", image, wait.Reason, wait.Message).
				Hint("use --image to name an image of lifecyclectl that the cluster can pull")
		case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
			return cli.Fail(cli.ExitFindings, "image %s cannot run (%s): %s", image, wait.Reason, wait.Message).
				Hint("it has to be an image whose entry point is this version of lifecyclectl; give it with --image")
		}
	}
	return nil
}

// jobEvents returns the latest warning about the Job; "" when there is none, or no
// permission to read it.
func (p *proof) jobEvents(ctx context.Context) string {
	var events list[corev1.Event]
	if err := p.k.get(ctx, &events, "events", "--field-selector", "involvedObject.kind=Job,involvedObject.name="+p.job); err != nil {
		return ""
	}
	said := ""
	for _, e := range events.Items {
		if e.Type == corev1.EventTypeWarning {
			said = e.Message
		}
	}
	return said
}

// causeOr returns the cause with which ctx ended when that is a *cli.Failure,
// and err otherwise.
func causeOr(ctx context.Context, err error) error {
	if cause, ok := context.Cause(ctx).(*cli.Failure); ok { //nolint:errorlint // it is ours, and not wrapped
		return cause
	}
	return err
}
