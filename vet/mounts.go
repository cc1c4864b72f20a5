package vet

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go/config"
	corev1 "k8s.io/api/core/v1"
)

// mounted is a file of a container whose text the manifest has.
type mounted struct {
	name, text string
	place      place
}

// findFile finds the file that the program reads: the one that its flag -config or its
// variable names, or the only mounted one with a section lifecycle.
func (c *container) findFile(in *input, line []word, vars []variable) {
	name, at, unknown, isNamed := c.fileName(line, vars)
	switch {
	case !isNamed:
		in.file = c.onlyFile()
		return
	case name == "" && unknown == "":
		c.hasNoFile = true
		return
	}
	if unknown == "" {
		in.file, unknown = c.fileAt(name)
	}
	switch {
	case in.file != nil && isConfig(name):
		in.isNamed = true
	case in.file != nil:
		in.file = nil
	case !c.hasConfig():
		c.delay(at, "config-undecided", fmt.Sprintf("the service reads %s, and vet does not have it: %s", name, unknown),
			"give the object that has it, or the file with --config; until then its keys have their defaults")
	}
}

// fileName returns the name of the configuration's file, which the flag has, or else the
// variable.
func (c *container) fileName(line []word, vars []variable) (name string, at place, unknown string, isNamed bool) {
	for i, w := range line {
		if w.text == "--" {
			break
		}
		flag, value, hasValue := flagOf(w.text)
		if flag != "config" {
			continue
		}
		if !hasValue && i+1 < len(line) {
			w, value = line[i+1], line[i+1].text
		}
		name, at, unknown, isNamed = value, w.place, w.unknown, true
	}
	if isNamed {
		return name, at, unknown, isNamed
	}
	for _, v := range vars {
		if f := c.fileOf(v); f != nil {
			return f.name, v.place, "", true
		}
	}
	return "", place{}, "", false
}

// fileOf returns the mounted file that a variable NAME_CONFIG names, or nil. A variable of
// that form may belong to another program.
func (c *container) fileOf(v variable) *mounted {
	if !strings.HasSuffix(v.name, "_CONFIG") || v.unknown != "" || !isConfig(v.value) {
		return nil
	}
	f, _ := c.fileAt(v.value)
	return f
}

// isConfig reports whether a file may be a configuration, by its name.
func isConfig(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json", ".toml"}, strings.ToLower(path.Ext(name)))
}

// onlyFile returns the only mounted file that has a section lifecycle, nil for none.
func (c *container) onlyFile() *mounted {
	if c.hasConfig() {
		return nil
	}
	var candidates []mounted
	for _, m := range c.spec.VolumeMounts {
		files, why := c.filesOf(m)
		if name, ok := strings.CutSuffix(why, notHere); ok && strings.HasPrefix(why, "ConfigMap/") {
			at := place{object: c.workload.object, field: c.path.with("volumeMounts")}
			c.absent = append(c.absent, missingObject{at, name})
		}
		for _, f := range files {
			if isConfig(f.name) && hasSection(f) {
				candidates = append(candidates, f)
			}
		}
	}
	if len(candidates) == 1 {
		return &candidates[0]
	}
	if len(candidates) > 1 {
		var names []string
		for _, f := range candidates {
			names = append(names, f.name)
		}
		c.delay(candidates[0].place, "config-undecided", "several mounted files have a section lifecycle: "+strings.Join(names, ", "),
			"name the one that the service reads with its flag -config, or give it with --config")
	}
	return nil
}

// hasSection reports whether the file is a configuration with keys of lifecycle. A file
// of another program may have a section of that name, with other keys: it does not count.
func hasSection(f mounted) bool {
	if !strings.Contains(f.text, "lifecycle") || len(f.text) > config.MaxFileSize {
		return false
	}
	live, err := open(f.name, config.WithContent([]byte(f.text)), config.WithEnviron(nil), config.WithArgs(nil))
	return err == nil && len(live.Settings()) > 0
}

// fileAt returns the file of that name in the container, or why it is not known.
func (c *container) fileAt(name string) (*mounted, string) {
	why := "it is in the image"
	name = path.Clean(name)
	for _, m := range slices.Backward(c.spec.VolumeMounts) { // a mount below another one comes after it
		if at := path.Clean(m.MountPath); name != at && !strings.HasPrefix(name, strings.TrimSuffix(at, "/")+"/") {
			continue
		}
		files, whyNot := c.filesOf(m)
		for _, f := range files {
			if f.name == name {
				return &f, ""
			}
		}
		if why = whyNot; why == "" {
			why = "the mounted objects have no such file"
		}
	}
	return nil, why
}

// filesOf returns the files of a mount, and why others may be there.
func (c *container) filesOf(m corev1.VolumeMount) (seen []mounted, why string) {
	if m.SubPathExpr != "" {
		return nil, "its subPathExpr is known when the pod runs"
	}
	files, why := c.volume(m.Name)
	below := strings.Trim(path.Clean("/"+m.SubPath), "/")
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

// volume returns the files of a volume, and why others may be there.
func (c *container) volume(name string) (files []mounted, why string) {
	i := slices.IndexFunc(c.workload.pod.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	if i < 0 {
		return nil, "there is no volume " + name
	}
	switch v := c.workload.pod.Volumes[i]; {
	case v.ConfigMap != nil:
		return c.project("ConfigMap", v.ConfigMap.Name, v.ConfigMap.Items)
	case v.Secret != nil:
		return c.project("Secret", v.Secret.SecretName, v.Secret.Items)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			more, reason := []mounted(nil), "the volume "+name+" has other sources"
			switch {
			case s.ConfigMap != nil:
				more, reason = c.project("ConfigMap", s.ConfigMap.Name, s.ConfigMap.Items)
			case s.Secret != nil:
				more, reason = c.project("Secret", s.Secret.Name, s.Secret.Items)
			}
			files = append(files, more...)
			if reason != "" {
				why = reason
			}
		}
		return files, why
	}
	return nil, "the volume " + name + " is filled when the pod runs"
}

// project returns the files that a volume makes of an object's values.
func (c *container) project(kind, name string, items []corev1.KeyToPath) (files []mounted, why string) {
	t := c.textsOf(kind, name)
	if t == nil {
		return nil, kind + "/" + name + notHere
	}
	if len(items) == 0 {
		for key := range t.values {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
		slices.SortFunc(items, func(a, b corev1.KeyToPath) int { return strings.Compare(a.Path, b.Path) })
	}
	for _, item := range items {
		if text, ok := t.values[item.Key]; ok {
			files = append(files, mounted{path.Clean(item.Path), text, t.at(item.Key)})
		}
	}
	return files, ""
}
