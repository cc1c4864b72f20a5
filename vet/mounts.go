package vet

import (
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/internal/call"
	corev1 "k8s.io/api/core/v1"
)

// configMap and secret are objects whose texts a container may read.
type configMap struct {
	object
	*corev1.ConfigMap
}

type secret struct {
	object
	*corev1.Secret
}

// texts returns the values of the Secret, as a container sees them.
func (s secret) texts() map[string]string {
	m := make(map[string]string, len(s.Data)+len(s.StringData))
	for name, value := range s.Data {
		m[name] = string(value)
	}
	maps.Copy(m, s.StringData)
	return m
}

// at returns the place of a value of the Secret.
func (s secret) at(name string) place {
	if _, ok := s.StringData[name]; ok {
		return place{object: s.object, field: fieldPath{"stringData", name}}
	}
	return place{object: s.object, field: fieldPath{"data", name}}
}

// named returns the object of that name that an object refers to, nil for none.
func named[T interface{ self() object }](all []T, of object, name string) (found *T) {
	for i := range all {
		switch o := all[i].self(); {
		case o.name != name || !sameNamespace(o, of):
		case o.namespace == of.namespace:
			return &all[i]
		case found == nil:
			found = &all[i]
		}
	}
	return found
}

// mounted is a file of a container whose text the manifest has.
type mounted struct {
	name, text string
	place      place
}

// missingObject is an object that a container refers to and that is not in the files.
type missingObject struct {
	place place
	name  string
}

// file finds the file that the service reads: the one that its flag -config or its
// variable names, or the only mounted one with a section lifecycle.
func (c container) file(in *input, line []word, vars []variable) {
	name, at, unknown, named := c.fileName(line, vars)
	if !named {
		c.guess(in, vars)
		return
	}
	if unknown == "" && name == "" {
		c.w.noFile = true
		return
	}
	var found *mounted
	if unknown == "" {
		found, unknown = c.fileAt(name, vars)
	}
	if found != nil && formatKnown(found.name) {
		in.file, in.sure = found, true
		return
	}
	if found == nil && !c.told() {
		c.w.pending(at, "config-undecided", fmt.Sprintf("the service reads %s, and vet does not have it: %s", name, unknown),
			"give the object that has it, or the file with --config; until then its keys have their defaults")
	}
}

// fileName returns the name of the configuration's file: that of the flag, or else that
// of the variable.
func (c container) fileName(line []word, vars []variable) (name string, at place, unknown string, ok bool) {
	for i, w := range line {
		flag, value, has := flagOf(w.text)
		if flag != "config" {
			continue
		}
		if !has && i+1 < len(line) {
			w, value = line[i+1], line[i+1].text
		}
		name, at, unknown, ok = c.absolute(value), w.place, w.unknown, true
	}
	if ok {
		return name, at, unknown, ok
	}
	for _, v := range vars {
		// NAME_CONFIG may belong to another program: it counts when it names a mounted file.
		if strings.HasSuffix(v.name, "_CONFIG") && v.unknown == "" && formatKnown(v.value) {
			if f, _ := c.fileAt(c.absolute(v.value), vars); f != nil {
				return f.name, v.place, "", true
			}
		}
	}
	return "", place{}, "", false
}

// absolute returns a file's name from the container's root.
func (c container) absolute(name string) string {
	if name == "" || path.IsAbs(name) || c.c.WorkingDir == "" {
		return name
	}
	return path.Join(c.c.WorkingDir, name)
}

func formatKnown(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json", ".toml"}, strings.ToLower(path.Ext(name)))
}

// guess takes the only mounted file that has a section lifecycle.
func (c container) guess(in *input, vars []variable) {
	if c.told() {
		return
	}
	var candidates []mounted
	for _, m := range c.c.VolumeMounts {
		files, why := c.volume(m, vars)
		if name, ok := strings.CutSuffix(why, notHere); ok && strings.HasPrefix(why, "ConfigMap/") {
			c.w.absent = append(c.w.absent, missingObject{place{object: c.w.object, field: c.path.with("volumeMounts")}, name})
		}
		for _, f := range files {
			if formatKnown(f.name) && hasSection(f) {
				candidates = append(candidates, f)
			}
		}
	}
	switch len(candidates) {
	case 0:
	case 1:
		in.file = &candidates[0]
	default:
		var names []string
		for _, f := range candidates {
			names = append(names, f.name)
		}
		c.w.pending(candidates[0].place, "config-undecided", "several mounted files have a section lifecycle: "+strings.Join(names, ", "),
			"name the one that the service reads with its flag -config, or give it with --config")
	}
}

