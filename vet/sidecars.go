package vet

import (
	"fmt"
	"slices"
	"time"

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
		reason := fmt.Sprintf("%s gets SIGTERM together with %s, which then drains and stops for up to %v", side.spec.Name, c.spec.Name, stop)
		if m, ok := meshOf(side.spec.Name); ok {
			side.fault("sidecar-stops-first", reason, m.fix(stop))
			continue
		}
		side.fault("sidecar-stops-first", reason,
			fmt.Sprintf("make it a native sidecar: move it to initContainers with restartPolicy: Always; or give it preStop.sleep.seconds %d", seconds(stop)))
	}
	if c == c.workload.main {
		c.injected(stop)
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

// injected checks the proxies that a mesh will put into the pod.
func (c *container) injected(stop time.Duration) {
	for _, m := range meshes {
		if !slices.Contains(m.asks, c.workload.podText(m.key)) || c.workload.has(m.proxy) || m.isLast(c.workload, stop) {
			continue
		}
		c.faultOfPod("sidecar-stops-first",
			fmt.Sprintf("%s asks for %s, which gets SIGTERM together with %s, unless the mesh makes it a native sidecar by itself; %s then drains and stops for up to %v",
				m.key, m.proxy, c.spec.Name, c.spec.Name, stop),
			m.fix(stop))
	}
}

// mesh is a service mesh that puts a proxy into a pod that asks for it.
type mesh struct {
	proxy  string   // the name of the container
	key    string   // the label or annotation of the pod by which it asks
	asks   []string // the values with which it does
	native []string // annotations that make the proxy a native sidecar; the first is the one to use
	waits  string   // an annotation with the time for which the proxy goes on
	unit   string   // of that time, "" for a duration
}

var meshes = []mesh{
	{proxy: "istio-proxy", key: "sidecar.istio.io/inject", asks: []string{"true"}, native: []string{"sidecar.istio.io/nativeSidecar"}},
	{
		proxy:  "linkerd-proxy",
		key:    "linkerd.io/inject",
		asks:   []string{"enabled", "ingress"},
		native: []string{"config.beta.linkerd.io/proxy-enable-native-sidecar", "config.alpha.linkerd.io/proxy-enable-native-sidecar"},
		waits:  "config.alpha.linkerd.io/proxy-wait-before-exit-seconds",
		unit:   "s",
	},
	{proxy: "daprd", key: "dapr.io/enabled", asks: []string{"true"}, waits: "dapr.io/block-shutdown-duration"},
}

func meshOf(proxy string) (mesh, bool) {
	i := slices.IndexFunc(meshes, func(m mesh) bool { return m.proxy == proxy })
	if i < 0 {
		return mesh{}, false
	}
	return meshes[i], true
}

// isLast reports whether the pod says that the proxy stops after the service.
func (m mesh) isLast(w *workload, stop time.Duration) bool {
	if slices.ContainsFunc(m.native, func(key string) bool { return w.podText(key) == "true" }) {
		return true
	}
	waits, err := time.ParseDuration(w.podText(m.waits) + m.unit)
	return err == nil && waits >= stop
}

func (m mesh) fix(stop time.Duration) string {
	if len(m.native) > 0 {
		return fmt.Sprintf("set the pod's annotation %s: \"true\": the kubelet then stops %s after the service", m.native[0], m.proxy)
	}
	return fmt.Sprintf("set the pod's annotation %s to %v or more, and leave it an ordinary container", m.waits, stop)
}

// podText returns an annotation or a label of the workload's pods, "" for none.
func (w *workload) podText(key string) string {
	path := []string{"spec", "template"}
	switch w.kind {
	case "Pod":
		path = nil
	case "CronJob":
		path = []string{"spec", "jobTemplate", "spec", "template"}
	}
	for _, section := range []string{"annotations", "labels"} {
		if text, ok := w.part(append(slices.Clone(path), "metadata", section, key)...).(string); ok {
			return text
		}
	}
	return ""
}

// has reports whether the pod has a container of that name already.
func (w *workload) has(name string) bool {
	return slices.ContainsFunc(slices.Concat(w.pod.InitContainers, w.pod.Containers), func(c corev1.Container) bool { return c.Name == name })
}

// isSidecar reports whether an init container runs beside the others.
func isSidecar(init *corev1.Container) bool {
	return init.RestartPolicy != nil && *init.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
