package lifecycle

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/budget"
	"github.com/pleme-io/lifecycle-go/internal/configjson"
	"github.com/pleme-io/lifecycle-go/internal/drainwindow"
	"github.com/pleme-io/lifecycle-go/internal/sdsocket"
	"github.com/pleme-io/lifecycle-go/internal/sig"
	"github.com/pleme-io/lifecycle-go/internal/statusz"
)

// Values that turn a setting of [Config] off, where the zero value gives its default.
const (
	// HealthOff as [Config].HealthAddr runs the App without a health server.
	HealthOff = "off"

	// Off turns a duration off. It is a duration: for an address write [HealthOff].
	Off time.Duration = -1
)

// DrainReadiness says what /readyz answers while the App drains.
type DrainReadiness string

const (
	// ReadinessDown fails /readyz from the first moment of the drain on. After a
	// node shutdown, a kubelet eviction, a failed liveness probe or a failed unit,
	// nothing else tells the endpoints controller to take the pod out.
	ReadinessDown DrainReadiness = "down"

	// ReadinessServing leaves /readyz as it is until the listeners close. It is
	// for a single replica, and for a Service with externalTrafficPolicy Local.
	// When there are no other endpoints, kube-proxy falls back to those that
	// terminate and are still ready (KEP-1669, KEP-1672). With "down" it would
	// have none.
	ReadinessServing DrainReadiness = "serving"
)

// DrainWait says whether the drain waits until the cluster has noticed it.
type DrainWait string

const (
	// WaitAuto waits, except when the App was never ready, nothing listens, the user
	// pressed Ctrl-C at a terminal outside Kubernetes, or the end of a unit stopped an
	// App without a server that had run for less than the window. A server of the App
	// listens; in an App with a health server and neither servers nor jobs, a unit may.
	WaitAuto DrainWait = "auto"
	// WaitAlways waits in these cases too.
	WaitAlways DrainWait = "always"
	// WaitNever does not wait. Drainers still run.
	WaitNever DrainWait = "never"
)

