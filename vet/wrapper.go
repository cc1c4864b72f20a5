package vet

import (
	"errors"
	"log/slog"
	"strings"

	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/internal/run/runconfig"
)

// readWrapper reads the settings that lifecycle-run has beside the section lifecycle. A fault
// is a delayed finding: lifecycle-run does not start with it.
func (c *container) readWrapper(in input, line []word, vars []variable) {
	_, prefix := wrapped(c.spec)
	if prefix == "" {
		return
	}
	last := line[len(line)-1].place
	line = line[1:]
	if prefix == ofLifecyclectl { // lifecyclectl run
		line = line[1:]
	}
	words := make([]string, 0, len(line))
	for _, w := range line {
		words = append(words, w.text)
	}
	flags, program := runconfig.Split(words)
	if len(program) == 0 && len(c.spec.Args) > 0 {
		c.delay(last, "config-refused", "lifecycle-run is given no program: it does not start",
			"add two dashes and the command line of the program to args")
	}
	isSure := in.file != nil || len(c.absent) == 0 && !c.hasConfig() && !c.namesFile(line, vars)
	own := input{file: in.file, isNamed: in.isNamed, places: make(map[string]place), names: make(map[string]string)}
	isName := false // of the file, which in.file is
	for _, w := range line[:len(flags)] {
		if w.unknown != "" {
			return
		}
		name, _, hasValue := flagOf(w.text)
		if isName || name == "config" {
			isName = name == "config" && !hasValue
			continue
		}
		own.args = append(own.args, w.text)
		own.places["flag -"+name], own.names["flag -"+name] = w.place, "-"+name
	}
	for _, v := range vars {
		isOwn := strings.HasPrefix(v.name, prefix)
		isSure = isSure && (!isOwn || v.unknown == "")
		if isOwn && v.unknown == "" {
			own.environ = append(own.environ, v.name+"="+v.value)
			own.places["environment "+v.name], own.names["environment "+v.name] = v.place, v.name
		}
	}
	name := ""
	opts := []config.Option{
		config.WithEnvPrefix(strings.TrimSuffix(prefix, "_")), config.WithEnviron(own.environ), config.WithArgs(own.args),
		config.WithLogger(slog.New(slog.DiscardHandler)),
	}
	if in.file != nil {
		name = in.file.name
		opts = append(opts, config.WithContent([]byte(in.file.text)))
	}
	cfg, err := config.Load[runconfig.Config](name, opts...)
	for _, part := range partsOf(err) {
		fault, isFault := errors.AsType[*config.Fault](part)
		if !isFault {
			continue
		}
		isOfSection := strings.HasPrefix(fault.Key, "lifecycle.") ||
			strings.HasPrefix(fault.Source, "environment "+prefix+"LIFECYCLE_") ||
			strings.HasPrefix(fault.Source, "flag -lifecycle.")
		if !isOfSection { // those are found already
			c.refused(fault, own)
		}
	}
	if err == nil && isSure {
		c.readListening(cfg, line[len(line)-len(program):], vars)
	}
}

// namesFile reports whether the container names a file of settings.
func (c *container) namesFile(line []word, vars []variable) bool {
	name, _, unknown, isNamed := c.fileName(line, vars)
	return isNamed && name+unknown != ""
}
