package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"reflect"
	"regexp"
	"strings"

	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/v2"

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
	file      string         // the file that is read, "" for none
	asked     string         // the flag or variable that named the file, "" for the program

	look     look      // the state of the file at the last read
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
	tree   map[string]any
	name   func(key string) (name string, line int)
	faults []error
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
			errs = append(errs, fmt.Errorf("config: the variable of %s is %s, which is also that of %s: rename the key", n.key, name, other))
		}
		taken[name] = n.key
	}
	return errors.Join(errs...)
}

// envOf returns the environment variable of a key.
func (l *loader) envOf(n *node) string { return l.prefix + envName(n.key) }

// flagOf returns the flag of a key.
func flagOf(n *node) string { return strings.ReplaceAll(n.key, "_", "-") }

// read decodes all sources into v, a struct that has the defaults. After an error v is
// not valid.
func (l *loader) read(v reflect.Value) error {
	var faults []error
	var sources []source
	l.file, l.asked = l.whichFile()
	read := l.readFile
	if l.from != nil {
		read = l.readFrom
	}
	if src, fault := read(); fault != nil {
		faults = append(faults, fault)
	} else if src != nil {
		faults = append(faults, src.faults...)
		sources = append(sources, *src)
	}
	src, envFaults := l.readEnv()
	faults = append(faults, envFaults...)
	sources = append(sources, src, l.readFlags())
	if l.flagFault != nil {
		faults = append(faults, l.flagFault)
	}

	merged := koanf.New(".")
	given := map[string][]Setting{}
	for _, src := range sources {
		found := len(faults)
		d := decoder{schema: l.schema}
		d.fault = func(key, value, problem string) {
			name, line := src.name(key)
			faults = append(faults, &Fault{Source: name, Line: line, Key: key, Value: value, Problem: problem})
		}
		d.set = func(n *node, raw any) {
			name, line := src.name(n.key)
			if line > 0 {
				name = fmt.Sprintf("%s:%d", name, line)
			}
			given[n.key] = append(given[n.key], Setting{Key: n.key, Source: name})
		}
		scratch := reflect.New(v.Type()).Elem()
		d.section(scratch, l.schema.root, src.tree, l.schema.root.key)
		if len(faults) > found {
			continue
		}
		for key, settings := range given {
			if last := &settings[len(settings)-1]; last.Value == "" {
				last.Value = l.valueOf(scratch, l.schema.keys[key])
			}
		}
		if err := merged.Load(confmap.Provider(src.tree, ""), nil); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	d := decoder{schema: l.schema, fault: func(key, value, problem string) {
		faults = append(faults, &Fault{Key: key, Value: value, Problem: problem})
	}}
	d.section(v, l.schema.root, merged.Raw(), l.schema.root.key)
	settings := l.account(given)
	if len(faults) == 0 && !l.unasked {
		faults = validate(v, l.schema.root, settings)
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	l.settings = settings
	for _, s := range settings {
		if len(s.Lost) > 0 {
			l.log().Debug("config: two sources disagree", "key", s.Key, "value", s.Value, "from", s.Source, "over", strings.Join(s.Lost, ", "))
		}
	}
	return nil
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

// whichFile returns the file to read, and the flag or variable that named it.
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

func (l *loader) readFile() (*source, *Fault) {
	if l.file == "" {
		return nil, nil
	}
	spoiled := func(f *Fault) (*source, *Fault) {
		f.Source = l.file
		return nil, f
	}
	kind, err := formatOf(l.file)
	if err != nil {
		return spoiled(&Fault{Problem: err.Error()})
	}
	content := l.content
	if content == nil {
		content, err = readFile(l.file)
	}
	l.look = lookAt(content, err)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			if l.optional && l.asked == "" {
				l.log().Debug("config: there is no file, and none is needed", "file", l.file)
				return nil, nil
			}
			hint := "there is no such file; -config or " + l.prefix + "CONFIG name another"
			if l.asked != "" {
				hint = "there is no such file, and " + l.asked + " names it"
			}
			return spoiled(&Fault{Problem: hint, Err: err})
		}
		problem := err.Error()
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			problem = "it cannot be read: " + pathErr.Err.Error()
		}
		return spoiled(&Fault{Problem: problem, Err: err})
	}
	doc, fault := kind.parse(content)
	if fault != nil {
		return spoiled(fault)
	}
	name := func(key string) (string, int) { return l.file, doc.lineOf(key) }
	tree, fault := l.sectionOf(doc.tree, name)
	if fault != nil {
		return nil, fault
	}
	return &source{tree: tree, name: name, faults: l.zeroFaults(doc.zeroed)}, nil
}

