package vet

import (
	"fmt"

	"github.com/pleme-io/lifecycle-go"
	corev1 "k8s.io/api/core/v1"
)

// sidecars checks the other containers of the service's pod.
func (c *container) sidecars() {
	own, _ := c.preStop()
	stop := own + window(c.cfg) + c.cfg.ShutdownGrace
	for i := range c.workload.pod.Containers {
		side := c.container(c.workload, "containers", i)
		if side.spec == c.spec {
			continue
		}
		waits, known := side.preStop()
		if side.hook() != nil && known && waits >= stop {
			continue
		}
		side.fault("sidecar-stops-first",
			fmt.Sprintf("%s gets SIGTERM together with %s, which then drains and stops for up to %v", side.spec.Name, c.spec.Name, stop),
			fmt.Sprintf("make it a native sidecar: move it to initContainers with restartPolicy: Always; or give it preStop.sleep.seconds %d", seconds(stop)))
	}
	given := c.workload.grace()
	for i := range c.workload.pod.InitContainers {
		side := c.container(c.workload, "initContainers", i)
		if !isSidecar(side.spec) {
			continue
		}
		// The kubelet runs this hook beside the other containers' hooks, and then awaits
		// the sidecar's turn.
		if takes, known := side.preStop(); known && takes >= given {
			reason := fmt.Sprintf("the sidecar waits %v before it stops, and terminationGracePeriodSeconds gives %v for all", takes, given)
			raise := fmt.Sprintf("set terminationGracePeriodSeconds to %d", seconds(takes+lifecycle.Margin))
			side.fault("sidecar-grace", reason,
				raise+", or remove the sidecar's preStop: the kubelet stops the sidecar after the service in any case", "lifecycle", "preStop")
		}
	}
}

// isSidecar reports whether an init container runs beside the others.
func isSidecar(init *corev1.Container) bool {
	return init.RestartPolicy != nil && *init.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
