package config

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/internal/setting"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// loader reads the sources of one configuration, once or many times.
type loader struct {
	options
	schema    *schema
	defaults  reflect.Value  // the defaults of T; never changed
	flags     map[string]any // the values of flags, by key; they are parsed once
	dashes    string         // before the names of flags, in messages
	flagFault error          // the fault of the flags, nil for none
	file      string         // the files that are read, as they were given, "" for none
	files     []string       // the same as a list; a later one wins
	asked     string         // the flag or variable that named them, "" for the program

	looks    looks     // the states of the files at the last read
	settings []Setting // of the last successful read
}

// Setting says where the value of one key came from. Its fields are texts: the Key; the
// Value that counts, "[secret]" for a secret; the Source, such as "service.yaml:3",
// "environment NAME", "flag -name", the name of a [Source] or "default"; the values of
// earlier sources that it replaced, Lost, as "SOURCE: VALUE"; and InForce, the value that the
// running App has when it takes Value only at its next start.
type Setting = setting.Setting

// fromDefault is the Source of a key that no source gives.
const fromDefault = "default"

// source is one place that values come from.
type source struct {
	tree map[string]any
	name func(key string) (name string, line int)
}

// newLoader makes a loader for the type of the defaults.
func newLoader(defaults reflect.Value, o options) (*loader, error) {
	if o.fault != nil {
		return nil, o.fault
	}
	s, err := newSchema(defaults.Type(), o.section)
	if err != nil {
		return nil, err
	}
	l := &loader{options: o, schema: s, defaults: defaults, file: o.path, dashes: "-"}
	if err := l.checkNames(); err != nil {
		return nil, err
	}
	if l.flagFault = l.parseFlags(); errors.Is(l.flagFault, flag.ErrHelp) {
		return nil, flag.ErrHelp
	}
	return l, nil
}

// checkNames refuses a T with two keys that have the same variable.
func (l *loader) checkNames() error {
	taken := map[string]string{l.prefix + "CONFIG": "the name of the file", l.prefix + "HELP": "help"}
	var errs []error
	for _, n := range l.schema.leaves {
		name := l.envOf(n)
		if other, ok := taken[name]; ok {
			errs = append(errs, fmt.Errorf("config: %s and %s have the same variable, %s: rename the key", n.key, other, name))
		}
		taken[name] = n.key
	}
	return errors.Join(errs...)
}

// envOf returns the environment variable of a key.
func (l *loader) envOf(n *node) string { return l.prefix + envName(n.key) }

func flagOf(n *node) string { return strings.ReplaceAll(n.key, "_", "-") }

