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
)

// settings is the configuration with which a container starts, as the manifest gives it.
type settings struct {
	given       lifecycle.Config // without defaults
	places      map[string]place // of the keys that the manifest sets
	file        *place           // the text of the configuration's file, nil when the manifest does not have it
	hasNoFile   bool             // its program reads no file
	unknown     map[string]bool  // the fields whose values the manifest sets and vet cannot know
	absent      []missingObject  // what its program may read and the files do not have
	isSenseless bool             // the manifest sets a value that means nothing
	hasOwnFault bool             // its file has a fault in a key of lifecycle
	delayed     []delayed        // findings about the settings, for when lifecycle runs the container
}

// delayed is a finding that waits until it is known whether lifecycle runs the container.
type delayed struct {
	place             place
	rule, reason, fix string
}

// delay adds a finding about the settings.
func (s *settings) delay(at place, rule, reason, fix string) {
	s.delayed = append(s.delayed, delayed{at, rule, reason, fix})
}

// isUnknown reports whether the value of one of the fields is not known.
func (s *settings) isUnknown(fields ...string) bool {
	return slices.ContainsFunc(fields, func(field string) bool { return s.unknown[field] })
}

// prefix is the prefix of variables that vet passes to the package config. The
// prefix of a service is the name of the file that its program passes to Load, which no
// manifest has.
const prefix = "VET"

// key describes a key of the configuration.
type key struct {
	config.Key
	field reflect.StructField
}

// keys has the keys of lifecycle.Config, by the part of their variable behind the prefix.
var keys = func() map[string]key {
	all, err := config.Keys[lifecycle.Config]("", config.WithSection("lifecycle"), config.WithEnvPrefix(prefix))
	if err != nil {
		panic(err) // lifecycle.Config is a struct that config reads
	}
	m := make(map[string]key, len(all))
	for _, k := range all {
		field, _ := reflect.TypeFor[lifecycle.Config]().FieldByName(k.Field)
		m[strings.TrimPrefix(k.Env, prefix+"_")] = key{k, field}
	}
	return m
}()

// input is what the manifest gives to a program as it starts.
type input struct {
	file    *mounted         // nil for none
	isNamed bool             // the manifest names the file
	environ []string         // as config.WithEnviron has it
	args    []string         // as config.WithArgs has it
	places  map[string]place // of variables and flags, by the source that config names
	names   map[string]string
}

// open reads a section lifecycle as config.Load does, and does not check its sums.
func open(name string, opts ...config.Option) (*config.Live[lifecycle.Config], error) {
	return config.Open[lifecycle.Config](name, append(opts,
		config.WithSection("lifecycle"),
		config.WithoutValidation(),
		config.WithLogger(slog.New(slog.DiscardHandler)),
	)...)
}

// readSettings reads the configuration with which the container starts, from all that the
// manifest gives to it, in the order of config.Load: a file, variables, flags. A fault is a
// delayed finding, because lifecycle may not run the container.
func (c *container) readSettings() {
	c.given, c.places, c.unknown = c.Config, map[string]place{}, map[string]bool{}
	in := input{places: map[string]place{}, names: map[string]string{}}
	vars := c.variables()
	for _, v := range vars {
		c.addVariable(&in, v)
	}
	line := c.commandLine()
	c.addFlags(&in, line)
	c.findFile(&in, line, vars)

	name := ""
	opts := []config.Option{config.WithEnvPrefix(prefix), config.WithEnviron(in.environ), config.WithArgs(in.args)}
	if in.file != nil {
		name = in.file.name
		opts = append(opts, config.WithContent([]byte(in.file.text)))
		c.file = &in.file.place
	}
	live, err := open(name, opts...)
	if err != nil {
		c.isSenseless = true
		for _, part := range partsOf(err) {
			c.refused(part, in)
		}
		return
	}
	read := live.Get()
	if in.file != nil {
		c.given = read
	}
	if _, p := wrapped(c.spec); p != "" && c.given.HookSlice == 0 {
		c.given.HookSlice = lifecycle.Off // the default of lifecycle-run
	}
	for _, s := range live.Settings() {
		for _, k := range keys {
			if k.Name == s.Key && !k.Secret {
				reflect.ValueOf(&c.given).Elem().FieldByIndex(k.field.Index).Set(reflect.ValueOf(read).FieldByIndex(k.field.Index))
			}
		}
		c.places[s.Key] = in.placeOf(s.Source)
	}
}

// placeOf returns the place of a source that config names.
func (in input) placeOf(source string) place {
	if p, ok := in.places[source]; ok {
		return p
	}
	p := place{}
	if in.file != nil {
		p = in.file.place
		p.line, _ = strconv.Atoi(strings.TrimPrefix(source, in.file.name+":"))
	}
	return p
}