// hasSection reports whether the file is a configuration with keys of lifecycle. A file
// of another program may have such a section too, and is no configuration of lifecycle.
func hasSection(f mounted) bool {
	if !strings.Contains(f.text, "lifecycle") || len(f.text) > config.MaxFileSize {
		return false
	}
	found := false
	// The parsers may panic on hostile input.
	err := call.Do("config", func() error {
		live, err := config.Open[lifecycle.Config](f.name, config.Section("lifecycle"), config.Unchecked(), config.WithContent([]byte(f.text)),
			config.WithEnviron(nil), config.WithArgs(nil), config.WithLogger(slog.New(slog.DiscardHandler)))
		found = err == nil && len(live.Settings()) > 0
		return err
	})
	return err == nil && found
}

const notHere = " is not in these files"

// fileAt returns the file of that name in the container, or why it is not known.
func (c container) fileAt(name string, vars []variable) (*mounted, string) {
	if !path.IsAbs(name) {
		return nil, "its folder is that of the image"
	}
	name = path.Clean(name)
	best, why := -1, "it is in the image"
	for i, m := range c.c.VolumeMounts { // the deepest mount hides the others
		at := path.Clean(m.MountPath)
		if (name == at || strings.HasPrefix(name, strings.TrimSuffix(at, "/")+"/")) && (best < 0 || len(at) > len(path.Clean(c.c.VolumeMounts[best].MountPath))) {
			best = i
		}
	}
	if best < 0 {
		return nil, why
	}
	files, why := c.volume(c.c.VolumeMounts[best], vars)
	for _, f := range files {
		if f.name == name {
			return &f, ""
		}
	}
	if why == "" {
		why = "the mounted objects have no such file"
	}
	return nil, why
}

// volume returns the files of a mount, and why others may be there.
func (c container) volume(m corev1.VolumeMount, vars []variable) (files []mounted, why string) {
	i := slices.IndexFunc(c.w.pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
	if i < 0 {
		return nil, "there is no volume " + m.Name
	}
	v := c.w.pod.Volumes[i]
	switch {
	case v.ConfigMap != nil:
		files, why = c.fromConfigMap(v.ConfigMap.Name, v.ConfigMap.Items)
	case v.Secret != nil:
		files, why = c.fromSecret(v.Secret.SecretName, v.Secret.Items)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			var more []mounted
			var reason string
			switch {
			case s.ConfigMap != nil:
				more, reason = c.fromConfigMap(s.ConfigMap.Name, s.ConfigMap.Items)
			case s.Secret != nil:
				more, reason = c.fromSecret(s.Secret.Name, s.Secret.Items)
			default:
				reason = "the volume " + m.Name + " has other sources"
			}
			files = append(files, more...)
			if reason != "" {
				why = reason
			}
		}
	default:
		return nil, "the volume " + m.Name + " is filled when the pod runs"
	}
	below, unknown := m.SubPath, ""
	if m.SubPathExpr != "" {
		room := maxText
		below, unknown = expand(m.SubPathExpr, vars, &room)
	}
	if unknown != "" {
		return nil, unknown
	}
	below = strings.Trim(path.Clean("/"+below), "/")
	var seen []mounted
	for _, f := range files {
		rel, ok := strings.CutPrefix(f.name, below)
		if !ok || below != "" && rel != "" && rel[0] != '/' {
			continue
		}
		f.name = path.Join(m.MountPath, rel)
		seen = append(seen, f)
	}
	return seen, why
}

func (c container) fromConfigMap(name string, items []corev1.KeyToPath) ([]mounted, string) {
	m := named(c.configMaps, c.w.object, name)
	if m == nil {
		return nil, "ConfigMap/" + name + notHere
	}
	return projected(m.Data, items, func(key string) place { return place{object: m.object, field: fieldPath{"data", key}} }), ""
}

func (c container) fromSecret(name string, items []corev1.KeyToPath) ([]mounted, string) {
	s := named(c.secrets, c.w.object, name)
	if s == nil {
		return nil, "Secret/" + name + notHere
	}
	return projected(s.texts(), items, s.at), ""
}

// projected returns the files that a volume makes of an object's values.
func projected(texts map[string]string, items []corev1.KeyToPath, at func(string) place) (files []mounted) {
	if len(items) == 0 {
		for _, key := range slices.Sorted(maps.Keys(texts)) {
			files = append(files, mounted{key, texts[key], at(key)})
		}
		return files
	}
	for _, item := range items {
		if text, ok := texts[item.Key]; ok {
			files = append(files, mounted{path.Clean(item.Path), text, at(item.Key)})
		}
	}
	return files
}
