// Package runconfig has the settings of lifecycle-run, for itself and for those who check them
// in manifests.
package runconfig

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

// DefaultAddr is where the proxy listens by default.
const DefaultAddr = ":8080"

// Config configures the command, by a file, the environment (LIFECYCLE_RUN_…) and flags.
type Config struct {
	// Ready are the checks of readiness, see [Check].
	Ready []string `usage:"ready while all of these answer: http://…, https://…, tcp://HOST:PORT, exec:PROGRAM ARG…"`
	// Live are the checks of liveness. Without any, the process is alive while
	// this runtime is.
	Live []string `usage:"alive while all of these answer; the kubelet restarts the container when one does not"`
	// CheckTimeout bounds one check. It is less than the ProbeTimeout of Lifecycle, and defaults
	// to eight ninths of that.
	CheckTimeout time.Duration `usage:"how long one check may take"`

	// OnDrain are called when the drain begins, while the program still serves.
	OnDrain []string `usage:"call these when the drain begins: http://… (POST), exec:PROGRAM ARG…"`

	// Proxy is where the program itself listens, http://127.0.0.1:PORT: a proxy in front of
	// it serves on Addr and says goodbye to its clients. Empty for none.
	Proxy string `usage:"http://127.0.0.1:PORT, where the program listens: serve in front of it, on -addr, and say goodbye to its clients; h2c://… for gRPC"`
	// Addr is where the proxy listens. Defaults to :8080 with Proxy.
	Addr string `usage:"where the proxy listens; default :8080"`

	// Listen are sockets that the program inherits, as from systemd: HOST:PORT, unix:PATH, or
	// fd://NAME for one of systemd itself. A reload and a restart then start the next instance
	// before they end the one that serves.
	Listen []string `usage:"open these sockets for the program, which gets them as from systemd, and replace it at SIGHUP without a gap: HOST:PORT, unix:PATH, fd://NAME"`

	// Restart says when the program is started again. Defaults to never: when it ends,
	// the command ends with its exit status.
	Restart worker.Restart `usage:"always, on-failure or never: when to start the program again"`
	// Backoff is the wait before a restart, and the limit of restarts.
	Backoff worker.Backoff

	// StopSignal asks the program to end. Defaults to SIGTERM.
	StopSignal string `usage:"the signal that asks the program to end: TERM, INT, QUIT, HUP, USR1, USR2, WINCH"`
	// Signal says who gets the stop signal and the forwarded ones: main, the program alone,
	// as the kubelet does it, or group, with all processes of its group. Defaults to main.
	Signal string `usage:"main or group: whom the signals reach, the program alone or its whole process group"`
	// Forward lists signals to pass on to the program. Defaults to HUP, USR1,
	// USR2 and WINCH.
	Forward []string `usage:"pass these signals on to the program"`

	// LogFormat is the format of the command's own log on standard error: text or json. The
	// program's output is not changed. Defaults to text.
	LogFormat string `usage:"text or json: the format of this command's own log"`

	// Lifecycle configures the choreography. Its HookSlice defaults to off, so
	// that the program has all of ShutdownGrace.
	Lifecycle lifecycle.Config
}

// WithDefaults returns the configuration for a program that runs once.
func (Config) WithDefaults() Config {
	return Config{
		Restart:    worker.Never,
		StopSignal: "TERM",
		Signal:     "main",
		Forward:    []string{"HUP", "USR1", "USR2", "WINCH"},
		LogFormat:  "text",
		Lifecycle:  lifecycle.Config{HookSlice: lifecycle.Off},
	}
}