// read decodes all sources into v, a struct that has the defaults. After an error v is
// not valid.
func (l *loader) read(v reflect.Value) error {
	l.file, l.asked = l.whichFile()
	l.files, l.looks = l.list(l.file), nil
	var sources []func() (source, []error)
	for _, name := range l.files {
		sources = append(sources, func() (source, []error) { return l.readFile(name) })
	}
	if l.from != nil {
		sources = append(sources, l.readFrom)
	}
	sources = append(sources, l.readEnv, l.readFlags)
	var faults []error
	var faulty []string // keys with a fault, which keep the values of earlier sources
	given := map[string][]Setting{}
	validates := !l.skipValidate
	for _, read := range sources {
		src, errs := read()
		faults = append(faults, errs...)
		isUnread := src.tree == nil && len(errs) > 0
		validates = validates && !isUnread // Validate would miss the values of an unread source
		l.decode(src, v, given, func(f *Fault) {
			faults = append(faults, f)
			faulty = append(faulty, f.Key)
		})
	}
	settings := l.account(given)
	if validates {
		hasNoSums := slices.ContainsFunc(faulty, l.isOfLifecycle) // they would add up values of earlier sources
		for _, fault := range validate(v, l.schema.root, settings) {
			if !hasNoSums || !errors.As(fault, new(*lifecycle.ConfigError)) {
				faults = append(faults, fault)
			}
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	l.settings = settings
	for _, s := range settings {
		if len(s.Lost) > 0 {
			l.log().Debug("config: two sources disagree",
				"key", s.Key, "value", s.Value, "from", s.Source, "over", strings.Join(s.Lost, ", "))
		}
	}
	return nil
}

// isOfLifecycle reports whether a key is below a lifecycle.Config, also one that it does
// not have.
func (l *loader) isOfLifecycle(key string) bool {
	for key = base(key); key != ""; {
		key = key[:max(0, strings.LastIndexByte(key, '.'))]
		n := l.schema.keys[key]
		if key == l.schema.root.key {
			n = l.schema.root
		}
		if n != nil && structOf(n.typ) == typeLifecycle {
			return true
		}
	}
	return false
}

// decode decodes a source into v, over the sources before it. It adds the values that the
// source gives to given.
func (l *loader) decode(src source, v reflect.Value, given map[string][]Setting, fault func(*Fault)) {
	d := decoder{schema: l.schema}
	d.fault = func(key, value, problem string) {
		name, line := src.name(key)
		fault(&Fault{Source: name, Line: line, Key: key, Value: value, Problem: problem})
	}
	d.set = func(n *node) {
		name, line := src.name(n.key)
		if line > 0 {
			name = fmt.Sprintf("%s:%d", name, line)
		}
		given[n.key] = append(given[n.key], Setting{Key: n.key, Value: l.valueOf(v, n), Source: name})
	}
	d.section(v, l.schema.root, src.tree, l.schema.root.key)
}

// account returns the setting of each given key, in the order of the fields.
func (l *loader) account(given map[string][]Setting) (all []Setting) {
	for _, n := range l.schema.leaves {
		settings := given[n.key]
		if len(settings) == 0 {
			continue
		}
		won := settings[len(settings)-1]
		for _, lost := range settings[:len(settings)-1] {
			won.Lost = append(won.Lost, lost.Source+": "+lost.Value)
		}
		all = append(all, won)
	}
	return all
}

// valueOf returns the value of a key as text.
func (l *loader) valueOf(v reflect.Value, n *node) string {
	field, ok := lookup(v, l.schema.root, n)
	if !ok {
		return ""
	}
	return render(field, n)
}

// list returns the names of files, which the list separator of the system separates, as in PATH.
func (l *loader) list(files string) []string {
	switch {
	case files == "" || l.from != nil:
		return nil
	case l.content != nil: // in place of one file
		return []string{files}
	}
	return filepath.SplitList(files)
}

// whichFile returns the files to read, and the flag or variable that named them.
func (l *loader) whichFile() (name, asked string) {
	if given, ok := l.flags["config"].(untyped); ok {
		return string(given), "flag " + l.dashes + "config"
	}
	for _, kv := range l.environ {
		if name, ok := strings.CutPrefix(kv, l.prefix+"CONFIG="); ok {
			return name, "environment " + l.prefix + "CONFIG"
		}
	}
	return l.path, ""
}

func (l *loader) readFile(file string) (source, []error) {
	refuse := func(f *Fault) (source, []error) {
		f.Source = file
		return source{}, []error{f}
	}
	if file == "" {
		return source{}, []error{&Fault{Source: l.file, Problem: "one of the files has no name"}}
	}
	content, err := l.content, error(nil)
	if content == nil {
		content, err = readFile(file)
	}
	l.looks = append(l.looks, lookAt(content, err))
	parse, unknown := parserOf(file)
	if unknown != nil {
		return refuse(&Fault{Problem: unknown.Error()})
	}
	var pathErr *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist) && l.optional && l.asked == "":
		l.log().Debug("config: there is no file, and none is needed", "file", file)
		return source{}, nil
	case errors.Is(err, fs.ErrNotExist) && l.asked != "":
		return refuse(&Fault{Problem: "there is no such file, and " + l.asked + " names it", Err: err})
	case errors.Is(err, fs.ErrNotExist):
		return refuse(&Fault{Problem: "there is no such file; -config or " + l.prefix + "CONFIG name another", Err: err})
	case errors.As(err, &pathErr):
		return refuse(&Fault{Problem: "it cannot be read: " + pathErr.Err.Error(), Err: err})
	case err != nil:
		return refuse(&Fault{Problem: err.Error(), Err: err})
	}
	content = bytes.TrimPrefix(content, []byte("\uFEFF"))
	if fault := checkText(content); fault != nil {
		return refuse(fault)
	}
	doc, fault := parse(content)
	if fault != nil {
		return refuse(fault)
	}
	name := func(key string) (string, int) { return file, doc.lineOf(key) }
	return l.sectionOf(doc.tree, name)
}

// sectionOf returns the part of a tree that has the values of T.
func (l *loader) sectionOf(tree map[string]any, name func(key string) (string, int)) (source, []error) {
	src := source{tree: tree, name: name}
	if l.section == "" {
		return src, nil
	}
	below := tree[l.section]
	var ok bool
	if src.tree, ok = asTree(below); !ok && below != nil {
		file, line := name(l.section)
		return source{}, []error{&Fault{
			Source:  file,
			Line:    line,
			Key:     l.section,
			Value:   shown(below, l.schema.root.hides()),
			Problem: "it is a section: want keys below it",
		}}
	}
	return src, nil
}