// Config holds what an operator may tune. The zero value is a sound
// configuration: every field has a default. It is a plain value; [New] copies
// it. [App.Reconfigure] changes the fields with the tag reload:"live" in a running
// App. It marshals to the JSON of a configuration file, without the admin token.
//
// PreStop, DrainInterval and ShutdownGrace determine how long a stop may take:
//
//	T0                                      the stop is requested
//	T0 + DrainInterval                      the window is over
//	T0 + DrainInterval + ShutdownGrace      everything has ended
//	T0 + DrainInterval + ShutdownGrace + 2s the watchdog ends the process
//
// PreStop comes before T0. PreStop and the time until the watchdog have to fit
// together into each grace that the Config declares (TerminationGrace,
// LivenessGrace, StartupGrace); [New] refuses a Config for which they do not.
type Config struct {
	// Name of the service, in the log and the report. Defaults to the name of
	// the program.
	Name string `koanf:"name" mapstructure:"name"`

	// HealthAddr is the address of the health server, a server of its own for the
	// health planes. Defaults to ":8081"; with "off" ([HealthOff]) there is none, and
	// fd://NAME is a socket of systemd, as in [App.Serve].
	HealthAddr string `koanf:"health_addr" mapstructure:"health_addr"`

	// DrainInterval is the length of the drain window. In the window readiness is
	// down and the process still serves every request, so that the cluster can take
	// it out of every load balancer. Set it to the period of the readiness probe
	// times its failure threshold, plus the time in which endpoints spread. Drainers
	// run in the window. Defaults to 5 s; with Off there is no window. Zero in Go is the
	// default; in a file, the environment or a flag 0 is off.
	DrainInterval time.Duration `koanf:"drain_interval" mapstructure:"drain_interval" reload:"live"`

	// DrainQuiet ends the window early, once DrainMin has passed, no request is in
	// flight, none has arrived for this long, and every drainer has returned. The App
	// cannot see RPCs: a gRPC server counts as quiet only when it has no open
	// connection, and clients that keep theirs open make the window last to its end.
	// Defaults to 0: the window never ends early.
	DrainQuiet time.Duration `koanf:"drain_quiet" mapstructure:"drain_quiet" reload:"live"`

	// DrainMax is the longest time for which [App.EndWindow] may keep the window open,
	// while the cluster is slow to notice the stop. The budget of a stop counts it in
	// place of DrainInterval. Defaults to 0: DrainInterval.
	DrainMax time.Duration `koanf:"drain_max" mapstructure:"drain_max" reload:"live"`

	// DrainMin is the shortest time after which DrainQuiet or [App.EndWindow] may end the window.
	// Defaults to 1 s, or to DrainInterval when that is shorter.
	DrainMin time.Duration `koanf:"drain_min" mapstructure:"drain_min" reload:"live"`

	// DrainReadiness is what /readyz answers in the window. Defaults to "down".
	DrainReadiness DrainReadiness `koanf:"drain_readiness" mapstructure:"drain_readiness" reload:"live"`

	// DrainWait says whether the window may be skipped. Defaults to "auto".
	DrainWait DrainWait `koanf:"drain_wait" mapstructure:"drain_wait" reload:"live"`

	// GoAwayAfter is the time from the beginning of the stop (T0) until the App begins to
	// tell websockets, event streams and polls to reconnect elsewhere. If it told them
	// earlier, the load balancer could still send their clients back to this process.
	// It is limited to half of the window. HTTP/2 connections are told when the window is
	// over. Defaults to 1 s.
	GoAwayAfter time.Duration `koanf:"go_away_after" mapstructure:"go_away_after" reload:"live"`

	// AcceptQuiet is the time without a new connection after which the listeners
	// close, once the window is over. When a connection came late in the window, it is
	// half of the time since T0, if that is longer: the load balancer is slow to notice
	// the stop. With Off the listeners close when the window is over. Defaults to 1 s, or
	// to AcceptMax when that is shorter.
	AcceptQuiet time.Duration `koanf:"accept_quiet" mapstructure:"accept_quiet" reload:"live"`

	// AcceptMax is the longest time after the window for which the listeners stay open
	// because connections still come; they also close when the time of requests in flight
	// ends. A client that connects later is refused or reset. Defaults to one and a half
	// times Linger, as far as ShutdownGrace has room for it.
	AcceptMax time.Duration `koanf:"accept_max" mapstructure:"accept_max" reload:"live"`

	// Linger is the time after the window in which the App still serves open
	// connections, so that a client that was idle during the whole window does not
	// lose its next request. It ends early when no connection is open, and not before half
	// of it has passed since the listeners closed.
	// Defaults to 5 s, or a quarter of ShutdownGrace when that is shorter.
	Linger time.Duration `koanf:"linger" mapstructure:"linger" reload:"live"`

	// ShutdownGrace is the time for everything after the window together: requests
	// in flight, units and hooks. Keep it below the pod's
	// terminationGracePeriodSeconds. Defaults to 20 s.
	ShutdownGrace time.Duration `koanf:"shutdown_grace" mapstructure:"shutdown_grace" reload:"live"`

	// UnitSlice is the part of ShutdownGrace that is reserved for units to return. An App
	// whose units are all servers reserves a moment only.
	// Defaults to 5 s, or a quarter of ShutdownGrace when that is shorter.
	UnitSlice time.Duration `koanf:"unit_slice" mapstructure:"unit_slice" reload:"live"`

	// HookSlice is the part of ShutdownGrace that is reserved for shutdown hooks. An App
	// without hooks reserves none.
	// Defaults to 5 s, or a quarter of ShutdownGrace when that is shorter.
	HookSlice time.Duration `koanf:"hook_slice" mapstructure:"hook_slice" reload:"live"`

	// MinSlice is the time that each hook is sure to get, however long the earlier
	// hooks took. Defaults to 1 s, or an equal share of HookSlice when that is
	// shorter. With Off a hook may take all the time that is left; the App then
	// skips the hooks after it and reports them.
	MinSlice time.Duration `koanf:"min_slice" mapstructure:"min_slice" reload:"live"`

	// ReportSlice is reserved at the end of ShutdownGrace for the functions of
	// [App.OnReport] and for one last scrape: with [WithMetrics] the health server stays
	// until one GET of /metrics is answered. Set it to the scrape interval plus 2 s.
	// Defaults to 0: no scrape is awaited, and up to 1 s is reserved for OnReport.
	ReportSlice time.Duration `koanf:"report_slice" mapstructure:"report_slice" reload:"live"`

	// ProbeTimeout is the longest that a health plane takes to answer. Defaults
	// to 900 ms: the kubelet gives up after 1 s unless told otherwise.
	ProbeTimeout time.Duration `koanf:"probe_timeout" mapstructure:"probe_timeout"`

	// SignalDebounce is the time within which signals count as one request, because
	// process managers and wrappers send some signals twice. It runs from the last signal
	// that counted; ignored signals do not prolong it. Defaults to 250 ms.
	SignalDebounce time.Duration `koanf:"signal_debounce" mapstructure:"signal_debounce"`

	// StartTimeout is the longest time from Run to the phase running. An App that is
	// still starting then stops with an error that names the units that have not
	// started; the log names them from 15 s on. Defaults to 1 h, long enough for a
	// migration or a restore: a startup probe, or TimeoutStartSec in systemd, knows
	// better how long this start may take. With Off there is no limit.
	StartTimeout time.Duration `koanf:"start_timeout" mapstructure:"start_timeout"`

	// ReloadTimeout is the time that each function of a reload ([App.OnReload]) has.
	// Then its context ends, and the App abandons a function that ignores that. Defaults
	// to 90 s, which systemd gives a reload. With Off there is no limit.
	ReloadTimeout time.Duration `koanf:"reload_timeout" mapstructure:"reload_timeout" reload:"live"`

	// UpgradeSignal is the signal on which the process replaces itself by a new one
	// ([App.Upgrade]): SIGUSR1 or SIGUSR2. Defaults to none.
	UpgradeSignal string `koanf:"upgrade_signal" mapstructure:"upgrade_signal"`

	// UpgradeTimeout is the longest time from the start of the new process until it serves.
	// A new process that is not ready by then is killed, and the old one serves on.
	// Defaults to 1 m.
	UpgradeTimeout time.Duration `koanf:"upgrade_timeout" mapstructure:"upgrade_timeout"`

	// LeaderRetry is the time between two requests for the lease of a
	// leader-elected unit ([App.Lead]) while this process does not lead. A jitter
	// adds up to a fifth. Defaults to 2 s.
	LeaderRetry time.Duration `koanf:"leader_retry" mapstructure:"leader_retry"`

	// ExitOnSignal makes Run return the signal that stopped it as an error, so that
	// [ExitCode] gives 128+n. It is for work that runs to completion: Kubernetes
	// counts a Job whose pod exits 0 on SIGTERM as complete. A program with
	// [App.Job] does not need it.
	ExitOnSignal bool `koanf:"exit_on_signal" mapstructure:"exit_on_signal" reload:"live"`

	// TerminationGrace is the terminationGracePeriodSeconds in the pod's manifest.
	// When it is declared, New checks that the times above fit into it. It has to be
	// declared here, because the downward API does not offer it. It belongs to the pod
	// and never changes in a running process. Defaults to 0: not declared.
	TerminationGrace time.Duration `koanf:"termination_grace" mapstructure:"termination_grace"`

	// LivenessGrace and StartupGrace are the terminationGracePeriodSeconds of the
	// liveness probe and the startup probe. When such a probe fails, its grace
	// replaces the pod's. Default to 0: not declared.
	LivenessGrace time.Duration `koanf:"liveness_grace" mapstructure:"liveness_grace"`
	StartupGrace  time.Duration `koanf:"startup_grace" mapstructure:"startup_grace"`

	// PreStop is the time that the pod's preStop hook takes. Kubernetes counts it as
	// part of the grace. Defaults to 0: there is no hook.
	PreStop time.Duration `koanf:"pre_stop" mapstructure:"pre_stop"`

	// TerminationLog is the file from which Kubernetes reads a container's
	// termination message. The App writes it when it exists and never creates it.
	// Defaults to "/dev/termination-log"; with "off" the App writes none.
	TerminationLog string `koanf:"termination_log" mapstructure:"termination_log"`

	// LastStopFile keeps the report of this life for the next start ([Report.Previous]).
	// The App replaces it at each phase, so that it tells of a kill too. Its folder must
	// exist, outlive the process and belong to it alone: an emptyDir. Defaults to none.
	LastStopFile string `koanf:"last_stop_file" mapstructure:"last_stop_file"`

	// BlackBoxDir is a folder for black boxes: when a unit, hook, drainer, reload or request is
	// abandoned, or the watchdog ends the process, the App writes the last 10 s of its
	// execution trace (go tool trace), the stacks of its goroutines and its heap there. It
	// keeps the newest 8. The folder is made when it does not exist; it should outlive the
	// process: an emptyDir. Defaults to none: nothing is recorded.
	BlackBoxDir string `koanf:"black_box_dir" mapstructure:"black_box_dir"`

	// StatuszOff removes /statusz from the health address. The page shows the names
	// of units, servers and probes and the texts of their errors to every client
	// that reaches that address. Defaults to false: the health server serves it.
	StatuszOff bool `koanf:"statusz_off" mapstructure:"statusz_off"`

	// AdminToken turns on the operators' endpoints on the health address: the
	// preStop hook, Suspend and Resume of readiness, and Upgrade; see [App.Handler]. A client
	// that sends it as a bearer token may stop the process. It has 16 to 1024
	// visible ASCII characters. Defaults to none: the endpoints do not exist.
	AdminToken Secret `koanf:"admin_token" mapstructure:"admin_token"`

	// AdminTokenFile is a file that contains the admin token, in place of
	// AdminToken. White space around the token does not count. The file has to exist
	// when New runs. The App reads it again for every request, because a mounted
	// Secret changes. Defaults to none.
	AdminTokenFile string `koanf:"admin_token_file" mapstructure:"admin_token_file"`

	// MemoryLimitRatio sets the soft memory limit of the Go runtime to this part of
	// the control group's memory limit. It is more than 0 and at most 1; 0.9 leaves
	// room for memory that the runtime does not count. GOMEMLIMIT takes precedence,
	// and so does a limit that the program has already set. When a pod is resized in
	// place, the limit follows within 10 s. It stays when Run returns. Defaults to 0: the
	// App sets no limit.
	MemoryLimitRatio float64 `koanf:"memory_limit_ratio" mapstructure:"memory_limit_ratio"`
}

