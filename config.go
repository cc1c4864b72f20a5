package lifecycle

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/statusz"
	"github.com/pleme-io/lifecycle-go/internal/token"
)

// Off turns a duration of [Config] off, where zero gives its default.
const Off time.Duration = -1

// DrainReadiness says what /readyz answers while the App drains.
type DrainReadiness string

const (
	// ReadinessDown fails /readyz from the first moment of the drain on. On a
	// node shutdown, a kubelet eviction, a failed liveness probe or a fatal
	// unit nothing else tells the endpoints controller to look elsewhere.
	ReadinessDown DrainReadiness = "down"

	// ReadinessServing leaves /readyz as it is until the listeners close. It is
	// for a single replica, and for a Service with externalTrafficPolicy Local:
	// kube-proxy falls back to endpoints that terminate and are still ready
	// when there are no others (KEP-1669, KEP-1672), and going down leaves it
	// with none.
	ReadinessServing DrainReadiness = "serving"
)

// DrainWait says whether the drain waits for the cluster to notice.
type DrainWait string

const (
	// WaitAuto waits, unless no client can be there: the App was never ready,
	// nothing listens, or a person pressed Ctrl-C at a terminal outside of
	// Kubernetes.
	WaitAuto DrainWait = "auto"
	// WaitAlways waits in these cases too.
	WaitAlways DrainWait = "always"
	// WaitNever does not wait. Drainers still run.
	WaitNever DrainWait = "never"
)

// HealthOff as [Config].HealthAddr runs the App without a health server.
const HealthOff = "off"