// valueAround returns the value that has the key, which may be below a list or a map;
// nil for a key that T does not have.
func (l *loader) valueAround(key string) *node {
	for key = base(key); key != ""; key = key[:max(0, strings.LastIndexByte(key, '.'))] {
		if n, ok := l.schema.keys[key]; ok {
			if n.isLeaf() {
				return n
			}
			return nil
		}
	}
	return nil
}

// serviceLink matches the variables that Kubernetes sets in every pod for each Service
// of its namespace, unless enableServiceLinks is false.
var serviceLink = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// linked matches the values of Kubernetes's variables NAME_PORT. A key named port has
// a variable of the same name.
var linked = regexp.MustCompile(`^(tcp|udp|sctp)://`)

// readEnv reads the variables with the prefix. A variable that is not a key is a fault
// when it resembles one or is below lifecycle. Otherwise the log names it: other
// programs may use the prefix too.
func (l *loader) readEnv() (source, []error) {
	byName, names := map[string]*node{}, []string{l.prefix + "CONFIG"}
	for _, n := range l.schema.leaves {
		byName[l.envOf(n)] = n
		names = append(names, l.envOf(n))
	}
	var faults []error
	flat := map[string]any{}
	for _, variable := range l.environ {
		name, value, ok := strings.Cut(variable, "=")
		if !ok || !strings.HasPrefix(name, l.prefix) {
			l.warnOfPrefix(name, byName)
			continue
		}
		isLink := serviceLink.MatchString("_" + name)
		switch n := byName[name]; {
		case n != nil && isLink && linked.MatchString(value):
			l.log().Warn("config: a variable of a Kubernetes service has the name of a key and is ignored; enableServiceLinks: false removes such variables",
				"variable", name, "key", n.key)
		case n != nil:
			flat[n.key] = untyped(value)
		case name == l.prefix+"CONFIG" || l.section != "":
		case isLink:
			l.log().Debug("config: a variable of a Kubernetes service is not a key", "variable", name)
		default:
			if problem := l.strayVariable(name, names); problem != "" {
				faults = append(faults, &Fault{Source: "environment " + name, Problem: problem})
			}
		}
	}
	return source{tree: l.nest(flat), name: func(key string) (string, int) {
		if n := l.valueAround(key); n != nil {
			return "environment " + l.envOf(n), 0
		}
		return "environment", 0
	}}, faults
}

// warnOfPrefix warns of a variable that would set a key of lifecycle in a program with
// another prefix, such as one from a manifest that was copied.
func (l *loader) warnOfPrefix(name string, keys map[string]*node) {
	const section = "LIFECYCLE_"
	i := strings.LastIndex("_"+name, "_"+section)
	if i < 0 || l.section != "" {
		return
	}
	if own := l.prefix + name[i:]; keys[own] != nil {
		l.log().Warn("config: a variable has another prefix than this service's and is ignored", "variable", name, "would_be", own)
	}
}

// strayVariable says what is wrong with a variable that is not a key. It only warns about
// one that may belong to another program.
func (l *loader) strayVariable(name string, names []string) (problem string) {
	if meant := suggest.Nearest(name, names); meant != "" {
		return "there is no such key: did you mean " + meant + "?"
	}
	if strings.HasPrefix(name, l.prefix+"LIFECYCLE_") {
		return "there is no such key below lifecycle"
	}
	l.log().Warn("config: a variable with this service's prefix is not a key and is ignored", "variable", name)
	return ""
}

func (l *loader) readFlags() (source, []error) {
	flat := map[string]any{}
	for key, value := range l.flags {
		if _, ok := l.schema.keys[key]; ok {
			flat[key] = value
		}
	}
	src := source{tree: l.nest(flat), name: func(key string) (string, int) {
		if n := l.valueAround(key); n != nil {
			return "flag " + l.dashes + flagOf(n), 0
		}
		return "flags", 0
	}}
	if l.flagFault != nil {
		return src, []error{l.flagFault}
	}
	return src, nil
}

// nest makes a tree from values by whole key, starting at the section.
func (l *loader) nest(flat map[string]any) map[string]any {
	tree := map[string]any{}
	for key, value := range flat {
		if l.section != "" {
			key = strings.TrimPrefix(key, l.section+".")
		}
		at := tree
		parts := strings.Split(key, ".")
		for _, part := range parts[:len(parts)-1] {
			below, ok := at[part].(map[string]any)
			if !ok {
				below = map[string]any{}
				at[part] = below
			}
			at = below
		}
		at[parts[len(parts)-1]] = value
	}
	return tree
}

// base returns the key of the list or map that an element belongs to.
func base(key string) string {
	key, _, _ = strings.Cut(key, "[")
	return key
}
