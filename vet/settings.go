package vet

import (
	"errors"
	"fmt"
	"log/slog"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/internal/call"
)

// place is the place of a value: a field of an object, and in a text of many lines one
// of them.
type place struct {
	object
	field fieldPath
	line  int // of the text, from 1; 0 for the field itself
}

// prefix is the prefix of variables that the run passes to the package config. The
// prefix of a service is the name of the file that its program passes to Load, which no
// manifest has.
const prefix = "VET"

// key describes a key of the configuration.
type key struct {
	config.Key
	field reflect.StructField
}

// keys are those that a variable or a flag may set and vet may read, by the part of
// their variable behind the prefix. A secret says nothing about a manifest.
var keys = func() map[string]key {
	all, err := config.Keys[lifecycle.Config]("", config.Section("lifecycle"), config.WithEnvPrefix(prefix))
	if err != nil {
		panic(err) // lifecycle.Config is a struct that config reads
	}
	m := make(map[string]key, len(all))
	for _, k := range all {
		field, ok := reflect.TypeFor[lifecycle.Config]().FieldByName(k.Field)
		if ok && !k.Secret {
			m[strings.TrimPrefix(k.Env, prefix+"_")] = key{k, field}
		}
	}
	return m
}()

// input is what the manifest gives to a service as it starts.
type input struct {
	file    *mounted         // nil for none
	sure    bool             // the manifest names the file
	environ []string         // as config.WithEnviron has it
	args    []string         // as config.WithArgs has it
	places  map[string]place // of variables and flags, by the source that config names
	shown   map[string]string
}

// settings reads the configuration with which the service in w.main starts, from all that the
// manifest gives to its container, in the order of config.Load: a file, variables, flags.
// The keys that it gives and their places are in w.given. A fault is a finding in
// w.faults, because w may turn out to be no service of lifecycle.
func (r *run) settings(w *workload) {
	w.cfg, w.given = r.Config, map[string]place{}
	if len(w.pod.Containers) == 0 {
		return
	}
	c := container{r, w, &w.pod.Containers[w.main], w.podPath.with("containers", w.main)}
	in := input{places: map[string]place{}, shown: map[string]string{}}
	vars := c.variables()
	for _, v := range vars {
		in.variable(c, v)
	}
	line := c.commandLine(vars)
	in.flags(c, line)
	c.file(&in, line, vars)

	base, path := r.Config, ""
	opts := []config.Option{
		config.Section("lifecycle"), config.Unchecked(), config.WithLogger(slog.New(slog.DiscardHandler)),
		config.WithEnvPrefix(prefix), config.WithEnviron(in.environ), config.WithArgs(in.args),
	}
	if in.file != nil {
		base, path = lifecycle.Config{}, in.file.name
		opts = append(opts, config.WithContent([]byte(in.file.text)))
		w.file = &in.file.place
	}
	var live *config.Live[lifecycle.Config]
	// The parsers of the file may panic on hostile input.
	err := call.Do("config", func() (err error) {
		live, err = config.Open[lifecycle.Config](path, opts...)
		return err
	})
	if err != nil {
		w.senseless = true
		c.refused(err, in)
		return
	}
	given := live.Get()
	w.cfg = base
	if in.file != nil {
		w.cfg = given
	}
	for _, s := range live.Settings() {
		field := s.Key[strings.IndexByte(s.Key, '.')+1:]
		for _, k := range keys {
			if k.Name == s.Key {
				reflect.ValueOf(&w.cfg).Elem().FieldByIndex(k.field.Index).Set(reflect.ValueOf(given).FieldByIndex(k.field.Index))
			}
		}
		w.given["lifecycle."+field] = in.source(s.Source)
	}
}

// source returns the place of a source that config names.
func (in input) source(name string) place {
	if p, ok := in.places[name]; ok {
		return p
	}
	p := place{}
	if in.file != nil {
		p = in.file.place
		p.line, _ = strconv.Atoi(strings.TrimPrefix(name, in.file.name+":"))
	}
	return p
}