// Config holds what an operator may tune. The zero value is a sound
// configuration: every field has a default. It is a plain value; [New] copies
// it. A running App takes on changes of the fields with the tag reload:"live", by
// [App.Reconfigure].
//
// The time that a stop may take is fixed by three of the fields:
//
//	T0                                      the stop is requested
//	T0 + DrainInterval                      the window is over
//	T0 + DrainInterval + ShutdownGrace      everything has ended
//	T0 + DrainInterval + ShutdownGrace + 2s the watchdog ends the process
//
// The last one, after PreStop, has to be within the grace that Kubernetes
// gives; [New] refuses a Config for which it is not.
type Config struct {
	// Name of the service, in the log and the report. Defaults to the name of
	// the program.
	Name string `koanf:"name" json:"name"`

	// HealthAddr is where the health planes are served, apart from everything
	// else. Defaults to ":8081"; "off" ([HealthOff]) serves none.
	HealthAddr string `koanf:"health_addr" json:"healthAddr"`

	// DrainInterval is the window in which readiness is down and everything is
	// still served, so that the cluster can take this process out of every
	// load balancer before it goes: the period of the readiness probe times
	// its failure threshold, and what endpoints take to spread. Drainers run
	// inside it. Defaults to 5 s; Off leaves no window.
	DrainInterval time.Duration `koanf:"drain_interval" json:"drainInterval" reload:"live"`

	// DrainQuiet ends the window early: once no request is in flight, none has
	// arrived for this long and every drainer has returned, but not before
	// DrainMin. RPCs of a gRPC server cannot be seen: it is quiet only when it
	// has no open connection, which clients that keep theirs leave to the end
	// of the window. Defaults to not at all.
	DrainQuiet time.Duration `koanf:"drain_quiet" json:"drainQuiet" reload:"live"`

	// DrainMin is the shortest window that DrainQuiet can make. Defaults to
	// 1 s, or to DrainInterval when that is shorter.
	DrainMin time.Duration `koanf:"drain_min" json:"drainMin" reload:"live"`

	// DrainReadiness is what /readyz answers in the window. Defaults to "down".
	DrainReadiness DrainReadiness `koanf:"drain_readiness" json:"drainReadiness" reload:"live"`

	// DrainWait says whether the window may be skipped. Defaults to "auto".
	DrainWait DrainWait `koanf:"drain_wait" json:"drainWait" reload:"live"`

	// GoAwayAfter is when, after T0, HTTP/2 connections, websockets and streams
	// are told to go elsewhere. Earlier their clients would come back here,
	// because endpoints still do. At most half of the window. Defaults to 1 s.
	GoAwayAfter time.Duration `koanf:"go_away_after" json:"goAwayAfter" reload:"live"`

	// AcceptQuiet is how long nothing may have connected before the listeners
	// close, after the window. They close when half of Linger is over at the
	// latest: a client that still connects then may be refused or reset.
	// Defaults to 1 s, or to half of Linger when that is shorter.
	AcceptQuiet time.Duration `koanf:"accept_quiet" json:"acceptQuiet" reload:"live"`

	// Linger is how long after the window connections that are open go on
	// being served, so that a client that was idle all through the window does
	// not lose the request that it sends next. Ends early when none is left.
	// Half of it is all that AcceptQuiet may take, so that traffic that still
	// connects when that is over, because endpoints spread later than
	// DrainInterval allows for, may be refused or reset.
	// Defaults to 5 s, or a quarter of ShutdownGrace when that is shorter.
	Linger time.Duration `koanf:"linger" json:"linger" reload:"live"`

	// ShutdownGrace is what everything after the window may take together:
	// requests in flight, units, hooks. Keep it below the pod's
	// terminationGracePeriodSeconds. Defaults to 20 s.
	ShutdownGrace time.Duration `koanf:"shutdown_grace" json:"shutdownGrace" reload:"live"`

	// UnitSlice is the part of ShutdownGrace that is kept for units to return
	// in. Defaults to 5 s, or a quarter of ShutdownGrace when that is shorter.
	UnitSlice time.Duration `koanf:"unit_slice" json:"unitSlice" reload:"live"`

	// HookSlice is the part of ShutdownGrace that is kept for shutdown hooks.
	// Defaults to 5 s, or a quarter of ShutdownGrace when that is shorter.
	HookSlice time.Duration `koanf:"hook_slice" json:"hookSlice" reload:"live"`

	// MinSlice is what each hook is sure to get, however long the hooks before it
	// took. Defaults to 1 s, or an equal share of HookSlice when that is
	// shorter. With Off a hook may take all that is left, and the hooks behind
	// it are skipped and reported.
	MinSlice time.Duration `koanf:"min_slice" json:"minSlice" reload:"live"`

	// ProbeTimeout is the longest that a health plane takes to answer. Defaults
	// to 900 ms: the kubelet gives up after 1 s unless told otherwise.
	ProbeTimeout time.Duration `koanf:"probe_timeout" json:"probeTimeout"`

	// SignalDebounce is the time within which two signals are one request:
	// process managers and wrappers send some twice. Defaults to 250 ms.
	SignalDebounce time.Duration `koanf:"signal_debounce" json:"signalDebounce"`

	// LeaderRetry is how often a process that does not lead asks for the lease
	// of each of its leader-elected units ([App.Lead]), with a jitter of up to a
	// fifth more. Defaults to 2 s.
	LeaderRetry time.Duration `koanf:"leader_retry" json:"leaderRetry"`

	// ExitOnSignal makes Run return the signal that stopped it, so that
	// [ExitCode] gives 128+n. It is for work that runs to completion: a Job
	// whose pod exits 0 on SIGTERM counts as complete.
	ExitOnSignal bool `koanf:"exit_on_signal" json:"exitOnSignal" reload:"live"`

	// TerminationGrace is the pod's terminationGracePeriodSeconds, as the
	// manifest has it. Declared, it is checked against the times above; the
	// downward API does not carry it. Defaults to not declared.
	TerminationGrace time.Duration `koanf:"termination_grace" json:"terminationGrace" reload:"live"`

	// LivenessGrace and StartupGrace are the terminationGracePeriodSeconds of
	// the liveness and the startup probe, which replace the pod's when that
	// probe fails. Default to not declared.
	LivenessGrace time.Duration `koanf:"liveness_grace" json:"livenessGrace" reload:"live"`
	StartupGrace  time.Duration `koanf:"startup_grace" json:"startupGrace" reload:"live"`

	// PreStop is the time that the pod's preStop hook takes, which the grace
	// pays for as well. Defaults to none.
	PreStop time.Duration `koanf:"pre_stop" json:"preStop" reload:"live"`

	// TerminationLog is the file that Kubernetes reads a container's last words
	// from. It is written when it exists and never created. Defaults to
	// "/dev/termination-log"; "off" writes none.
	TerminationLog string `koanf:"termination_log" json:"terminationLog"`

	// StatuszOff leaves /statusz out of what the health address serves. The page
	// shows the units, servers and probes by name and the texts of their errors to
	// every client that reaches that address. Defaults to false: it is served.
	StatuszOff bool `koanf:"statusz_off" json:"statuszOff"`

	// AdminToken switches on what operators may ask for on the health address:
	// the preStop hook and Suspend and Resume of readiness, see [App.Handler].
	// A client that sends it as a bearer token may stop the process. 16 to 1024
	// visible ASCII characters. Defaults to none: the endpoints do not exist.
	AdminToken Secret `koanf:"admin_token" json:"-"`

	// AdminTokenFile is a file with the admin token, in place of AdminToken;
	// space around it does not count. It has to be there when the App is made,
	// and is read again for every request, because a mounted Secret changes.
	// Defaults to none.
	AdminTokenFile string `koanf:"admin_token_file" json:"adminTokenFile"`

	// MemoryLimitRatio is the part of the control group's memory limit that the
	// garbage collector may count on, as with GOMEMLIMIT, which wins when it is
	// set. More than 0 and at most 1; 0.9 leaves room for what the runtime does
	// not count. A limit that is in force already stays, and the one set here
	// stays when Run returns. Defaults to 0: none is set.
	MemoryLimitRatio float64 `koanf:"memory_limit_ratio" json:"memoryLimitRatio"`
}

