// Package cmdline reads the command lines of containers: which word is the program, which one is
// the script of a shell, what stands behind lifecycle-run, and how long a script sleeps.
package cmdline

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// inits are programs that start another program as their only work.
var inits = []string{"tini", "tini-static", "dumb-init", "catatonit"}

// Base returns the last part of a program's path.
func Base(program string) string { return program[strings.LastIndexByte(program, '/')+1:] }

// Program returns the index of the program in a command line: the first word, or the program
// that an init starts, as in tini -s -- sh -c LINE. It is len(words) when there is none.
func Program(words []string) int {
	if len(words) == 0 || !slices.Contains(inits, Base(words[0])) {
		return 0
	}
	for i, word := range words[1:] {
		switch {
		case word == "--":
			return i + 2
		case !strings.HasPrefix(word, "-"):
			return i + 1
		}
	}
	return len(words)
}

// Script returns the index of the line that a shell runs, as in sh -c LINE or
// bash -e -o pipefail -c LINE, or -1.
func Script(words []string) int {
	first := Program(words)
	if first >= len(words) || !slices.Contains([]string{"sh", "bash", "ash", "dash"}, Base(words[first])) {
		return -1
	}
	runs := false
	for i := first + 1; i < len(words); i++ {
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

// execs matches a script whose shell becomes its last command.
var execs = regexp.MustCompile(`(?:^|[\s;&])exec\s`)

// Shell returns the name of the shell that stays the first process of a command line while its
// script runs, or "". It does not pass SIGTERM on.
func Shell(words []string) string {
	i := Script(words)
	if i < 0 || execs.MatchString(words[i]) {
		return ""
	}
	return Base(words[Program(words)])
}

// What the variables of lifecycle-run begin with, and those of "lifecyclectl run".
const (
	PrefixRun = "LIFECYCLE_RUN_"
	PrefixCtl = "LIFECYCLECTL_RUN_"
)

// Wrapped returns the command line of the program that lifecycle-run runs, and what the variables
// of lifecycle-run begin with. For another program it returns all words, and "".
func Wrapped(words []string) (program []string, prefix string) {
	first := Program(words)
	if first >= len(words) {
		return words, ""
	}
	name, behind := Base(words[first]), words[first+1:]
	switch {
	case name == "lifecycle-run":
		prefix = PrefixRun
	case name == "lifecyclectl" && len(behind) > 0 && behind[0] == "run":
		prefix, behind = PrefixCtl, behind[1:]
	default:
		return words, ""
	}
	_, program = Split(behind)
	return program, prefix
}

// Split separates the flags of lifecycle-run from the command. Without "--" the command begins at
// the first word that is not a flag; then write a flag's value as -flag=value.
func Split(args []string) (flags, command []string) {
	if i := slices.Index(args, "--"); i >= 0 {
		return args[:i:i], args[i+1:]
	}
	for i, arg := range args {
		if arg == "" || arg[0] != '-' {
			return args[:i:i], args[i:]
		}
	}
	return args, nil
}

// sleeping matches a sleep command of shells and coreutils, with fractions and
// units; the unit defaults to seconds.
var sleeping = regexp.MustCompile(`\bsleep\s+(\d+(?:\.\d+)?)([smhd]?)(?:$|[^\w.])`)

var sleepUnits = map[string]time.Duration{
	"":  time.Second,
	"s": time.Second,
	"m": time.Minute,
	"h": time.Hour,
	"d": 24 * time.Hour,
}

// longest is longer than any wait, and short enough for sums not to overflow.
const longest = (1 << 32) * time.Second

// Sleep returns the sum of a command line's sleeps, and whether it has any.
func Sleep(words []string) (d time.Duration, any bool) {
	for _, m := range sleeping.FindAllStringSubmatch(strings.Join(words, " "), -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			continue
		}
		seconds := min(n*sleepUnits[m[2]].Seconds(), longest.Seconds())
		d, any = min(d+time.Duration(seconds*float64(time.Second)), longest), true
	}
	return d, any
}
