package vet

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// findServices finds the containers that lifecycle runs and their configurations, and adds
// a finding for each fault in those.
func (r *run) findServices() {
	for _, w := range r.workloads {
		if r.wants(w.object) && r.hasContainer() {
			r.findContainers(w)
		}
	}
	r.compare()
	compared := false
	for _, w := range r.workloads {
		if !w.compared {
			continue
		}
		compared = true
		for _, c := range w.services {
			c.reportSettings()
			if !c.isSenseless && !r.checkConfig(c.given, c) {
				c.isSenseless = true
			}
		}
	}
	if !compared {
		r.checkConfig(r.Config, nil)
	}
}

// hasContainer reports whether any workload has the container that the caller named.
func (r *run) hasContainer() bool {
	has := func(w *workload) bool {
		return slices.ContainsFunc(w.pod.Containers, func(c corev1.Container) bool { return c.Name == r.Container })
	}
	return r.Container == "" || slices.ContainsFunc(r.workloads, has)
}

// findContainers finds the service's container, and the other containers that lifecycle
// runs: all of them stop within the one grace. A caller who names a container, or gives a
// configuration, means the main one alone.
func (r *run) findContainers(w *workload) {
	main := r.mainOf(w)
	for i, c := range w.pod.Containers {
		if i != main && (r.Container != "" || r.hasConfig() || !setsLifecycle(c)) {
			continue
		}
		found := r.container(w, "containers", i)
		found.readSettings()
		found.use(found.given)
		if i == main {
			w.main = found
			w.services = slices.Insert(w.services, 0, found)
		} else {
			w.services = append(w.services, found)
		}
	}
}

// mainOf returns the index of the service's container among the pod's.
func (r *run) mainOf(w *workload) int {
	health, _ := healthPort(r.Config.WithDefaults().HealthAddr)
	for _, is := range []func(corev1.Container) bool{
		func(c corev1.Container) bool { return r.Container != "" && c.Name == r.Container },
		setsLifecycle,
		func(c corev1.Container) bool {
			return slices.ContainsFunc(probesOf(&c), func(p *corev1.Probe) bool { return asksPort(p, &c, health) }) ||
				slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return int(p.ContainerPort) == health })
		},
	} {
		if i := slices.IndexFunc(w.pod.Containers, is); i >= 0 {
			return i
		}
	}
	return 0
}

// setsLifecycle reports whether a container has a variable or a flag of lifecycle, or runs
// lifecycle-run.
func setsLifecycle(c corev1.Container) bool {
	_, prefix := wrapped(&c)
	return prefix != "" || slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
		_, known := keyOfVariable(e.Name)
		return known
	}) || slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool {
		name, _, _ := flagOf(arg)
		return strings.HasPrefix(name, "lifecycle.")
	})
}

// compare decides which workloads are services of lifecycle, whose manifest vet compares
// with their configuration. A stream may have other programs too, which have nothing to do
// with the configuration.
//
// A workload is a service of lifecycle when the caller names it, when its annotation says
// so, or when the manifest shows it. With a configuration of the caller it also is one when
// nothing shows that it is another program. When the manifest seems to show that every
// workload is another program, vet compares them all the same, because the caller gave a
// configuration. An annotation always wins.
func (r *run) compare() {
	var own, unclear, foreign []*workload
	for _, w := range r.workloads {
		says := w.annotation()
		switch {
		case w.main == nil || says == annotationIgnore:
		case says == annotationLifecycle || len(r.Only) > 0 || w.main.isOfLifecycle():
			own = append(own, w)
		case w.isHook() || len(probesOf(w.main.spec)) > 0:
			foreign = append(foreign, w)
		default:
			unclear = append(unclear, w)
		}
	}
	if r.hasConfig() {
		own = append(own, unclear...)
		if len(own) == 0 {
			own = foreign
		}
	}
	for _, w := range own {
		w.compared = true
	}
}

// isOfLifecycle reports whether the manifest shows that lifecycle runs the container, by
// what no other program has. Probes on /readyz and /livez at port 8081 prove nothing:
// Kubebuilder's operators and kube-state-metrics have them too.
func (c *container) isOfLifecycle() bool {
	hasSettings := len(c.places) > 0 || len(c.unknown) > 0 || c.hasOwnFault
	hasWrongSettings := c.isSenseless && len(c.delayed) > 0 && c.file == nil
	isNamed := c.spec.Name == c.Container && c.spec != &c.workload.pod.Containers[0]
	_, prefix := wrapped(c.spec)
	if hasSettings || hasWrongSettings || isNamed || prefix != "" {
		return true
	}
	if l := c.spec.Lifecycle; l != nil && l.PreStop != nil && l.PreStop.HTTPGet != nil && l.PreStop.HTTPGet.Path == endpointPreStop {
		return true
	}
	return slices.ContainsFunc(probesOf(c.spec), func(p *corev1.Probe) bool {
		return asksPort(p, c.spec, c.health) && p.HTTPGet.Path == "/startupz"
	})
}

// annotationKey is the annotation of a workload, or of its pod template, that says whether
// lifecycle runs it.
const (
	annotationKey       = "lifecycle.pleme.io/vet"
	annotationLifecycle = "lifecycle"
	annotationIgnore    = "ignore"
)

// annotation returns what the workload's annotation says, "" for none. The pod template's
// own annotation wins.
func (w *workload) annotation() string {
	for _, o := range [][]string{{"spec", "template"}, {"spec", "jobTemplate", "spec", "template"}, {}} {
		if says, ok := w.part(append(o, "metadata", "annotations", annotationKey)...).(string); ok {
			return says
		}
	}
	return ""
}

// asksPort reports whether the probe asks the port by HTTP.
func asksPort(p *corev1.Probe, c *corev1.Container, port int) bool {
	if p.HTTPGet == nil {
		return false
	}
	asks, known := resolve(p.HTTPGet.Port, c)
	return known && asks == port
}

func probesOf(c *corev1.Container) []*corev1.Probe {
	all := []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe}
	return slices.DeleteFunc(all, func(p *corev1.Probe) bool { return p == nil })
}

// healthPort splits an address. The port is 0 when the planes are off, or when the
// process chooses its port as it starts.
func healthPort(addr string) (port int, host string) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return 0, ""
	}
	port, err = strconv.Atoi(text)
	if err != nil {
		return 0, host
	}
	return port, host
}

// reportSettings adds the findings about the settings of a compared container.
func (c *container) reportSettings() {
	for _, d := range c.delayed {
		f := d.place.finding(d.reason, d.fix)
		if d.place.document == c.workload.document {
			f.Container = c.spec.Name
		}
		c.add(d.rule, f)
	}
	knowsFile := c.file != nil || c.hasNoFile || c.hasConfig()
	for _, m := range c.absent {
		if knowsFile && !strings.Contains(m.place.field.String(), "envFrom") {
			continue
		}
		reason := fmt.Sprintf("the container reads %s, which is not in these files: settings of lifecycle may stand there", m.name)
		c.add("config-undecided", m.place.finding(reason, "give that object too"))
	}
}