// Margin is the time between the end of ShutdownGrace and the watchdog. A declared
// grace has to include it.
const Margin = 2 * time.Second

// longest bounds every duration, so that no sum of them overflows.
const longest = 365 * 24 * time.Hour

// WithDefaults returns a copy with the default of each field that was zero. Off
// stays Off.
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
	def(&c.DrainMin, max(0, min(time.Second, c.DrainInterval))) // max: a negative DrainInterval is Off, or has its own error
	def(&c.GoAwayAfter, time.Second)
	def(&c.ShutdownGrace, 20*time.Second)
	quarter := max(0, min(5*time.Second, c.ShutdownGrace/4))
	def(&c.Linger, quarter)
	def(&c.UnitSlice, quarter)
	def(&c.HookSlice, quarter)
	// As long as half of Linger still fits behind it.
	def(&c.AcceptMax, max(0, min(c.Linger*3/2, newBudget(c).InFlight()-c.Linger/2)))
	def(&c.AcceptQuiet, max(0, min(time.Second, c.AcceptMax)))
	def(&c.ProbeTimeout, 900*time.Millisecond)
	def(&c.SignalDebounce, 250*time.Millisecond)
	def(&c.StartTimeout, time.Hour)
	def(&c.ReloadTimeout, 90*time.Second)
	def(&c.UpgradeTimeout, time.Minute)
	def(&c.LeaderRetry, 2*time.Second)
	return c
}