// Validate returns every invalid value, each with its key.
func (c Config) Validate() error {
	var errs []error
	for key, list := range map[string][]string{"ready": c.Ready, "live": c.Live} {
		for _, text := range list {
			if _, err := ParseCheck(text); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", key, err))
			}
		}
	}
	for _, text := range c.OnDrain {
		if target, err := ParseCheck(text); err != nil {
			errs = append(errs, fmt.Errorf("on_drain: %w", err))
		} else if target.kind == "tcp" {
			errs = append(errs, fmt.Errorf("on_drain: %q: a bare connection delivers no message: want http://…, https://… or exec:PROGRAM", text))
		}
	}
	if c.Proxy != "" {
		if to, err := ParseProxy(c.Proxy); err != nil {
			errs = append(errs, fmt.Errorf("proxy: %w", err))
		} else if host, port, err := net.SplitHostPort(cmp.Or(c.Addr, DefaultAddr)); err == nil && port == to.Port() && (host == "" || host == to.Hostname()) {
			errs = append(errs, fmt.Errorf("proxy: %q is where the proxy itself listens: let the program listen on another port, or set addr", c.Proxy))
		}
	} else if c.Addr != "" {
		errs = append(errs, fmt.Errorf("addr: %q is the proxy's, and no proxy is set", c.Addr))
	}
	for _, text := range c.Listen {
		if _, _, err := ParseListen(text); err != nil {
			errs = append(errs, fmt.Errorf("listen: %w", err))
		}
	}
	switch c.Restart {
	case worker.Never, worker.OnFailure, worker.Always:
	default:
		errs = append(errs, fmt.Errorf("restart: %q is not always, on-failure or never", c.Restart))
	}
	if c.CheckTimeout < 0 {
		errs = append(errs, fmt.Errorf("check_timeout: %v is negative", c.CheckTimeout))
	}
	if probe := c.Lifecycle.WithDefaults().ProbeTimeout; probe > 0 && c.CheckTimeout >= probe {
		errs = append(errs, fmt.Errorf("check_timeout: %v is not less than lifecycle.probe_timeout, %v, after which a probe has its answer: "+
			"raise that too, and timeoutSeconds of the pod's probes", c.CheckTimeout, probe))
	}
	if _, err := ParseSignal(c.StopSignal); err != nil {
		errs = append(errs, fmt.Errorf("stop_signal: %w", err))
	}
	if c.Signal != "main" && c.Signal != "group" {
		errs = append(errs, fmt.Errorf("signal: %q is not main or group", c.Signal))
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		errs = append(errs, fmt.Errorf("log_format: %q is not text or json", c.LogFormat))
	}
	for _, name := range c.Forward {
		sig, err := ParseSignal(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("forward: %w", err))
		} else if sig == syscall.SIGTERM || sig == syscall.SIGINT {
			errs = append(errs, fmt.Errorf("forward: SIG%s begins the drain, and the drain stops the program: it cannot be passed on",
				strings.ToUpper(strings.TrimPrefix(name, "SIG"))))
		}
	}
	return errors.Join(errs...)
}

// ParseProxy returns the address of the program.
func ParseProxy(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil && strings.Contains(text, "://") {
		return nil, fmt.Errorf("%q: %w", text, errors.Unwrap(err))
	}
	if err != nil { // 127.0.0.1:8000, of which url.Parse says that it has a colon in its path
		u = new(url.URL)
	}
	isPlain := u.Path == "" && u.RawQuery == "" && u.User == nil && u.Fragment == ""
	if u.Scheme != "http" && u.Scheme != "h2c" || u.Hostname() == "" || u.Port() == "" || !isPlain {
		return nil, fmt.Errorf("%q is not http://127.0.0.1:PORT, or h2c://127.0.0.1:PORT for a program that speaks HTTP/2 alone, such as gRPC", text)
	}
	return u, nil
}

// ParseListen returns the network and the address of a socket for the program.
func ParseListen(text string) (network, addr string, err error) {
	if path, ok := strings.CutPrefix(text, "unix:"); ok && path != "" {
		return "unix", path, nil
	}
	if name, ok := strings.CutPrefix(text, "fd://"); ok && name != "" {
		return "tcp", text, nil
	}
	if _, port, err := net.SplitHostPort(text); err != nil || port == "" {
		return "", "", fmt.Errorf("%q is not HOST:PORT, unix:PATH or fd://NAME", text)
	}
	return "tcp", text, nil
}

// ParseSignal returns the signal of a name, with or without SIG.
func ParseSignal(name string) (syscall.Signal, error) {
	if sig, ok := signals[strings.TrimPrefix(strings.ToUpper(name), "SIG")]; ok {
		return sig, nil
	}
	return 0, fmt.Errorf("%q is not a signal: want %s", name, strings.Join(slices.Sorted(maps.Keys(signals)), ", "))
}
