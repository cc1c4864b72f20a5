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

// checkConfig adds a finding for each fault for which New refuses a configuration: the one of
// c, or the caller's for nil. A finding stands at the first of its keys that the container
// sets, or at the configuration's file. It returns false when a value is
// invalid by itself: a sum of invalid numbers means nothing.
func (r *run) checkConfig(cfg lifecycle.Config, c *container) (comparable bool) {
	comparable = true
	for _, fault := range configFaults(cfg.Validate()) {
		if len(fault.Fields) < 2 {
			comparable = false
		}
		if c != nil && c.isUnknown(fault.Fields...) {
			continue
		}
		keys := make([]string, len(fault.Fields))
		reason := fault.Problem
		for i, field := range fault.Fields {
			keys[i] = keyOf(field)
			reason = regexp.MustCompile(`\b`+field+`\b`).ReplaceAllLiteralString(reason, keys[i])
		}
		hook := time.Duration(0)
		if c != nil {
			hook, _ = c.preStop()
		}
		f := r.configPlace(keys, c)
		f.Reason, f.Fix = reason, configFix(cfg.WithDefaults(), fault, keys, hook)
		isReported := slices.ContainsFunc(r.report.Findings, func(other Finding) bool {
			return other.Rule == "config-refused" && other.File == f.File && other.Line == f.Line && other.Reason == f.Reason
		})
		if !isReported {
			r.add("config-refused", f)
		}
	}
	return comparable
}

// configPlace returns a finding at the place of the first of the keys that has one.
func (r *run) configPlace(keys []string, c *container) Finding {
	if c != nil {
		if i := slices.IndexFunc(keys, func(key string) bool { return c.places[key].document != nil }); i >= 0 {
			return c.places[keys[i]].finding("", "")
		}
		if c.file != nil {
			return c.file.finding("", "")
		}
	}
	f := Finding{File: r.ConfigFile, Line: 1, Column: 1}
	if f.File == "" {
		f.File = "config"
	}
	if i := slices.IndexFunc(keys, func(key string) bool { return r.ConfigLines[key] > 0 }); i >= 0 {
		f.Line, f.Field = r.ConfigLines[keys[i]], keys[i]
	} else if len(keys) > 0 {
		f.Field = keys[0]
	}
	return f
}

// configFix says which number to change, and for a grace also the new number.
func configFix(cfg lifecycle.Config, fault *lifecycle.ConfigError, keys []string, hook time.Duration) string {
	if len(keys) == 1 {
		return "set " + keys[0] + " to a valid value, or remove it for its default"
	}
	graces := map[string]time.Duration{
		"TerminationGrace": cfg.TerminationGrace,
		"LivenessGrace":    cfg.LivenessGrace,
		"StartupGrace":     cfg.StartupGrace,
	}
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
	for _, part := range partsOf(err) {
		fault, ok := errors.AsType[*lifecycle.ConfigError](part)
		if !ok {
			fault = &lifecycle.ConfigError{Problem: part.Error()}
		}
		faults = append(faults, fault)
	}
	return faults
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
