package vet

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pleme-io/lifecycle-go/internal/cmdline"
)

// variable is an environment variable of a container.
type variable struct {
	name, value string
	place       place
	unknown     string // why the value is not known, "" when it is
}

// word is a word of a container's command line.
type word struct {
	text    string
	place   place
	unknown string
}

// missingObject is an object that a container refers to and that is not in the files.
type missingObject struct {
	place place
	name  string
}

const notHere = " is not in these files"

// textsOf returns the ConfigMap or Secret to which the container refers. One without a
// namespace may be in the container's.
func (c *container) textsOf(kind, name string) *texts {
	var found *texts
	for i, t := range c.texts {
		switch {
		case t.kind != kind, t.name != name, !sameNamespace(t.object, c.workload.object):
		case t.namespace == c.workload.namespace:
			return &c.texts[i]
		case found == nil:
			found = &c.texts[i]
		}
	}
	return found
}

// variables returns the environment of the container as the kubelet makes it: envFrom
// first, then env, and of two variables with one name the later one.
func (c *container) variables() (all []variable) {
	add := func(v variable) {
		all = slices.DeleteFunc(all, func(old variable) bool { return old.name == v.name })
		if strings.Contains(v.value, "$(") {
			v.unknown = "the kubelet puts other variables into it when the pod runs"
		}
		all = append(all, v)
	}
	for i, from := range c.spec.EnvFrom {
		var kind, name, field string
		switch {
		case from.ConfigMapRef != nil:
			kind, name, field = "ConfigMap", from.ConfigMapRef.Name, "configMapRef"
		case from.SecretRef != nil:
			kind, name, field = "Secret", from.SecretRef.Name, "secretRef"
		default:
			continue
		}
		t := c.textsOf(kind, name)
		if t == nil {
			// A Secret has no settings of lifecycle, unless the prefix says so.
			if kind == "ConfigMap" || strings.Contains(from.Prefix, "LIFECYCLE_") {
				at := place{object: c.workload.object, field: c.path.with("envFrom", i, field, "name")}
				c.absent = append(c.absent, missingObject{at, kind + "/" + name})
			}
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(t.values)) {
			add(variable{name: from.Prefix + key, value: t.values[key], place: t.at(key)})
		}
	}
	for i, e := range c.spec.Env {
		v := variable{name: e.Name, value: e.Value, place: place{object: c.workload.object, field: c.path.with("env", i, "value")}}
		if e.ValueFrom != nil && e.Value == "" {
			v.place.field = c.path.with("env", i, "valueFrom")
			if !c.readReference(e.ValueFrom, &v) {
				continue
			}
		}
		add(v)
	}
	return all
}

// readReference reads the value of a variable that another object has. It returns false
// when the variable is not set at all.
func (c *container) readReference(from *corev1.EnvVarSource, v *variable) (isSet bool) {
	var kind, name, key string
	var optional *bool
	switch {
	case from.ConfigMapKeyRef != nil:
		kind, name, key, optional = "ConfigMap", from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key, from.ConfigMapKeyRef.Optional
	case from.SecretKeyRef != nil:
		kind, name, key, optional = "Secret", from.SecretKeyRef.Name, from.SecretKeyRef.Key, from.SecretKeyRef.Optional
	case from.FieldRef != nil:
		v.unknown = from.FieldRef.FieldPath + " is known when the pod runs"
		return true
	default:
		v.unknown = "it is known when the pod runs"
		return true
	}
	t := c.textsOf(kind, name)
	if t == nil {
		v.unknown = kind + "/" + name + notHere
		return true
	}
	value, ok := t.values[key]
	switch {
	case ok:
		v.value, v.place = value, t.at(key)
	case optional != nil && *optional:
		return false
	default:
		v.unknown = fmt.Sprintf("%s/%s has no key %s", kind, name, key)
	}
	return true
}

// commandLine returns the arguments of the program, without what its image says.
func (c *container) commandLine() (line []word) {
	for _, list := range []struct {
		field string
		words []string
	}{{"command", c.spec.Command}, {"args", c.spec.Args}} {
		for i, text := range list.words {
			w := word{text: text, place: place{object: c.workload.object, field: c.path.with(list.field, i)}}
			if strings.Contains(text, "$(") {
				w.unknown = "the kubelet puts variables into it when the pod runs"
			}
			line = append(line, w)
		}
	}
	// sh -c LINE: the line has the program and its flags.
	words := slices.Concat(c.spec.Command, c.spec.Args)
	i := cmdline.Script(words)
	if i < 0 {
		return line[cmdline.Program(words):] // the two dashes of an init do not end the flags
	}
	script := line[i]
	line = line[:0]
	for _, text := range strings.Fields(strings.ReplaceAll(script.text, "\\\n", " ")) {
		w := word{text: strings.Trim(strings.NewReplacer(`"`, "", "'", "").Replace(text), "();&|"), place: script.place}
		if strings.Contains(w.text, "$") {
			w.unknown = "the shell expands " + w.text
		}
		line = append(line, w)
	}
	return line
}

// wrapped returns the command line of the program that lifecycle-run runs, and what the variables
// of lifecycle-run begin with: "" for another program.
func wrapped(c *corev1.Container) (line []string, prefix string) {
	return cmdline.Wrapped(slices.Concat(c.Command, c.Args))
}
