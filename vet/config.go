package vet

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// config finds the configuration of each workload, and adds a finding for each fault
// for which New refuses it. It reports whether the manifests can be compared with the
// run's own: a sum of invalid numbers means nothing.
func (r *run) config() bool {
	for _, w := range r.workloads {
		if r.wanted(w.object) {
			w.main = r.main(w)
			r.also(w)
			r.settings(w)
		}
	}
	for _, w := range r.others {
		r.settings(w)
	}
	r.compare()
	alone := true // no workload has settings of its own
	for _, w := range slices.Concat(r.workloads, r.others) {
		if w.compared {
			r.tell(w)
			alone = alone && len(w.given) == 0 && w.file == nil && !w.senseless
		}
	}
	if alone {
		return r.faults(r.Config, nil)
	}
	for _, w := range slices.Concat(r.workloads, r.others) {
		if w.compared && !w.senseless && !r.faults(w.cfg, w) {
			w.senseless = true
		}
	}
	return true
}

// also keeps the other containers of a workload that lifecycle runs: all of them stop
// within the one grace. A caller who names a container, or gives a configuration, means
// the main one alone.
func (r *run) also(w *workload) {
	if r.Container != "" || r.told() {
		return
	}
	for i, c := range w.pod.Containers {
		if i != w.main && setsLifecycle(c) {
			other := *w
			other.main, other.compared = i, true
			r.others = append(r.others, &other)
		}
	}
}

// faults adds a finding for each fault of a configuration, once. Its place is that of
// the first key that w, nil for none, or the configuration's file has.
func (r *run) faults(cfg lifecycle.Config, w *workload) (compare bool) {
	compare = true
	for _, fault := range configFaults(cfg.Validate()) {
		if len(fault.Fields) < 2 {
			compare = false
		}
		if w != nil && slices.ContainsFunc(fault.Fields, func(field string) bool { return w.unknown[field] }) {
			continue
		}
		keys := make([]string, len(fault.Fields))
		reason := fault.Problem
		for i, field := range fault.Fields {
			keys[i] = keyOf(field)
			reason = regexp.MustCompile(`\b`+field+`\b`).ReplaceAllLiteralString(reason, keys[i])
		}
		fix := configFix(cfg.WithDefaults(), fault, keys, r.longestHook(w))
		if w != nil {
			if i := slices.IndexFunc(keys, func(key string) bool { return w.given[key].document != nil }); i >= 0 {
				r.put(w.given[keys[i]], "config-refused", reason, fix)
				continue
			}
			if w.file != nil {
				r.put(*w.file, "config-refused", reason, fix)
				continue
			}
		}
		f := Finding{File: r.ConfigFile, Line: 1, Column: 1, Reason: reason, Fix: fix}
		if f.File == "" {
			f.File = "config"
		}
		// The finding stands at the first key that the file has.
		if i := slices.IndexFunc(keys, func(key string) bool { return r.ConfigLines[key] > 0 }); i >= 0 {
			f.Line, f.Field = r.ConfigLines[keys[i]], keys[i]
		} else if len(keys) > 0 {
			f.Field = keys[0]
		}
		if !slices.ContainsFunc(r.report.Findings, func(other Finding) bool {
			return other.Rule == "config-refused" && other.File == f.File && other.Line == f.Line && other.Reason == f.Reason
		}) {
			r.add("config-refused", f)
		}
	}
	return compare
}

// longestHook returns the time of the preStop hook of w, or of the longest of all.
func (r *run) longestHook(w *workload) (hook time.Duration) {
	for _, other := range slices.Concat(r.workloads, r.others) {
		if other.compared && (w == nil || w == other) && len(other.pod.Containers) > 0 {
			takes, _ := container{r, other, &other.pod.Containers[other.main], nil}.preStop()
			hook = max(hook, takes)
		}
	}
	return hook
}

// configFix says which number to change, and for a grace also the new number.
func configFix(cfg lifecycle.Config, fault *lifecycle.ConfigError, keys []string, hook time.Duration) string {
	if len(keys) == 1 {
		return "set " + keys[0] + " to a valid value, or remove it for its default"
	}
	graces := map[string]time.Duration{"TerminationGrace": cfg.TerminationGrace, "LivenessGrace": cfg.LivenessGrace, "StartupGrace": cfg.StartupGrace}
	if len(keys) > 1 && graces[fault.Fields[0]] > 0 {
		need := sec(seconds(stop(cfg, hook)))
		lower := keys[1:]
		if on(cfg.PreStop) == 0 {
			lower = slices.DeleteFunc(slices.Clone(lower), func(key string) bool { return key == keyOf("PreStop") })
		}
		return fmt.Sprintf("set %s to %v or more, and so the terminationGracePeriodSeconds that it stands for, or lower %s by %v in all",
			keys[0], need, oneOf(lower), need-graces[fault.Fields[0]])
	}
	return "change " + oneOf(keys)
}

// configFaults returns the parts of an error of Validate.
func configFaults(err error) (faults []*lifecycle.ConfigError) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, part := range joined.Unwrap() {
			faults = append(faults, configFaults(part)...)
		}
		return faults
	}
	var fault *lifecycle.ConfigError
	switch {
	case errors.As(err, &fault):
		return []*lifecycle.ConfigError{fault}
	case err != nil:
		return []*lifecycle.ConfigError{{Problem: err.Error()}}
	}
	return nil
}

// keyOf returns the key of a Config field in a configuration file.
func keyOf(field string) string {
	if f, ok := reflect.TypeFor[lifecycle.Config]().FieldByName(field); ok {
		if key := f.Tag.Get("koanf"); key != "" {
			return "lifecycle." + key
		}
	}
	return field
}

func oneOf(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}