// MarshalJSON writes what a configuration file has: the keys with a value, durations
// with their unit. It leaves out AdminToken. A struct that embeds a Config gets this
// method too, and with it only the keys of the Config: give the field a name.
func (c Config) MarshalJSON() ([]byte, error) { return configjson.Marshal(reflect.ValueOf(c), Off) }

// UnmarshalJSON reads what MarshalJSON writes. It refuses an unknown key, a key that
// occurs twice, and a duration without its unit; 0 is [Off], as in a file.
func (c *Config) UnmarshalJSON(b []byte) error {
	return configjson.Unmarshal(b, reflect.ValueOf(c).Elem(), Off)
}

// newBudget returns the budget of a Config that has its defaults. It takes every
// negative duration for Off, the only one that Validate accepts.
func newBudget(c Config) budget.Budget {
	b := budget.Budget{
		Window:      drainwindow.Times{Full: max(c.DrainInterval, 0), Min: max(c.DrainMin, 0), Max: max(c.DrainInterval, c.DrainMax, 0), Quiet: max(c.DrainQuiet, 0)},
		GoAwayAfter: max(c.GoAwayAfter, 0),
		AcceptQuiet: max(c.AcceptQuiet, 0),
		AcceptMax:   max(c.AcceptMax, 0),
		Linger:      max(c.Linger, 0),
		Grace:       max(c.ShutdownGrace, 0),
		UnitSlice:   max(c.UnitSlice, 0),
		HookSlice:   max(c.HookSlice, 0),
		ReportSlice: max(c.ReportSlice, 0),
		MinSlice:    max(c.MinSlice, 0),
		ShareSlice:  c.MinSlice == 0,
		Margin:      Margin,
	}
	// How long the App waits for a server method that does not return after its time: half of the
	// units' slice, and one second at most.
	b.Patience = max(min(time.Second, b.UnitSlice/2), settle)
	b.Total = b.Window.Max + b.Grace + Margin
	return b
}

