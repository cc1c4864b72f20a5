package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// envPrefix begins the names of the environment variables: -drain-interval is
// SERVICE_DRAIN_INTERVAL.
const envPrefix = "SERVICE_"

// config is what the service can be told. A flag beats the environment, which
// beats the default.
type config struct {
	Addr        string
	DB          string
	Poll        time.Duration
	Log         string
	AllowFaults bool
	Lifecycle   lifecycle.Config
}

// parseConfig reads flags and environment. It writes usage to out and returns
// flag.ErrHelp when that was asked for; any other error names the flag or the
// variable, and what is wrong with it.
func parseConfig(args []string, lookupEnv func(string) (string, bool), out io.Writer) (config, error) {
	var c config
	fs := flag.NewFlagSet("service", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are returned; usage is written below
	fs.StringVar(&c.Addr, "addr", ":8080", "serve HTTP on this `address`")
	fs.StringVar(&c.DB, "db", "", "the database `file`; empty uses a temporary one")
	fs.DurationVar(&c.Poll, "poll", 500*time.Millisecond, "look for work this often")
	fs.StringVar(&c.Log, "log", logAuto, "`format` of the log: text, json, or auto, which is json in Kubernetes")
	fs.BoolVar(&c.AllowFaults, "allow-faults", false, "serve POST /fail, which breaks the service on purpose; for tests")

	l := &c.Lifecycle
	fs.StringVar(&l.Name, "name", "service", "the service's `name` in the log and the report")
	fs.StringVar(&l.HealthAddr, "health-addr", ":8081", "serve the health planes and /metrics on this `address`")
	fs.Func("drain-readiness", "what /readyz answers while draining: down or serving (default down)", func(s string) error {
		l.DrainReadiness = lifecycle.DrainReadiness(s)
		return nil
	})
	fs.Func("drain-wait", "wait for the drain window: auto, always or never (default auto)", func(s string) error {
		l.DrainWait = lifecycle.DrainWait(s)
		return nil
	})
	fs.Func("admin-token", "serve /admin/prestop, suspend and resume to whoever sends this `token`; the environment hides it better (default: do not)", func(s string) error {
		l.AdminToken = lifecycle.Secret(s)
		return nil
	})
	fs.StringVar(&l.AdminTokenFile, "admin-token-file", "", "the same, with the token in this `file`")
	for _, d := range []struct {
		field       *time.Duration
		name, usage string
	}{
		{&l.DrainInterval, "drain-interval", "keep serving for this long after readiness went down (default 5s)"},
		{&l.DrainQuiet, "drain-quiet", "end the window once nothing arrived for this long (default: do not)"},
		{&l.GoAwayAfter, "go-away-after", "tell HTTP/2 clients and streams to leave this long after the signal (default 1s)"},
		{&l.AcceptQuiet, "accept-quiet", "close the listener once nothing connected for this long (default 1s)"},
		{&l.Linger, "linger", "serve connections that are open for this long after the window (default 5s)"},
		{&l.ShutdownGrace, "shutdown-grace", "time for everything after the window (default 20s)"},
		{&l.UnitSlice, "unit-slice", "the part of it that is kept for units (default 5s)"},
		{&l.HookSlice, "hook-slice", "the part of it that is kept for hooks (default 5s)"},
		{&l.TerminationGrace, "termination-grace", "the pod's terminationGracePeriodSeconds, to check the sum against (default: do not)"},
		{&l.PreStop, "pre-stop", "time that the pod's preStop hook takes (default none)"},
	} {
		fs.Func(d.name, d.usage, func(s string) error { return setDuration(d.field, s) })
	}

	var errs []error
	fs.VisitAll(func(f *flag.Flag) {
		name := envPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if value, ok := lookupEnv(name); ok {
			if err := fs.Set(f.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("environment %s=%q: %w", name, value, err))
			}
		}
	})
	if err := errors.Join(errs...); err != nil {
		return config{}, err
	}
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		usage(fs, out)
		return config{}, err
	} else if err != nil {
		return config{}, fmt.Errorf("%w; -h lists the flags", err)
	}
	return c, c.validate(fs.Args())
}

func (c config) validate(rest []string) error {
	var errs []error
	if len(rest) > 0 {
		errs = append(errs, fmt.Errorf("unexpected argument %q: everything is a flag, -h lists them", rest[0]))
	}
	if c.Poll <= 0 {
		errs = append(errs, fmt.Errorf("-poll is %v, want more than 0", c.Poll))
	}
	switch c.Log {
	case logAuto, logText, logJSON:
	default:
		errs = append(errs, fmt.Errorf("-log is %q, want text, json or auto", c.Log))
	}
	return errors.Join(errs...)
}

// setDuration reads a duration in which 0 means none. To lifecycle.Config zero
// means its default and Off means none.
func setDuration(field *time.Duration, s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return errors.New("want a duration such as 5s or 1m30s")
	}
	if d == 0 {
		d = lifecycle.Off
	} else if d < 0 {
		return errors.New("want 0 or more")
	}
	*field = d
	return nil
}

func usage(fs *flag.FlagSet, out io.Writer) {
	fmt.Fprintf(out, "usage: service [flags]\n\nEvery flag can be given in the environment too: -drain-interval as %sDRAIN_INTERVAL.\n\n", envPrefix)
	fs.SetOutput(out)
	fs.PrintDefaults()
}