// refused adds a finding for each fault for which config.Load refuses the settings.
func (c container) refused(err error, in input) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, part := range joined.Unwrap() {
			c.refused(part, in)
		}
		return
	}
	var fault *config.Fault
	if !errors.As(err, &fault) {
		fault = &config.Fault{Problem: err.Error()}
	}
	p, ok := in.places[fault.Source]
	what, fix := in.shown[fault.Source], "remove it, or give it a value that config.Load takes"
	switch {
	case ok && fault.Value != "":
		what += " is " + fault.Value + ", "
		fix = "set " + in.shown[fault.Source] + " to a valid value, or remove it"
	case ok:
		what += ": "
	case in.file != nil:
		p = in.file.place
		p.line = fault.Line
		c.w.ours = c.w.ours || in.sure && ours(fault)
		what = strings.TrimPrefix(fault.Key+" is "+fault.Value+": ", " is : ")
		if fault.Value == "" && fault.Key != "" {
			what = fault.Key + ": "
		}
		fix = "correct " + path.Base(in.file.name) + ": the service does not start with it"
	default:
		p = place{object: c.w.object, field: c.path}
	}
	c.w.pending(p, "config-refused", what+fault.Problem, fix)
}

// ours reports whether a fault in a file is about a key of lifecycle, or one that is
// nearly one. A file of another program may have a section lifecycle too.
func ours(fault *config.Fault) bool {
	for _, k := range keys {
		if k.Name == fault.Key {
			return true
		}
	}
	return strings.HasPrefix(fault.Key, "lifecycle.") && strings.Contains(fault.Problem, "did you mean")
}

// keyOfVariable returns the key that a variable sets. The name of the service's file, with
// which the variable begins, may have the word LIFECYCLE too.
func keyOfVariable(name string) (k key, known bool) {
	name = "_" + name
	if i := strings.LastIndex(name, "_LIFECYCLE_"); i >= 0 {
		k, known = keys[name[i+1:]]
	}
	return k, known
}

// variable adds a variable of the container, when it is one of lifecycle: its name ends
// in LIFECYCLE_ and a key, with any name before it.
func (in *input) variable(c container, v variable) {
	k, known := keyOfVariable(v.name)
	if !known {
		return
	}
	if v.unknown != "" {
		c.w.undecided(k, v.place, v.name, v.unknown)
		return
	}
	source := "environment " + k.Env
	if _, twice := in.places[source]; twice { // two prefixes: the last one counts
		in.environ = slices.DeleteFunc(in.environ, func(kv string) bool { return strings.HasPrefix(kv, k.Env+"=") })
	}
	in.places[source], in.shown[source] = v.place, v.name
	in.environ = append(in.environ, k.Env+"="+v.value)
}

// flags adds the flags of lifecycle from a command line.
func (in *input) flags(c container, line []word) {
	for i := 0; i < len(line); i++ {
		if line[i].text == "--" {
			return
		}
		name, value, has := flagOf(line[i].text)
		if !strings.HasPrefix(name, "lifecycle.") {
			continue
		}
		at, unknown := line[i].place, line[i].unknown
		name = strings.ReplaceAll(name, "_", "-")
		k := keys["LIFECYCLE_"+strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(name, "lifecycle."), "-", "_"))]
		if !has && k.Type != "true or false" && i+1 < len(line) {
			i++
			value, has, at, unknown = line[i].text, true, line[i].place, line[i].unknown
		}
		if unknown != "" {
			c.w.undecided(k, at, "-"+name, unknown)
			continue
		}
		if k.Name == "" && in.secret(name) {
			continue
		}
		source := "flag -" + name
		in.places[source], in.shown[source] = at, "-"+name
		arg := "-" + name
		if has {
			arg += "=" + value
		}
		in.args = append(in.args, arg)
	}
}

// secret reports whether the flag is that of a secret, which vet does not read.
func (in *input) secret(flag string) bool {
	field := strings.ReplaceAll(strings.TrimPrefix(flag, "lifecycle."), "-", "_")
	for _, f := range reflect.VisibleFields(reflect.TypeFor[lifecycle.Config]()) {
		if f.Type == reflect.TypeFor[lifecycle.Secret]() && f.Tag.Get("koanf") == field {
			return true
		}
	}
	return false
}

// flagOf returns the name and the value of an argument, "" for an argument that is no
// flag.
func flagOf(arg string) (name, value string, has bool) {
	name, ok := strings.CutPrefix(arg, "-")
	if !ok {
		return "", "", false
	}
	return strings.Cut(strings.TrimPrefix(name, "-"), "=")
}

// undecided notes that the manifest sets a key to a value that vet cannot know.
func (w *workload) undecided(k key, at place, name, why string) {
	if w.unknown == nil {
		w.unknown = map[string]bool{}
	}
	w.unknown[k.Field] = true
	what := k.Name
	if what == "" {
		what = "a key of lifecycle"
	}
	w.pending(at, "config-undecided", fmt.Sprintf("%s sets %s, and its value is not known: %s", name, what, why),
		"give the missing object too; until then the sums with "+what+" are not checked")
}