// Margin is the time between the end of the shutdown and the watchdog. It counts
// into what a declared grace has to hold.
const Margin = 2 * time.Second

// longest bounds every duration, so that no sum of them overflows.
const longest = 365 * 24 * time.Hour

// WithDefaults returns a copy in which every field has its value: defaults in
// place of zeros. Off stays what it is.
func (c Config) WithDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.Name == "" {
		c.Name = filepath.Base(os.Args[0])
	}
	if c.HealthAddr == "" {
		c.HealthAddr = ":8081"
	}
	if c.DrainReadiness == "" {
		c.DrainReadiness = ReadinessDown
	}
	if c.DrainWait == "" {
		c.DrainWait = WaitAuto
	}
	if c.TerminationLog == "" {
		c.TerminationLog = "/dev/termination-log"
	}
	def(&c.DrainInterval, 5*time.Second)
	def(&c.DrainMin, max(0, min(time.Second, c.DrainInterval))) // a DrainInterval that makes no sense does not spoil this one
	def(&c.GoAwayAfter, time.Second)
	def(&c.ShutdownGrace, 20*time.Second)
	quarter := max(0, min(5*time.Second, c.ShutdownGrace/4))
	def(&c.Linger, quarter)
	def(&c.UnitSlice, quarter)
	def(&c.HookSlice, quarter)
	def(&c.AcceptQuiet, max(0, min(time.Second, c.Linger/2)))
	def(&c.ProbeTimeout, 900*time.Millisecond)
	def(&c.SignalDebounce, 250*time.Millisecond)
	def(&c.LeaderRetry, 2*time.Second)
	return c
}

// budget holds the times of a stop. New computes it from the Config, and
// Reconfigure computes it again. No duration is negative: Off is 0 here.
type budget struct {
	window, minWindow, quiet              time.Duration // of the drain window
	goAwayAfter, acceptQuiet, linger      time.Duration // of a server's goodbye
	grace, unitSlice, hookSlice, minSlice time.Duration // of everything after the window
	shareSlice                            bool          // MinSlice was not given: hooks share hookSlice
	patience                              time.Duration // for a server that does not return when its time is over
	total                                 time.Duration // from T0 to the watchdog
}

