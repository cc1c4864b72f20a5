package vet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
	corev1 "k8s.io/api/core/v1"
)

// handled are the signals that begin a drain.
var handled = []string{"SIGTERM", "SIGINT", "TERM", "INT", "15", "2"}

// signals checks which signal reaches the process when its container is stopped.
func (c container) signals() {
	if l := c.c.Lifecycle; l != nil && l.StopSignal != nil && !slices.Contains(handled, string(*l.StopSignal)) {
		c.fault("stop-signal", fmt.Sprintf("lifecycle.stopSignal is %s, which does not begin a drain", *l.StopSignal), "remove it, or set it to SIGTERM", "lifecycle", "stopSignal")
	}
	if shell := shellWithoutExec(slices.Concat(c.c.Command, c.c.Args)); shell != "" {
		c.fault("shell-entrypoint", shell+" is the container's first process and does not pass SIGTERM on", "start the program itself, or by exec: sh -c 'exec PROGRAM'", "command")
	}
	if asked := cmp.Or(c.c.TerminationMessagePath, "/dev/termination-log"); c.cfg.TerminationLog != "off" && asked != c.cfg.TerminationLog {
		c.fault("termination-log", fmt.Sprintf("terminationMessagePath is %s, and lifecycle.termination_log is %s", asked, c.cfg.TerminationLog),
			fmt.Sprintf("set lifecycle.termination_log to %s", asked), "terminationMessagePath")
	}
}

// shellWithoutExec returns the shell that stays the first process of a command
// line, or "".
func shellWithoutExec(line []string) string {
	i := scriptAt(line)
	if i < 0 || strings.Contains(line[i], "exec ") {
		return ""
	}
	return line[0][strings.LastIndexByte(line[0], '/')+1:]
}

// job checks work that runs to completion.
func (r *run) job(w *workload) {
	if !r.cfg.ExitOnSignal {
		r.inPod(w, "job-exit", "lifecycle.exit_on_signal is false: a pod that is stopped in the middle exits 0, and the Job counts as complete",
			"set lifecycle.exit_on_signal to true")
	}
}

// ownHook returns the time that the preStop hook of a container takes, and whether that is
// known. The configuration is about the service's hook alone.
func ownHook(c *corev1.Container) (takes time.Duration, known bool) {
	return container{run: &run{}, c: c}.preStop()
}

// sidecars checks the other containers of the pod.
func (r *run) sidecars(w *workload, main int) {
	pre, _ := container{r, w, &w.pod.Containers[main], nil}.preStop()
	stop := pre + window(r.cfg) + r.cfg.ShutdownGrace
	for i := range w.pod.Containers {
		if i == main || w.once {
			continue
		}
		side := container{r, w, &w.pod.Containers[i], w.podPath.with("containers", i)}
		if waits, known := ownHook(side.c); side.c.Lifecycle != nil && side.c.Lifecycle.PreStop != nil && known && waits >= stop {
			continue
		}
		side.fault("sidecar-stops-first", fmt.Sprintf("%s gets SIGTERM together with %s, which then drains and stops for up to %v", side.c.Name, w.pod.Containers[main].Name, stop),
			fmt.Sprintf("make it a native sidecar: move it to initContainers with restartPolicy: Always; or give it preStop.sleep.seconds %d", seconds(stop)))
	}
	given := w.grace()
	for i := range w.pod.InitContainers {
		init := &w.pod.InitContainers[i]
		if !isSidecar(*init) {
			continue
		}
		side := container{r, w, init, w.podPath.with("initContainers", i)}
		// The kubelet runs this hook beside those of the other containers, and then awaits
		// the sidecar's turn.
		if takes, known := ownHook(init); known && takes >= given {
			side.fault("sidecar-grace", fmt.Sprintf("the sidecar waits %v before it stops, and terminationGracePeriodSeconds gives %v for all", takes, given),
				fmt.Sprintf("set terminationGracePeriodSeconds to %d, or remove the sidecar's preStop: the kubelet stops the sidecar after the service in any case", seconds(takes+lifecycle.Margin)), "lifecycle", "preStop")
		}
	}
}

// isSidecar reports whether an init container runs beside the others.
func isSidecar(init corev1.Container) bool {
	return init.RestartPolicy != nil && *init.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// restricted checks the pod against the restricted Pod Security Standard.
func (r *run) restricted(w *workload) {
	var pod []string
	if w.pod.HostNetwork || w.pod.HostPID || w.pod.HostIPC {
		pod = append(pod, "hostNetwork, hostPID and hostIPC false")
	}
	if slices.ContainsFunc(w.pod.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil }) {
		pod = append(pod, "no hostPath volume")
	}
	if len(pod) > 0 {
		r.inPod(w, "not-restricted", "the restricted Pod Security Standard wants "+strings.Join(pod, ", "), "change them, unless the pod needs them")
	}
	own := cmp.Or(w.pod.SecurityContext, &corev1.PodSecurityContext{})
	for _, list := range []struct {
		field      string
		containers []corev1.Container
	}{{"initContainers", w.pod.InitContainers}, {"containers", w.pod.Containers}} {
		for i := range list.containers {
			c := container{r, w, &list.containers[i], w.podPath.with(list.field, i)}
			if missing := unrestricted(own, cmp.Or(c.c.SecurityContext, &corev1.SecurityContext{})); len(missing) > 0 {
				c.fault("not-restricted", "the restricted Pod Security Standard wants "+strings.Join(missing, ", "), "set them in its securityContext", "securityContext")
			}
		}
	}
}

func unrestricted(pod *corev1.PodSecurityContext, c *corev1.SecurityContext) (missing []string) {
	isTrue := func(b *bool) bool { return b != nil && *b }
	if c.Privileged != nil && *c.Privileged {
		missing = append(missing, "privileged: false")
	}
	if c.AllowPrivilegeEscalation == nil || *c.AllowPrivilegeEscalation {
		missing = append(missing, "allowPrivilegeEscalation: false")
	}
	if !isTrue(cmp.Or(c.RunAsNonRoot, pod.RunAsNonRoot)) {
		missing = append(missing, "runAsNonRoot: true")
	}
	if c.Capabilities == nil || !slices.Contains(c.Capabilities.Drop, "ALL") {
		missing = append(missing, "capabilities.drop: [ALL]")
	}
	if s := cmp.Or(c.SeccompProfile, pod.SeccompProfile); s == nil || s.Type != corev1.SeccompProfileTypeRuntimeDefault && s.Type != corev1.SeccompProfileTypeLocalhost {
		missing = append(missing, "seccompProfile.type: RuntimeDefault")
	}
	return missing
}
