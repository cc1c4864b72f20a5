package vet

import (
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// told reports whether the caller gave a configuration.
func (r *run) told() bool { return r.ConfigFile != "" || !reflect.ValueOf(r.Config).IsZero() }

// compare decides which workloads are services of lifecycle, whose manifest vet compares
// with their configuration. A stream may have other programs too, to which the
// configuration says nothing.
//
// A workload is a service of lifecycle when the caller names it, or when the manifest
// shows it. With a configuration of the caller it also is one when nothing shows that it
// is another program; and when the manifest shows that of all workloads, vet believes
// the caller.
func (r *run) compare() {
	var own, unclear, foreign []*workload
	for _, w := range r.workloads {
		switch {
		case !r.wanted(w.object):
		case len(r.Only) > 0:
			own = append(own, w)
		default:
			switch shown := r.shows(w); {
			case shown > 0:
				own = append(own, w)
			case shown < 0:
				foreign = append(foreign, w)
			default:
				unclear = append(unclear, w)
			}
		}
	}
	if r.told() {
		own = append(own, unclear...)
		if len(own) == 0 {
			own = foreign
		}
	}
	for _, w := range own {
		w.compared = true
	}
}

// shows returns 1 when the manifest shows that lifecycle runs the service of w, -1 when
// it shows another program, and 0 when it shows neither.
func (r *run) shows(w *workload) int {
	if len(w.pod.Containers) == 0 {
		return 0
	}
	c := w.pod.Containers[w.main]
	if w.ours || len(w.given) > 0 || len(w.unknown) > 0 || w.senseless && len(w.delayed) > 0 && w.file == nil || w.main > 0 && c.Name == r.Container {
		return 1
	}
	if l := c.Lifecycle; l != nil && l.PreStop != nil && l.PreStop.HTTPGet != nil && l.PreStop.HTTPGet.Path == endpointPreStop {
		return 1
	}
	health, _ := healthPort(w.cfg.WithDefaults().HealthAddr)
	probes := 0
	for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
		if p == nil {
			continue
		}
		probes++
		if p.HTTPGet == nil {
			continue
		}
		if port, known := resolve(p.HTTPGet.Port, &c); isPlane(p.HTTPGet.Path) && known && port == health {
			return 1
		}
	}
	if probes > 0 || isHook(w.object) {
		return -1
	}
	return 0
}

// tell adds the findings about the settings of a compared workload.
func (r *run) tell(w *workload) {
	for _, d := range w.delayed {
		before := len(r.report.Findings)
		r.put(d.place, d.rule, d.reason, d.fix)
		if len(r.report.Findings) > before && d.place.document == w.document {
			r.report.Findings[before].Container = w.pod.Containers[w.main].Name
		}
	}
	if w.file != nil || w.noFile || r.told() {
		w.absent = slices.DeleteFunc(w.absent, func(m missingObject) bool { return !strings.Contains(m.place.field.String(), "envFrom") })
	}
	for _, m := range w.absent {
		r.put(m.place, "config-undecided", "the container reads "+m.name+", which is not in these files: settings of lifecycle may stand there",
			"give that object too")
	}
}