// sectionOf returns the part of a tree that has the values of T.
func (l *loader) sectionOf(tree map[string]any, place func(string) (string, int)) (map[string]any, *Fault) {
	if l.section == "" {
		return tree, nil
	}
	below := tree[l.section]
	section, ok := asTree(below)
	if !ok && below != nil {
		name, line := place(l.section)
		return nil, &Fault{Source: name, Line: line, Key: l.section, Value: shown(below, l.schema.root.hides()), Problem: "it is a section: want keys below it"}
	}
	return section, nil
}

// zeroFaults are the faults of numbers with a leading zero.
func (l *loader) zeroFaults(numbers []zeroed) (faults []error) {
	for _, z := range numbers {
		if l.section != "" && !strings.HasPrefix(z.path, l.section+".") {
			continue
		}
		fault := &Fault{Source: l.file, Line: z.line, Key: z.path, Value: z.text, Problem: zeroProblem + ", or as 0o… for octal"}
		if n := l.valueAround(z.path); n == nil {
			fault.Value = "" // a key for anchors may have a secret
		} else if n.hides() {
			fault.Value = hidden
		}
		faults = append(faults, fault)
	}
	return faults
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
	provider := env.Provider("", env.Opt{
		Prefix:      l.prefix,
		EnvironFunc: func() []string { return l.environ },
		TransformFunc: func(name, value string) (string, any) {
			n, ok := byName[name]
			if ok && serviceLink.MatchString("_"+name) && linked.MatchString(value) {
				l.log().Warn("config: a variable of a Kubernetes service has the name of a key and is ignored; enableServiceLinks: false removes such variables", "variable", name, "key", n.key)
				return "", nil
			}
			if ok {
				return n.key, untyped(value)
			}
			if name == l.prefix+"CONFIG" || l.section != "" {
				return "", nil
			}
			meant := suggest.Nearest(name, names)
			switch {
			case serviceLink.MatchString("_" + name):
				l.log().Debug("config: a variable of a Kubernetes service is not a key", "variable", name)
			case meant != "":
				faults = append(faults, &Fault{Source: "environment " + name, Problem: "there is no such key: did you mean " + meant + "?"})
			case strings.HasPrefix(name, l.prefix+"LIFECYCLE_"):
				faults = append(faults, &Fault{Source: "environment " + name, Problem: "there is no such key below lifecycle"})
			default:
				l.log().Warn("config: a variable with this service's prefix is not a key and is ignored", "variable", name)
			}
			return "", nil
		},
	})
	flat, err := provider.Read()
	if err != nil {
		faults = append(faults, fmt.Errorf("config: read the environment: %w", err))
	}
	return source{tree: l.nest(flat), name: func(key string) (string, int) {
		if n := l.valueAround(key); n != nil {
			return "environment " + l.envOf(n), 0
		}
		return "environment", 0
	}}, faults
}

func (l *loader) readFlags() source {
	flat := map[string]any{}
	for key, value := range l.flags {
		if _, ok := l.schema.keys[key]; ok {
			flat[key] = value
		}
	}
	return source{tree: l.nest(flat), name: func(key string) (string, int) {
		if n := l.valueAround(key); n != nil {
			return "flag " + l.dashes + flagOf(n), 0
		}
		return "flags", 0
	}}
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

// flagValue stores the value of a flag.
type flagValue struct {
	key  string
	into map[string]any
	bool bool
}

func (f *flagValue) String() string     { return "" }
func (f *flagValue) Set(s string) error { f.into[f.key] = untyped(s); return nil }
func (f *flagValue) IsBoolFlag() bool   { return f.bool }

// parseFlags parses the arguments, unless the program has. Once is enough: they do not
// change.
func (l *loader) parseFlags() error {
	l.flags = map[string]any{}
	if l.set != nil || l.texts != nil {
		return l.takeFlags()
	}
	set := flag.NewFlagSet("config", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	names := []string{"config"}
	set.Var(&flagValue{key: "config", into: l.flags}, "config", "")
	for _, n := range l.schema.leaves {
		names = append(names, flagOf(n))
		set.Var(&flagValue{key: n.key, into: l.flags, bool: n.typ.Kind() == reflect.Bool}, flagOf(n), n.usage)
	}
	err := set.Parse(l.args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		l.writeHelp()
		return flag.ErrHelp
	case err != nil:
		name, unknown := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
		if !unknown {
			return &Fault{Source: "flags", Problem: err.Error() + "; -h lists them"}
		}
		return UnknownFlag("-"+name, names)
	case set.NArg() > 0:
		return &Fault{Source: "arguments", Problem: fmt.Sprintf("%q is unexpected: all arguments are flags, -h lists them", set.Arg(0))}
	}
	return nil
}
