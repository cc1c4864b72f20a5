package vet

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
	corev1 "k8s.io/api/core/v1"
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
	// first container with a variable or a flag of lifecycle, or else to the first one that
	// has a probe on the port of Config.HealthAddr or declares that port, or else to the
	// first container. Without Container and a configuration of the caller, Check also looks
	// at the budget, signals and probes of every other container with a variable or a flag
	// of lifecycle.
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
		if ruleIndex(id) < 0 {
			return fmt.Errorf("vet: there is no rule %q to ignore; --rules lists all rules", id)
		}
	}
	return nil
}

// hasConfig reports whether the caller gave a configuration.
func (c Checker) hasConfig() bool { return c.ConfigFile != "" || !reflect.ValueOf(c.Config).IsZero() }

// wants reports whether the caller wants the object to be checked.
func (c Checker) wants(o object) bool {
	return len(c.Only) == 0 || slices.ContainsFunc(c.Only, func(name string) bool {
		return name == o.name || strings.EqualFold(name, o.kind+"/"+o.name) || strings.EqualFold(name, o.String())
	})
}

// Check reads the files as one set, matches budgets and Services with their pods,
// and returns its findings. It never fails: a file that it cannot read is a
// finding, and so is a Config that [lifecycle.New] refuses. When a value of
// Config is invalid by itself, Check does not compare the manifests with it.
func (c Checker) Check(files ...File) Report {
	r := &run{Checker: c}
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
	r.scale()
	r.findServices()
	for _, w := range r.workloads {
		if w.main != nil {
			r.report.Objects++
			r.workload(w)
		}
	}
	for _, b := range r.budgets {
		r.budget(b)
	}
	for _, s := range r.services {
		r.service(s)
	}
	if r.report.Objects == 0 && dockerfiles < len(files) && r.report.AtLeast(Error) == 0 {
		r.addNothingToVet(files)
	}
	r.report.sort()
	return r.report
}

// addNothingToVet adds the finding that vet has compared nothing.
func (r *run) addNothingToVet(files []File) {
	reason := "there is no object with pods in these files, such as a Deployment, a StatefulSet or a Job"
	fix := "give the manifest that has the service's pods"
	var names []string
	for _, w := range r.workloads {
		switch {
		case !r.wants(w.object):
			reason = fmt.Sprintf("none of the objects with pods is %s", strings.Join(r.Only, " or "))
			names = append(names, w.String())
		default:
			reason = fmt.Sprintf("no pod has a container %q", r.Container)
			for _, c := range w.pod.Containers {
				names = append(names, c.Name)
			}
		}
	}
	if len(names) > 0 {
		fix = "name one of " + strings.Join(names[:min(len(names), 10)], ", ")
	}
	f := Finding{Line: 1, Column: 1, Reason: reason, Fix: fix}
	if len(files) > 0 {
		f.File = files[0].Name
	}
	r.add("nothing-to-vet", f)
}

type run struct {
	Checker
	workloads []*workload
	texts     []texts
	budgets   []budget
	services  []service
	scalers   []scaler
	unsure    bool // there may be pods that vet does not know, from an operator or an object that vet could not read
	report    Report
}

// add adds a finding with its rule's severity.
func (r *run) add(rule string, f Finding) {
	if slices.Contains(r.Ignore, rule) {
		return
	}
	f.Rule, f.Severity = rule, rules[ruleIndex(rule)].Severity
	r.report.Findings = append(r.report.Findings, f)
}

// place is where a value stands: a field of an object, and a line of it when the field is a text
// of many lines.
type place struct {
	object
	field fieldPath
	line  int // of the text, from 1; 0 for the field itself
}

// finding returns a finding about a value.
func (p place) finding(reason, fix string) Finding {
	line, column := p.place(p.field)
	if p.line > 0 && p.isLiteral(p.field) {
		line, column = line+p.line, 1
	}
	return Finding{
		File: p.file, Source: p.source, Line: line, Column: column,
		Object: p.String(), Field: p.field.String(),
		Reason: reason, Fix: fix,
	}
}

// at adds a finding about a field of an object.
func (r *run) at(o object, p fieldPath, rule, reason, fix string) {
	r.add(rule, place{object: o, field: p}.finding(reason, fix))
}

// workload checks a workload: first the containers that lifecycle runs, then the rules for the
// pods of every program.
func (r *run) workload(w *workload) {
	if !w.compared {
		switch says := w.annotation(); {
		case w.once || says == annotationIgnore:
		case says != "":
			w.main.fault("not-compared", fmt.Sprintf("the annotation %s is %q, want %s or %s", annotationKey, says, annotationLifecycle, annotationIgnore),
				"correct the annotation, or remove it")
		default:
			w.main.fault("not-compared", "nothing in these files says that lifecycle runs it, so vet does not compare it with a configuration",
				"when lifecycle runs it, annotate it with "+annotationKey+": "+annotationLifecycle+
					", name it with --only, or give the service's configuration with --config; when not, the annotation's value "+annotationIgnore+" silences this note")
		}
		r.rollout(w)
		return
	}
	for _, c := range w.services {
		if c.isSenseless {
			continue
		}
		c.grace()
		c.signals()
		if !w.once {
			c.probes()
		}
	}
	if w.main.isSenseless {
		return
	}
	if w.isJob() {
		w.main.job()
	}
	if !w.once {
		w.main.sidecars()
	}
	r.rollout(w)
}

// container is a container of a workload, with the configuration with which it starts.
type container struct {
	*run
	workload *workload
	spec     *corev1.Container
	path     fieldPath

	settings
	cfg        lifecycle.Config // settings.given with its defaults
	health     int              // the port of the health planes; 0 when there is none
	healthHost string
}

// container returns the container at index i of a list of the workload's pods. list is the name
// of the field: "containers" or "initContainers".
func (r *run) container(w *workload, list string, i int) *container {
	all := w.pod.Containers
	if list == "initContainers" {
		all = w.pod.InitContainers
	}
	return &container{run: r, workload: w, spec: &all[i], path: w.podPath.with(list, i)}
}

// use makes cfg, with its defaults, the configuration of the container.
func (c *container) use(cfg lifecycle.Config) {
	c.cfg = cfg.WithDefaults()
	c.health, c.healthHost = healthPort(c.cfg.HealthAddr)
}

// fault adds a finding about a field of the container.
func (c *container) fault(rule, reason, fix string, field ...any) {
	f := place{object: c.workload.object, field: c.path.with(field...)}.finding(reason, fix)
	f.Container = c.spec.Name
	c.add(rule, f)
}

// faultOfPod adds a finding about a field of the container's pod.
func (c *container) faultOfPod(rule, reason, fix string, field ...any) {
	f := place{object: c.workload.object, field: c.workload.podPath.with(field...)}.finding(reason, fix)
	if c != c.workload.main {
		f.Container = c.spec.Name
	}
	c.add(rule, f)
}

// window returns the longest time that the drain window may take.
func window(cfg lifecycle.Config) time.Duration { return max(on(cfg.DrainInterval), on(cfg.DrainMax)) }

// windowKey names the key whose value window returns.
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
