package vet

import (
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Checker checks manifests against a configuration. It is a plain value; Check
// may be called concurrently.
type Checker struct {
	// Config is the configuration in the service's file. A zero field has its default.
	// A file that the manifest mounts and names takes its place; without Config and
	// ConfigFile, also the only mounted file with a section lifecycle does. Variables of
	// the service's container whose names end in LIFECYCLE_ and a key, such as
	// SERVICE_LIFECYCLE_DRAIN_INTERVAL, and then flags take precedence, as in config.Load.
	Config lifecycle.Config

	// ConfigFile is the name of the configuration file. ConfigLines maps the full
	// name of a key, such as "lifecycle.drain_interval", to its line in that file.
	// Findings about Config itself have these places. Default to "config" and
	// line 1.
	ConfigFile  string
	ConfigLines map[string]int

	// Container is the name of the service's container in its pods. Defaults to the
	// first container with a variable or a flag of lifecycle, or else the first one that
	// has a probe on the port of Config.HealthAddr or declares that port, and else to the
	// first container. Without Container and a configuration of the caller, the budget,
	// signals and probes of every other container with a variable or a flag of lifecycle
	// are checked too.
	Container string

	// Only names the workloads to check, as "Deployment/web" or
	// "web". Defaults to all.
	Only []string

	// Ignore are the ids of rules that Check skips. [Checker.Validate] refuses
	// an id that does not exist.
	Ignore []string

	// HasShell says that the image has a shell and the usual programs, so that
	// preStop hooks and entrypoints may use them.
	HasShell bool
}

// Validate returns an error that names a rule in Ignore that does not exist. Faults
// of the Config are findings of [Checker.Check].
func (c Checker) Validate() error {
	for _, id := range c.Ignore {
		if _, ok := ruleIndex[id]; !ok {
			return fmt.Errorf("vet: there is no rule %q to ignore; --rules lists all rules", id)
		}
	}
	return nil
}

// Check reads the files as one set, matches budgets and Services with their pods,
// and returns its findings. It never fails: a file that it cannot read is a
// finding, and so is a Config that [lifecycle.New] refuses. When a value of
// Config is invalid by itself, Check does not compare the manifests with it.
func (c Checker) Check(files ...File) Report {
	r := &run{Checker: c}
	r.use(c.Config)
	dockerfiles := 0
	for _, f := range files {
		if f.isDockerfile() {
			dockerfiles++
			r.dockerfile(f)
			continue
		}
		r.read(f)
	}
	r.dropOwned()
	if !r.hasContainer(files) || !r.config() {
		r.report.sort()
		return r.report
	}
	r.refer()
	r.scale()
	for _, w := range r.workloads {
		if r.wanted(w.object) {
			r.report.Objects++
			if !w.senseless || !w.compared {
				r.use(w.cfg)
				r.workload(w)
			}
		}
	}
	for _, w := range r.others {
		if !w.senseless {
			r.use(w.cfg)
			r.other(w)
		}
	}
	r.use(c.Config)
	for _, b := range r.budgets {
		r.budget(b)
	}
	for _, s := range r.services {
		r.service(s)
	}
	if r.report.Objects == 0 && dockerfiles < len(files) && r.report.AtLeast(Error) == 0 {
		f := Finding{Line: 1, Column: 1, Reason: "there is no Deployment, StatefulSet, DaemonSet, ReplicaSet, Pod, Job or CronJob in these files", Fix: "give the manifest that has the service's pods"}
		if len(files) > 0 {
			f.File = files[0].Name
		}
		if len(c.Only) > 0 && len(r.workloads) > 0 {
			var have []string
			for _, w := range r.workloads {
				have = append(have, w.String())
			}
			f.Reason = fmt.Sprintf("none of the objects with pods is %s", strings.Join(c.Only, " or "))
			f.Fix = "name one of " + strings.Join(have, ", ")
		}
		r.add("nothing-to-vet", f)
	}
	r.report.sort()
	return r.report
}

// run is one Check.
type run struct {
	Checker
	cfg        lifecycle.Config // with its defaults
	health     int              // the port of the health planes; 0 when there is none
	healthHost string
	workloads  []*workload
	others     []*workload // once more for each other container that lifecycle runs
	configMaps []configMap
	secrets    []secret
	budgets    []budget
	services   []service
	scalers    []scaler
	rollouts   []rollout
	customs    []object // of kinds that vet does not know, whose operators may make pods
	unread     bool     // an object could not be read, which may have pods
	report     Report
}

// use makes cfg, with its defaults, the configuration of the checks that come next.
func (r *run) use(cfg lifecycle.Config) {
	r.cfg = cfg.WithDefaults()
	r.health, r.healthHost = healthPort(r.cfg.HealthAddr)
}

// add adds a finding with its rule's severity.
func (r *run) add(rule string, f Finding) {
	i, ok := ruleIndex[rule]
	if !ok {
		panic("vet: no rule " + rule) // TestEveryRuleSpeaks would have found it
	}
	if slices.Contains(r.Ignore, rule) {
		return
	}
	f.Rule, f.Severity = rule, rules[i].Severity
	r.report.Findings = append(r.report.Findings, f)
}

// at adds a finding about a field of an object.
func (r *run) at(o object, p fieldPath, rule, reason, fix string) {
	line, column := o.place(p)
	f := Finding{File: o.file, Source: o.source, Line: line, Column: column, Field: p.String(), Reason: reason, Fix: fix}
	if o.kind != "" {
		f.Object = o.String()
	}
	r.add(rule, f)
}

// put adds a finding about a value, which may stand in a text within an object.
func (r *run) put(at place, rule, reason, fix string) {
	before := len(r.report.Findings)
	r.at(at.object, at.field, rule, reason, fix)
	if len(r.report.Findings) > before && at.line > 0 && at.literal(at.field) {
		r.report.Findings[before].Line += at.line
		r.report.Findings[before].Column = 1
	}
}

// inPod adds a finding about a field of a workload's pods.
func (r *run) inPod(w *workload, rule, reason, fix string, field ...any) {
	r.at(w.object, w.podPath.with(field...), rule, reason, fix)
}

func (r *run) wanted(o object) bool {
	return len(r.Only) == 0 || slices.ContainsFunc(r.Only, func(name string) bool {
		return name == o.name || strings.EqualFold(name, o.kind+"/"+o.name) || strings.EqualFold(name, o.String())
	})
}

func (r *run) workload(w *workload) {
	served := !w.once
	if len(w.pod.Containers) == 0 {
		r.inPod(w, "wrong-type", "the pods have no container", "add the service's container", "containers")
		return
	}
	main := w.main
	c := container{r, w, &w.pod.Containers[main], w.podPath.with("containers", main)}
	if !w.compared {
		if served {
			c.fault("not-compared", "nothing in these files says that lifecycle runs it, so vet does not compare it with a configuration",
				"name it with --only, or give the service's configuration with --config, when lifecycle runs it")
		}
		r.restricted(w)
		r.rollout(w)
		return
	}
	c.grace()
	c.signals()
	if served {
		c.probes()
	} else if w.isJob() {
		r.job(w)
	}
	r.sidecars(w, main)
	r.restricted(w)
	r.rollout(w)
}

// other checks another container of the pod that lifecycle runs.
func (r *run) other(w *workload) {
	before := len(r.report.Findings)
	c := container{r, w, &w.pod.Containers[w.main], w.podPath.with("containers", w.main)}
	c.grace()
	c.signals()
	if !w.once {
		c.probes()
	}
	for i := range r.report.Findings[before:] {
		r.report.Findings[before+i].Container = c.c.Name
	}
}

// hasContainer adds a finding when no pod has the container that the caller named.
func (r *run) hasContainer(files []File) bool {
	var names []string
	for _, w := range r.workloads {
		for _, c := range w.pod.Containers {
			if c.Name == r.Container || r.Container == "" {
				return true
			}
			if r.wanted(w.object) && !slices.Contains(names, c.Name) && len(names) < 10 {
				names = append(names, c.Name)
			}
		}
	}
	if len(names) > 0 {
		r.add("nothing-to-vet", Finding{File: files[0].Name, Line: 1, Column: 1, Reason: fmt.Sprintf("no pod has a container %q", r.Container), Fix: "name one of " + strings.Join(names, ", ")})
	}
	return len(names) == 0
}

func (w *workload) isJob() bool { return w.kind == "Job" || w.kind == "CronJob" }

// main returns the service's container among the pod's.
func (r *run) main(w *workload) int {
	of := func(is func(corev1.Container) bool) int { return slices.IndexFunc(w.pod.Containers, is) }
	if r.Container != "" {
		if i := of(func(c corev1.Container) bool { return c.Name == r.Container }); i >= 0 {
			return i
		}
	}
	if i := of(setsLifecycle); i >= 0 {
		return i
	}
	if i := of(func(c corev1.Container) bool {
		for _, p := range []*corev1.Probe{c.ReadinessProbe, c.LivenessProbe, c.StartupProbe} {
			if p != nil && p.HTTPGet != nil {
				if port, ok := resolve(p.HTTPGet.Port, &c); ok && port == r.health {
					return true
				}
			}
		}
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return int(p.ContainerPort) == r.health })
	}); i >= 0 {
		return i
	}
	return 0
}

