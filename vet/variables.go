package vet

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
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

// variables returns the environment of the container as the kubelet makes it: envFrom
// first, then env, and of two variables with one name the later one.
func (c container) variables() (all []variable) {
	room := maxTexts
	add := func(v variable) {
		all = slices.DeleteFunc(all, func(old variable) bool { return old.name == v.name })
		all = append(all, v)
	}
	for i, from := range c.c.EnvFrom {
		switch {
		case from.ConfigMapRef != nil:
			at := place{object: c.w.object, field: c.path.with("envFrom", i, "configMapRef", "name")}
			m := named(c.configMaps, c.w.object, from.ConfigMapRef.Name)
			if m == nil {
				c.w.absent = append(c.w.absent, missingObject{at, "ConfigMap/" + from.ConfigMapRef.Name})
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(m.Data)) {
				add(variable{name: from.Prefix + name, value: m.Data[name], place: place{object: m.object, field: fieldPath{"data", name}}})
			}
		case from.SecretRef != nil: // one that is not here has no settings of lifecycle, unless the prefix says so
			m := named(c.secrets, c.w.object, from.SecretRef.Name)
			if m == nil && strings.Contains(from.Prefix, "LIFECYCLE_") {
				at := place{object: c.w.object, field: c.path.with("envFrom", i, "secretRef", "name")}
				c.w.absent = append(c.w.absent, missingObject{at, "Secret/" + from.SecretRef.Name})
			}
			if m != nil {
				texts := m.texts()
				for _, name := range slices.Sorted(maps.Keys(texts)) {
					add(variable{name: from.Prefix + name, value: texts[name], place: m.at(name)})
				}
			}
		}
	}
	for i, e := range c.c.Env {
		v := variable{name: e.Name, place: place{object: c.w.object, field: c.path.with("env", i, "value")}}
		if e.ValueFrom != nil && e.Value == "" {
			v.place.field = c.path.with("env", i, "valueFrom")
			var set bool
			if set, v.value, v.unknown = c.from(e.ValueFrom, &v.place); !set {
				continue
			}
		} else {
			v.value, v.unknown = expand(e.Value, all, &room)
		}
		add(v)
	}
	return all
}

// from returns the value of a variable that another field has. set is false when the
// variable is not set at all.
func (c container) from(s *corev1.EnvVarSource, at *place) (set bool, value, unknown string) {
	look := func(kind, name, key string, optional *bool, texts map[string]string, there place) (bool, string, string) {
		if texts == nil {
			return true, "", fmt.Sprintf("%s/%s is not in these files", kind, name)
		}
		value, ok := texts[key]
		if !ok {
			if optional != nil && *optional {
				return false, "", ""
			}
			return true, "", fmt.Sprintf("%s/%s has no key %s", kind, name, key)
		}
		*at = there
		return true, value, ""
	}
	switch {
	case s.ConfigMapKeyRef != nil:
		ref := s.ConfigMapKeyRef
		if m := named(c.configMaps, c.w.object, ref.Name); m != nil {
			return look("ConfigMap", ref.Name, ref.Key, ref.Optional, orEmpty(m.Data), place{object: m.object, field: fieldPath{"data", ref.Key}})
		}
		return look("ConfigMap", ref.Name, ref.Key, ref.Optional, nil, place{})
	case s.SecretKeyRef != nil:
		ref := s.SecretKeyRef
		if m := named(c.secrets, c.w.object, ref.Name); m != nil {
			return look("Secret", ref.Name, ref.Key, ref.Optional, m.texts(), m.at(ref.Key))
		}
		return look("Secret", ref.Name, ref.Key, ref.Optional, nil, place{})
	case s.FieldRef != nil:
		for list, of := range map[string]map[string]string{"labels": c.w.labels, "annotations": c.w.annotations} {
			if name, ok := strings.CutPrefix(s.FieldRef.FieldPath, "metadata."+list+"['"); ok {
				return true, of[strings.TrimSuffix(name, "']")], ""
			}
		}
		return true, "", s.FieldRef.FieldPath + " is known when the pod runs"
	}
	return true, "", "it is known when the pod runs"
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// A program on Linux cannot start with a variable or an argument that is longer than
// maxText (MAX_ARG_STRLEN), or when all are longer than maxTexts (ARG_MAX with the usual
// stack). References to references could make far longer ones.
const (
	maxText  = 128 << 10
	maxTexts = 2 << 20
)

// expand replaces $(NAME) by the variable's value, as the kubelet does: $$ is a dollar,
// and a reference to a variable that does not exist stays. The result takes its length
// from room.
func expand(text string, vars []variable, room *int) (out, unknown string) {
	var b strings.Builder
	left := text
	for {
		before, after, found := strings.Cut(left, "$")
		value, rest := "", ""
		switch {
		case !found:
		case strings.HasPrefix(after, "$"):
			value, rest = "$", after[1:]
		default:
			value, rest = "$", after
			name, behind, closed := strings.Cut(strings.TrimPrefix(after, "("), ")")
			i := slices.IndexFunc(vars, func(v variable) bool { return v.name == name })
			if !closed || i < 0 || after[0] != '(' {
				break
			}
			value, rest = vars[i].value, behind
			if vars[i].unknown != "" {
				unknown = vars[i].name + " is not known: " + vars[i].unknown
			}
		}
		if b.Len()+len(before)+len(value) > min(maxText, *room) {
			return text, "it is too long for a program to start with"
		}
		b.WriteString(before)
		b.WriteString(value)
		if !found {
			*room -= b.Len()
			return b.String(), unknown
		}
		left = rest
	}
}

// commandLine returns the arguments of the program, without what its image says.
func (c container) commandLine(vars []variable) (line []word) {
	room := maxTexts
	for _, list := range []struct {
		field string
		words []string
	}{{"command", c.c.Command}, {"args", c.c.Args}} {
		for i, text := range list.words {
			w := word{place: place{object: c.w.object, field: c.path.with(list.field, i)}}
			w.text, w.unknown = expand(text, vars, &room)
			line = append(line, w)
		}
	}
	// sh -c LINE: the line has the program and its flags.
	texts := make([]string, len(line))
	for i, w := range line {
		texts[i] = w.text
	}
	if i := scriptAt(texts); i >= 0 {
		script := line[i]
		line = line[:0]
		for _, text := range strings.Fields(strings.ReplaceAll(script.text, "\\\n", " ")) {
			w := script
			w.text = strings.Trim(strings.NewReplacer(`"`, "", "'", "").Replace(text), "();&|")
			if strings.Contains(w.text, "$") {
				w.unknown = "the shell expands " + w.text
			}
			line = append(line, w)
		}
	}
	return line
}

// scriptAt returns the index of the line that a shell runs, as in sh -c LINE or
// bash -e -o pipefail -c LINE, or -1.
func scriptAt(words []string) int {
	if len(words) == 0 || !slices.Contains([]string{"sh", "bash", "ash", "dash"}, words[0][strings.LastIndexByte(words[0], '/')+1:]) {
		return -1
	}
	runs := false
	for i := 1; i < len(words); i++ {
		option, ok := strings.CutPrefix(words[i], "-")
		switch {
		case !ok && runs:
			return i
		case !ok:
			return -1
		case strings.HasPrefix(option, "-"): // --login
			continue
		}
		runs = runs || strings.Contains(option, "c")
		if strings.Contains(option, "o") { // its value is the next word
			i++
		}
	}
	return -1
}
