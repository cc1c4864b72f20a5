package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"unicode"
)

// Option configures [Load] and [Open].
type Option func(*options)

type options struct {
	path         string // of the files, "" for none
	optional     bool   // a file need not be there
	prefix       string // of environment variables, with its underscore
	environ      []string
	args         []string
	given        *slog.Logger // nil for the default of the moment
	out          io.Writer
	section      string
	content      []byte // of the file, nil to read it
	skipValidate bool   // do not call Validate methods
	fault        error  // of the options themselves

	from     *Source // in place of the file, nil for none
	set      *flag.FlagSet
	texts    map[string]string // of flags that the program has parsed, by key
	hasFlags bool              // there is set, texts or args
	hasEnv   bool              // there is environ
}

// WithOptionalFile lets each file be missing, unless the flag -config or its variable names it.
// Without this option a missing file is a fault: a service whose ConfigMap is not
// mounted should not run with defaults.
func WithOptionalFile() Option { return func(o *options) { o.optional = true } }

// WithEnvPrefix sets the prefix of environment variables, without the underscore.
// Defaults to the name of the first file passed to Load, without its extension, or to the
// name of the program when there is no file.
func WithEnvPrefix(prefix string) Option {
	return func(o *options) { o.prefix = envName(strings.TrimSuffix(prefix, "_")) + "_" }
}

// WithEnviron reads environment variables from a list of NAME=VALUE in place of
// os.Environ(); nil reads none.
func WithEnviron(environ []string) Option {
	return func(o *options) { o.environ, o.hasEnv = environ, true }
}

// WithArgs reads flags from args in place of os.Args[1:]; nil reads none. A test
// needs it, because its os.Args belong to go test. A program with commands of its
// own gives the arguments after the command, or has its flags parsed elsewhere: see
// [Define].
func WithArgs(args []string) Option {
	return func(o *options) { o.args, o.set, o.texts, o.hasFlags = args, nil, nil, true }
}

// WithLogger sets the logger. By default each message goes to the slog.Default() of
// that moment, since the configuration may set its format.
func WithLogger(log *slog.Logger) Option { return func(o *options) { o.given = log } }

func (o *options) log() *slog.Logger {
	if o.given != nil {
		return o.given
	}
	return slog.Default()
}

// WithOutput sets where -h writes the list of flags. Defaults to os.Stderr.
func WithOutput(w io.Writer) Option { return func(o *options) { o.out = w } }

// WithSection reads T from the section of that name only, and ignores the other keys of
// the file. Keys, variables and flags keep their whole names. It is for a program that
// needs a part of another program's configuration: with WithSection("lifecycle") T is
// lifecycle.Config for any service.
func WithSection(name string) Option { return func(o *options) { o.section = name } }

// WithContent reads content in place of the file, whose name says only the format. It is
// for a program that has the configuration of another program in hand, such as a
// ConfigMap's. [Live.Reload] reads the same content again.
func WithContent(content []byte) Option {
	return func(o *options) { o.content = append([]byte{}, content...) }
}

// WithoutValidation accepts values that contradict each other: Validate methods are not
// called. It is for a program that checks the configuration of another program itself,
// and needs the values and, from [Live.Settings], their places. A value that its key
// cannot hold is still a fault.
func WithoutValidation() Option { return func(o *options) { o.skipValidate = true } }

func newOptions(path string, opts []Option) options {
	name := filepath.Base(os.Args[0])
	if files := filepath.SplitList(path); len(files) > 0 {
		name = filepath.Base(files[0])
	}
	o := options{
		path:   path,
		prefix: envName(strings.TrimSuffix(name, filepath.Ext(name))) + "_",
		out:    os.Stderr,
	}
	for i, opt := range opts {
		if opt == nil {
			o.fault = errors.Join(o.fault, fmt.Errorf("config: option %d is nil", i+1))
			continue
		}
		opt(&o)
	}
	if o.from == nil && !o.hasEnv {
		o.environ = os.Environ()
	}
	if o.from == nil && !o.hasFlags && len(os.Args) > 1 {
		o.args = os.Args[1:]
	}
	if o.from != nil && path != "" {
		both := fmt.Errorf("config: %s replaces the file %s: load from one of them", o.from.Name, path)
		o.fault = errors.Join(o.fault, both)
	}
	return o
}

// envName turns a text into a part of an environment variable's name: capitals, digits
// and underscores.
func envName(s string) string {
	return strings.Map(func(r rune) rune {
		if r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return unicode.ToUpper(r)
		}
		return '_'
	}, s)
}

// Load returns a T from its defaults, the file at path, the environment and the flags.
// When two give the same key the later one wins. path may name several files, a base
// and what is laid over it, with the list separator of the system between them:
// "base.yaml:site.yaml".
//
// The error joins a [*Fault] for every fault of every source, also for values that a
// later source replaces. When -h is among the flags, Load writes the list of flags to
// the output and returns [flag.ErrHelp]. An error about T itself, such as a field that
// cannot be configured, is a mistake in the program.
func Load[T any](path string, opts ...Option) (T, error) {
	value, _, err := load[T](path, opts)
	return value, err
}

func load[T any](path string, opts []Option) (value T, l *loader, err error) {
	o := newOptions(path, opts)
	unset := defaults[T]()
	l, err = newLoader(reflect.ValueOf(&unset).Elem(), o)
	if err != nil {
		return value, nil, err
	}
	value, err = loadOnce[T](l)
	return value, l, err
}

// loadOnce reads all sources.
func loadOnce[T any](l *loader) (T, error) {
	var zero T
	value := defaults[T]()
	if err := l.read(reflect.ValueOf(&value).Elem()); err != nil {
		return zero, err
	}
	return value, nil
}

func defaults[T any]() T {
	var zero T
	if d, ok := any(zero).(interface{ WithDefaults() T }); ok && reflect.TypeFor[T]() != typeLifecycle {
		return d.WithDefaults()
	}
	return zero
}