// newBudget returns the budget of a Config that has its defaults. Off is the only
// negative duration that Validate lets pass.
func newBudget(c Config) budget {
	b := budget{
		window: max(c.DrainInterval, 0), minWindow: max(c.DrainMin, 0), quiet: max(c.DrainQuiet, 0),
		goAwayAfter: max(c.GoAwayAfter, 0), acceptQuiet: max(c.AcceptQuiet, 0), linger: max(c.Linger, 0),
		grace: max(c.ShutdownGrace, 0), unitSlice: max(c.UnitSlice, 0), hookSlice: max(c.HookSlice, 0),
		minSlice: max(c.MinSlice, 0), shareSlice: c.MinSlice == 0,
	}
	// A server may use up half of the units' slice, and one second at most.
	b.patience = max(min(time.Second, b.unitSlice/2), settle)
	b.total = b.window + b.grace + Margin
	return b
}

// minSliceFor returns the time that each of so many hooks is sure to get. When
// the configured slice does not fit that many times, the error says so and the
// result is an equal share: the hooks still run.
func (b budget) minSliceFor(hooks int) (time.Duration, error) {
	if hooks == 0 {
		return b.minSlice, nil
	}
	share := b.hookSlice / time.Duration(hooks)
	switch {
	case b.shareSlice:
		return min(time.Second, share), nil
	case b.minSlice > share:
		return share, &ConfigError{Fields: []string{"MinSlice", "HookSlice"},
			Problem: fmt.Sprintf("MinSlice is %v, which %d shutdown hooks do not get out of HookSlice, which is %v", b.minSlice, hooks, b.hookSlice)}
	}
	return b.minSlice, nil
}

// ConfigError is one fault of a [Config]. [Config.Validate] and [New] join one for
// each.
type ConfigError struct {
	// Fields are the names of the fields that are at fault, one, or all that a
	// sum is made of.
	Fields []string
	// Problem says what is wrong and what would be right. It speaks of the
	// fields by these names.
	Problem string
	// Err is what the problem was found by, if anything.
	Err error
}