// partsOf splits an error that joins others.
func partsOf(err error) (parts []error) {
	joined, ok := err.(interface{ Unwrap() []error })
	switch {
	case err == nil:
		return nil
	case !ok:
		return []error{err}
	}
	for _, part := range joined.Unwrap() {
		parts = append(parts, partsOf(part)...)
	}
	return parts
}

// refused adds a finding for a fault for which config.Load refuses the settings.
func (c *container) refused(err error, in input) {
	fault, ok := errors.AsType[*config.Fault](err)
	if !ok {
		fault = &config.Fault{Problem: err.Error()}
	}
	p, ok := in.places[fault.Source]
	what, fix := in.names[fault.Source], "remove it, or give it a value that config.Load takes"
	switch {
	case ok && fault.Value != "":
		what += " is " + fault.Value + ", "
		fix = "set " + in.names[fault.Source] + " to a valid value, or remove it"
	case ok:
		what += ": "
	case in.file != nil:
		p = in.file.place
		p.line = fault.Line
		c.hasOwnFault = c.hasOwnFault || in.isNamed && isOfLifecycle(fault)
		what = strings.TrimPrefix(fault.Key+" is "+fault.Value+": ", " is : ")
		if fault.Value == "" && fault.Key != "" {
			what = fault.Key + ": "
		}
		fix = "correct " + path.Base(in.file.name) + ": the service does not start with it"
	default:
		p = place{object: c.workload.object, field: c.path}
	}
	c.delay(p, "config-refused", what+fault.Problem, fix)
}

// isOfLifecycle reports whether a fault in a file is about a key of lifecycle, or one that
// is nearly one. A file of another program may have a section lifecycle too.
func isOfLifecycle(fault *config.Fault) bool {
	for _, k := range keys {
		if k.Name == fault.Key {
			return true
		}
	}
	return strings.HasPrefix(fault.Key, "lifecycle.") && strings.Contains(fault.Problem, "did you mean")
}

// keyOfVariable returns the key that a variable sets, unless that is a secret, which says nothing
// about a manifest. The name of the service's file, with which the variable begins, may have the
// word LIFECYCLE too.
func keyOfVariable(name string) (k key, known bool) {
	prefix := prefixOf(name)
	k, known = keys[name[len(prefix):]]
	return k, known && !k.Secret
}

// prefixOf returns the text before LIFECYCLE_ in the name of a variable: the name of the
// service's file and an underscore, or nothing.
func prefixOf(name string) string { return name[:max(0, strings.LastIndex("_"+name, "_LIFECYCLE_"))] }

// addVariable adds a variable of the container, when it is one of lifecycle: its name ends
// in LIFECYCLE_ and a key, with any name before it.
func (c *container) addVariable(in *input, v variable) {
	k, known := keyOfVariable(v.name)
	if !known {
		return
	}
	if v.unknown != "" {
		c.undecided(k, v.place, v.name, v.unknown)
		return
	}
	source := "environment " + k.Env
	in.places[source], in.names[source] = v.place, v.name
	in.environ = append(in.environ, k.Env+"="+v.value)
}

// addFlags adds the flags of lifecycle from a command line.
func (c *container) addFlags(in *input, line []word) {
	for i := 0; i < len(line); i++ {
		if line[i].text == "--" {
			return
		}
		name, value, hasValue := flagOf(line[i].text)
		if !strings.HasPrefix(name, "lifecycle.") {
			continue
		}
		at, unknown := line[i].place, line[i].unknown
		name = strings.ReplaceAll(name, "_", "-")
		field := strings.ReplaceAll(strings.TrimPrefix(name, "lifecycle."), "-", "_")
		k := keys["LIFECYCLE_"+strings.ToUpper(field)]
		if !hasValue && k.Type != "true or false" && i+1 < len(line) {
			i++
			value, hasValue, at, unknown = line[i].text, true, line[i].place, line[i].unknown
		}
		if unknown != "" {
			c.undecided(k, at, "-"+name, unknown)
			continue
		}
		source := "flag -" + name
		in.places[source], in.names[source] = at, "-"+name
		arg := "-" + name
		if hasValue {
			arg += "=" + value
		}
		in.args = append(in.args, arg)
	}
}

// flagOf returns the name and the value of an argument, "" for an argument that is no
// flag.
func flagOf(arg string) (name, value string, hasValue bool) {
	name, ok := strings.CutPrefix(arg, "-")
	if !ok {
		return "", "", false
	}
	return strings.Cut(strings.TrimPrefix(name, "-"), "=")
}

// undecided notes that the manifest sets a key to a value that vet cannot know.
func (c *container) undecided(k key, at place, name, why string) {
	c.unknown[k.Field] = true
	what := k.Name
	if what == "" {
		what = "a key of lifecycle"
	}
	c.delay(at, "config-undecided", fmt.Sprintf("%s sets %s, and its value is not known: %s", name, what, why),
		"give the missing object too; until then the sums with "+what+" are not checked")
}