// setsLifecycle reports whether a container has a variable or a flag of lifecycle.
func setsLifecycle(c corev1.Container) bool {
	return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
		_, known := keyOfVariable(e.Name)
		return known
	}) || slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(arg string) bool {
		name, _, _ := flagOf(arg)
		return strings.HasPrefix(name, "lifecycle.")
	})
}

// container is the service's container in its pods.
type container struct {
	*run
	w    *workload
	c    *corev1.Container
	path fieldPath
}

func (c container) fault(rule, reason, fix string, field ...any) {
	before := len(c.report.Findings)
	c.run.at(c.w.object, c.path.with(field...), rule, reason, fix)
	if len(c.report.Findings) > before {
		c.report.Findings[before].Container = c.c.Name
	}
}

// window returns the longest time that the drain window may take.
func window(cfg lifecycle.Config) time.Duration { return max(on(cfg.DrainInterval), on(cfg.DrainMax)) }

// windowKey names the field that window is the value of.
func windowKey(cfg lifecycle.Config) string {
	if cfg.DrainMax > cfg.DrainInterval {
		return "drain_max"
	}
	return "drain_interval"
}

// on returns a duration of the configuration as a length of time: Off is 0.
func on(d time.Duration) time.Duration {
	if d == lifecycle.Off {
		return 0
	}
	return d
}

// seconds returns d in whole seconds, the unit of manifests, rounded up.
func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// longest is more seconds than any wait, and small enough for sums not to overflow.
const longest = 1 << 32

func sec(n int64) time.Duration { return time.Duration(min(n, longest)) * time.Second }

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

// selector returns a selector, nil for none, in the form that compares. One that the API
// server refuses selects nothing.
func selector(s *metav1.LabelSelector) labels.Selector {
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return selector
}