// minSlice returns the time that each of this many hooks is sure to get. When MinSlice is
// more than that it also returns an error.
func minSlice(b budget.Budget, hooks int) (time.Duration, error) {
	share, fits := b.HookShare(hooks)
	if fits {
		return share, nil
	}
	return share, &ConfigError{Fields: []string{"MinSlice", "HookSlice"},
		Problem: fmt.Sprintf("MinSlice is %v, which %d shutdown hooks do not get out of HookSlice, which is %v", b.MinSlice, hooks, b.HookSlice)}
}

// ConfigError is one fault of a [Config]. [Config.Validate] and [New] return one
// for each fault, joined.
type ConfigError struct {
	// Fields are the names of the fields at fault: one, or all the parts of a sum.
	Fields []string
	// Problem says what is wrong and what would be right, and names the fields.
	Problem string
	// Err is the error of the check that found the problem; nil when it had none.
	Err error
}

// Error returns "config: " and Problem.
func (e *ConfigError) Error() string { return "config: " + e.Problem }

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// ExitCode returns [ExitConfig].
func (e *ConfigError) ExitCode() int { return ExitConfig }

// Validate checks the Config with its defaults. It returns a [*ConfigError] for
// each field whose value makes no sense and for each sum that does not fit, joined,
// or nil. Each error says which values would be right.
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
		{"DrainInterval", c.DrainInterval, false}, {"DrainQuiet", c.DrainQuiet, false}, {"DrainMin", c.DrainMin, false}, {"DrainMax", c.DrainMax, false},
		{"GoAwayAfter", c.GoAwayAfter, false}, {"AcceptQuiet", c.AcceptQuiet, false}, {"AcceptMax", c.AcceptMax, false}, {"Linger", c.Linger, false},
		{"ShutdownGrace", c.ShutdownGrace, true}, {"UnitSlice", c.UnitSlice, false}, {"HookSlice", c.HookSlice, false},
		{"ReportSlice", c.ReportSlice, false}, {"MinSlice", c.MinSlice, false}, {"ProbeTimeout", c.ProbeTimeout, true}, {"SignalDebounce", c.SignalDebounce, false},
		{"StartTimeout", c.StartTimeout, false},
		{"ReloadTimeout", c.ReloadTimeout, false},
		{"LeaderRetry", c.LeaderRetry, true},
		{"UpgradeTimeout", c.UpgradeTimeout, true},
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
	if _, err := sig.User(c.UpgradeSignal); err != nil {
		bad(one("UpgradeSignal"), "UpgradeSignal: %w", err)
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
	if c.HealthAddr != HealthOff && !sdsocket.IsAddress(c.HealthAddr) {
		if _, _, err := net.SplitHostPort(c.HealthAddr); err != nil {
			bad(one("HealthAddr"), "HealthAddr is %q, want host:port, :port or %q: %w", c.HealthAddr, HealthOff, err)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...) // a sum of wrong values says nothing
	}

	for _, f := range newBudget(c).Faults(c.DrainMax, c.PreStop,
		budget.Limit{Field: "TerminationGrace", Where: "the pod's terminationGracePeriodSeconds", Grace: c.TerminationGrace},
		budget.Limit{Field: "LivenessGrace", Where: "the liveness probe's terminationGracePeriodSeconds", Grace: c.LivenessGrace},
		budget.Limit{Field: "StartupGrace", Where: "the startup probe's terminationGracePeriodSeconds", Grace: c.StartupGrace}) {
		bad(f.Fields, "%s", f.Problem)
	}
	return errors.Join(errs...)
}
