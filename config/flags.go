package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// Define adds a flag for each key of T to a set of flags that the program parses
// itself. Load takes their values from [WithFlagSet]. path and the options mean what
// they mean for [Load]; the text of each flag names its variable and its default.
//
// Define also adds -config, which names the file, unless the set has a flag of that
// name. Any other name that the set already has is an error, and Define then adds nothing.
//
// Define and Load derive the prefix of the variables from their path. When a program passes
// Load the value of its own -config, the two paths differ: then give both calls the same
// [WithEnvPrefix].
func Define[T any](set *flag.FlagSet, path string, opts ...Option) error {
	keys, err := Keys[T](path, opts...)
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range keys {
		if name := strings.TrimPrefix(k.Flag, "-"); set.Lookup(name) != nil {
			errs = append(errs, fmt.Errorf("config: the program has a flag -%s already: rename the key %s or that flag", name, k.Name))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	define(set, keys)
	return nil
}

// define adds a flag for each key, and -config unless there is one.
func define(set *flag.FlagSet, keys []Key) {
	if set.Lookup("config") == nil {
		set.Var(&definedFlag{key: "config"}, "config", "read the `file` in place of the program's, or several, base.yaml:site.yaml, "+
			"of which a later one wins; none when it is empty")
	}
	for _, k := range keys {
		value := &definedFlag{key: k.Name, isBool: k.Type == boolType}
		set.Var(value, strings.TrimPrefix(k.Flag, "-"), k.Usage())
	}
}

// Usage is Doc with the type, the default and the variable, for the text of a flag. The
// type is in back quotes, as [flag.UnquoteUsage] wants it.
func (k Key) Usage() string {
	about := []string{"`" + k.Type + "`"}
	if k.Type == boolType {
		about = nil // such a flag needs no value
	}
	if k.Default != "" {
		about = append(about, "default "+k.Default)
	}
	return strings.TrimSpace(strings.ReplaceAll(k.Doc, "`", "'") + " (" + strings.Join(append(about, k.Env), ", ") + ")")
}

// definedFlag is the value of a flag that Define has added.
type definedFlag struct {
	key, text     string
	given, isBool bool
}

func (f *definedFlag) String() string     { return f.text }
func (f *definedFlag) Set(s string) error { f.text, f.given = s, true; return nil }
func (f *definedFlag) IsBoolFlag() bool   { return f.isBool }

// WithFlagSet takes the flags that [Define] has added to set, in place of os.Args. The
// program parses set before it calls Load. Other flags and arguments are the program's.
func WithFlagSet(set *flag.FlagSet) Option {
	return func(o *options) {
		if set == nil {
			o.fault = errors.Join(o.fault, errors.New("config: WithFlagSet has no set of flags"))
		}
		o.args, o.set, o.texts, o.hasFlags = nil, set, nil, true
	}
}

// WithFlags takes the texts of flags, by key, in place of os.Args. It is for a program
// whose flags another library parses; [Keys] lists what to define there. The key
// "config" names the file. Messages name a flag as --lifecycle.drain-interval.
func WithFlags(texts map[string]string) Option {
	return func(o *options) {
		if texts == nil {
			texts = map[string]string{}
		}
		o.args, o.set, o.texts, o.hasFlags = nil, nil, texts, true
	}
}

// parseFlags parses the arguments, or takes the flags that the program has parsed. Once is
// enough: they do not change.
func (l *loader) parseFlags() error {
	l.flags = map[string]any{}
	switch {
	case l.texts != nil:
		l.dashes = "--"
		for key, text := range l.texts {
			l.flags[key] = untyped(text)
		}
	case l.set != nil:
		if err := l.takeFlags(l.set); err != nil {
			return err
		}
	default:
		return l.parseArgs()
	}
	return l.checkKeys()
}

func (l *loader) parseArgs() error {
	set := flag.NewFlagSet("config", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	define(set, l.keys())
	err := FlagError(set, set.Parse(l.args))
	if taken := l.takeFlags(set); taken != nil { // those before a fault, too
		return taken
	}
	var unknown *Fault
	switch {
	case errors.Is(err, flag.ErrHelp):
		l.writeHelp(set)
		return flag.ErrHelp
	case errors.As(err, &unknown):
		return unknown
	case err != nil:
		return &Fault{Source: "flags", Problem: err.Error() + "; -h lists them"}
	case set.NArg() > 0:
		problem := fmt.Sprintf("%q is unexpected: all arguments are flags, -h lists them", set.Arg(0))
		return &Fault{Source: "arguments", Problem: problem}
	}
	return nil
}

// writeHelp writes the text of -h.
func (l *loader) writeHelp(set *flag.FlagSet) {
	file := "a file"
	if l.path != "" {
		file = "the file " + l.path
	}
	_, _ = fmt.Fprintf(l.out, `Each key can be given in %s, in the environment and as a flag;
the later one wins. A duration has a unit, as in 250ms, 5s or 1m30s. Below lifecycle, 0 and off
disable it; a missing key has its default. %sCONFIG and -config name another file, or several,
base.yaml:site.yaml.

`, file, l.prefix)
	set.SetOutput(l.out)
	set.PrintDefaults()
}

// takeFlags takes the values of the flags that define has added to a set.
func (l *loader) takeFlags(set *flag.FlagSet) error {
	parsed, defined := map[string]bool{}, false
	set.Visit(func(f *flag.Flag) { parsed[f.Name] = true })
	set.VisitAll(func(f *flag.Flag) {
		given, ok := f.Value.(*definedFlag)
		defined = defined || ok
		if ok && given.given {
			l.flags[given.key] = untyped(given.text)
			if !parsed[f.Name] {
				l.dashes = "--" // a library such as pflag has parsed it
			}
		}
	})
	var problem string
	switch {
	case !defined:
		problem = "this set has no flag of the configuration: call Define before Load"
	case !set.Parsed() && len(l.flags) == 0:
		problem = "this set is not parsed yet: parse it before Load, with set.Parse(nil) when another library parses its flags"
	default:
		return nil
	}
	return &Fault{Source: "flags", Problem: problem}
}

// checkKeys refuses flags whose keys T does not have. A T that is a section of a
// configuration leaves the flags of the others alone.
func (l *loader) checkKeys() error {
	if l.section != "" {
		return nil
	}
	var names, errs = []string{"config"}, []error(nil)
	for _, n := range l.schema.leaves {
		names = append(names, n.key)
	}
	for _, key := range slices.Sorted(maps.Keys(l.flags)) {
		if !slices.Contains(names, key) {
			errs = append(errs, &Fault{Source: "flags", Key: key, Problem: "there is no such key in " + l.defaults.Type().String()})
		}
	}
	return errors.Join(errs...)
}

// FlagError explains an error of set.Parse: for a flag that the set does not have it
// returns [UnknownFlag]. It returns every other error, and nil, as it is.
func FlagError(set *flag.FlagSet, err error) error {
	if err == nil {
		return nil
	}
	name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: ")
	if !ok {
		return err
	}
	var names []string
	set.VisitAll(func(f *flag.Flag) { names = append(names, f.Name) })
	fault := UnknownFlag(name, names)
	fault.Err = err
	return fault
}

// UnknownFlag is the fault of a flag that is not known, and names the one that was
// probably meant. flag is as it was given, with its dashes; names are all
// flags, without dashes.
func UnknownFlag(flag string, names []string) *Fault {
	name := strings.TrimLeft(flag, "-")
	dashes := strings.TrimSuffix(flag, name)
	problem := "there is no such flag; -h lists them"
	if meant := nearestFlag(name, names); meant != "" {
		problem = "there is no such flag: did you mean " + dashes + meant + "?"
	}
	return &Fault{Source: "flag " + dashes + name, Problem: problem}
}

// nearestFlag finds a flag by its whole name or by its last part.
func nearestFlag(name string, names []string) string {
	name = strings.ReplaceAll(name, "_", "-")
	if i := slices.IndexFunc(names, func(s string) bool { return s == name || strings.HasSuffix(s, "."+name) }); i >= 0 {
		return names[i]
	}
	return suggest.Nearest(name, names)
}