// Error is Problem behind "config: ".
func (e *ConfigError) Error() string { return "config: " + e.Problem }

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// Validate names every field that makes no sense and every sum that does not
// add up, with what would, each as a [*ConfigError], joined. It looks at the Config
// with its defaults.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var errs []error
	bad := func(fields []string, format string, args ...any) {
		err := fmt.Errorf(format, args...)
		errs = append(errs, &ConfigError{Fields: fields, Problem: err.Error(), Err: errors.Unwrap(err)})
	}
	one := func(field string) []string { return []string{field} }

	for _, f := range []struct {
		name     string
		d        time.Duration
		required bool
	}{
		{"DrainInterval", c.DrainInterval, false}, {"DrainQuiet", c.DrainQuiet, false}, {"DrainMin", c.DrainMin, false},
		{"GoAwayAfter", c.GoAwayAfter, false}, {"AcceptQuiet", c.AcceptQuiet, false}, {"Linger", c.Linger, false},
		{"ShutdownGrace", c.ShutdownGrace, true}, {"UnitSlice", c.UnitSlice, false}, {"HookSlice", c.HookSlice, false},
		{"MinSlice", c.MinSlice, false}, {"ProbeTimeout", c.ProbeTimeout, true}, {"SignalDebounce", c.SignalDebounce, false},
		{"LeaderRetry", c.LeaderRetry, true},
		{"TerminationGrace", c.TerminationGrace, false}, {"LivenessGrace", c.LivenessGrace, false},
		{"StartupGrace", c.StartupGrace, false}, {"PreStop", c.PreStop, false},
	} {
		switch {
		case f.d == Off && f.required:
			bad(one(f.name), "%s is off, and has to be more than 0", f.name)
		case f.d < 0 && f.d != Off:
			bad(one(f.name), "%s is %v, want 0 (its default), more, or Off", f.name, f.d)
		case f.d > longest:
			bad(one(f.name), "%s is %v, want at most %v", f.name, f.d, longest)
		}
	}
	switch c.DrainReadiness {
	case ReadinessDown, ReadinessServing:
	default:
		bad(one("DrainReadiness"), "DrainReadiness is %q, want %q or %q", c.DrainReadiness, ReadinessDown, ReadinessServing)
	}
	switch c.DrainWait {
	case WaitAuto, WaitAlways, WaitNever:
	default:
		bad(one("DrainWait"), "DrainWait is %q, want %q, %q or %q", c.DrainWait, WaitAuto, WaitAlways, WaitNever)
	}
	if r := c.MemoryLimitRatio; !(r >= 0 && r <= 1) { // NaN is neither
		bad(one("MemoryLimitRatio"), "MemoryLimitRatio is %v, want 0 (off) or more, up to 1; 0.9 is usual", r)
	}
	switch {
	case c.AdminToken != "" && c.AdminTokenFile != "":
		bad([]string{"AdminToken", "AdminTokenFile"}, "AdminToken and AdminTokenFile are both set, want one of them")
	case c.AdminToken != "":
		if err := statusz.CheckToken(string(c.AdminToken)); err != nil {
			bad(one("AdminToken"), "AdminToken: %w", err)
		}
	}
	if c.HealthAddr != HealthOff {
		if _, _, err := net.SplitHostPort(c.HealthAddr); err != nil {
			bad(one("HealthAddr"), "HealthAddr is %q, want host:port, :port or %q: %w", c.HealthAddr, HealthOff, err)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...) // sums of senseless numbers say nothing
	}

	b := newBudget(c)
	if b.minWindow > b.window {
		bad([]string{"DrainMin", "DrainInterval"}, "DrainMin (%v) is longer than the window, DrainInterval (%v)", b.minWindow, b.window)
	}
	if sum := b.linger + b.unitSlice + b.hookSlice; sum > c.ShutdownGrace {
		bad([]string{"Linger", "UnitSlice", "HookSlice", "ShutdownGrace"}, "Linger + UnitSlice + HookSlice is %v + %v + %v = %v, and has to fit into ShutdownGrace, which is %v",
			b.linger, b.unitSlice, b.hookSlice, sum, c.ShutdownGrace)
	}
	if b.acceptQuiet > b.linger/2 {
		bad([]string{"AcceptQuiet", "Linger"}, "AcceptQuiet (%v) is longer than half of Linger (%v), after which the listeners close in any case", b.acceptQuiet, b.linger/2)
	}
	if b.minSlice > b.hookSlice {
		bad([]string{"MinSlice", "HookSlice"}, "MinSlice (%v) is longer than HookSlice (%v), which all hooks share", b.minSlice, b.hookSlice)
	}
	preStop := max(c.PreStop, 0)
	for _, g := range []struct {
		field, where string
		grace        time.Duration
	}{
		{"TerminationGrace", "the pod's terminationGracePeriodSeconds", c.TerminationGrace},
		{"LivenessGrace", "the liveness probe's terminationGracePeriodSeconds", c.LivenessGrace},
		{"StartupGrace", "the startup probe's terminationGracePeriodSeconds", c.StartupGrace},
	} {
		if need := preStop + b.total; g.grace > 0 && need > g.grace {
			bad([]string{g.field, "PreStop", "DrainInterval", "ShutdownGrace"}, "PreStop + DrainInterval + ShutdownGrace + margin is %v + %v + %v + %v = %v, and %s (%s) gives %v: the kubelet would kill the process %v before it is done; raise that to %v or more, or lower these",
				preStop, b.window, c.ShutdownGrace, Margin, need, g.where, g.field, g.grace, need-g.grace, need)
		}
	}
	return errors.Join(errs...)
}

// Secret is a text that no log, dump or document shows: fmt with any verb, slog
// and encoding/json write "[secret]" for it, or nothing when it is empty. One
// exception: fmt asks no method of a value in an unexported field, so do not
// print a struct that keeps a Config in one.
type Secret = token.Secret
