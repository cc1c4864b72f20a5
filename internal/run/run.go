// Package run gives any program the lifecycle that this project gives to Go
// programs: health planes, a drain before it is stopped, restarts, and PID 1's
// work in a container. It implements the command lifecycle-run, and "lifecyclectl run".
//
// Begin at [Run], which makes an App whose unit is the program. Package runconfig has what it
// reads, and asks the program for its health.
package run

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/config"
	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/internal/run/runconfig"
	"github.com/pleme-io/lifecycle-go/metrics"
	"github.com/pleme-io/lifecycle-go/worker"
	"github.com/prometheus/client_golang/prometheus"
)

// Exit statuses besides the program's own, as env(1) and shells use them.
const (
	exitUsage         = 2
	exitNotExecutable = 126
	exitNotFound      = 127
)

// deathTakes is how long the end of a program is awaited that the stop has killed and given up: on a
// busy machine the kernel needs a while.
const deathTakes = time.Second

// Usage returns the usage text of the command, whose name is how the user calls it.
func Usage(name string) string {
	return "usage: " + name + " [FLAGS] -- PROGRAM [ARG...]\n\n" + About(name) + `
  ` + name + ` --ready http://127.0.0.1:8080/ -- python3 -m http.server 8080
`
}

// About says what the command does and which flags most programs need. It fits on a screen.
func About(name string) string { return about + prefixOf(name) + "_…\n" }

const about = `Runs PROGRAM with /livez, /readyz, /startupz and /metrics on the health address.
At SIGTERM readiness goes down first, and the program goes on serving for the drain interval.
Then it is asked to stop, and killed after its grace. As PID 1 it reaps orphans.
It exits with the status of the program's last run: its own, or 128+n when signal n
ended it. It is 127 when there is no such program, 126 when it cannot be executed,
78 when the settings cannot be used, 2 without a program, 70 when something was
abandoned and the program has ended.

  --ready CHECKS        ready while all of these answer, with commas between them:
                        http://…, https://…, tcp://HOST:PORT, exec:PROGRAM ARG…
  --live CHECKS         alive while all of these answer; default: while PROGRAM runs
  --check-timeout TIME  how long one check may take
  --on-drain CALLS      call these when the drain begins: http://… (POST), exec:…
  --proxy URL           http://127.0.0.1:PORT, where PROGRAM listens: serve in front of it and
                        say goodbye to its clients, so that PROGRAM needs no drain of its own
  --addr ADDRESS        where the proxy listens; default :8080
  --listen ADDRESSES    open these sockets for PROGRAM, which gets them as from systemd
                        (LISTEN_FDS), and replace it at SIGHUP without a gap: HOST:PORT, unix:PATH
  --restart WHEN        always, on-failure or never; default never
  --stop-signal SIGNAL  asks the program to end; default TERM
  --signal WHOM         main or group: the program alone gets the signals, as from the
                        kubelet, or all of its process group; default main
  --forward SIGNALS     pass these on; default HUP,USR1,USR2,WINCH
  --log-format FORMAT   of this command's own log: text or json; default text
  --config FILE         read these settings from a file
  --lifecycle.health-addr ADDRESS     of the health planes; default :8081
  --lifecycle.drain-interval TIME     serve on for this long; default 5s
  --lifecycle.shutdown-grace TIME     then end within this; default 20s
  --lifecycle.termination-grace TIME  what the pod's manifest says
  --help-all            show every flag, with its variable `

// prefixOf returns what the command's variables begin with: its name in capitals.
func prefixOf(name string) string {
	return strings.ToUpper(strings.NewReplacer(" ", "_", "-", "_").Replace(name))
}

// Run runs the program that args name until it ends, or ctx does, and returns
// the exit status. name is how the user calls the command. The program inherits stdin
// (unless that is a terminal, which only a foreground process can read), stdout and stderr.
// Errors before the program starts, and the log, go to stderr.
func Run(ctx context.Context, name string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags, command := runconfig.Split(args)
	if wantsHelp(flags) {
		fmt.Fprint(stdout, Usage(name))
		return 0
	}
	settings := []config.Option{config.WithArgs(flags), config.WithEnvPrefix(prefixOf(name))}
	log := logger(stderr, settings)
	live, err := config.Open[runconfig.Config]("", append(settings, config.WithOutput(stdout), config.WithLogger(log))...)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		if len(command) > 0 && !slices.Contains(args, "--") {
			fmt.Fprintf(stderr, "there is no -- before the program, so it begins at %q\n", command[0])
		}
		fmt.Fprintf(stderr, "%s --help lists the flags\n%[1]s: %v\n", name, err) // the kubelet shows the last lines
		return lifecycle.ExitConfig
	case len(command) == 0:
		fmt.Fprintf(stderr, "%s: no program is given: want it after two dashes\n\n%s", name, Usage(name))
		return exitUsage
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		if errors.Is(err, fs.ErrPermission) {
			return exitNotExecutable
		}
		return exitNotFound
	}
	cfg := live.Get()
	if cfg.Lifecycle.Name == "" {
		cfg.Lifecycle.Name = filepath.Base(path)
	}
	p := &program{name: name, live: live, cfg: cfg, path: path, argv: command, stdin: stdin, stdout: stdout, stderr: stderr, made: make(chan struct{}, 1)}
	return p.run(ctx, log)
}

// logger returns the log in the format of the settings. Open, which checks these, writes to it.
func logger(to io.Writer, settings []config.Option) *slog.Logger {
	discard := []config.Option{config.WithOutput(io.Discard), config.WithLogger(slog.New(slog.DiscardHandler))}
	cfg, err := config.Load[runconfig.Config]("", slices.Concat(settings, discard)...)
	if err == nil && cfg.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(to, nil))
	}
	return slog.New(slog.NewTextHandler(to, nil))
}

// wantsHelp reports whether the flags ask for the usage. It turns --help-all into the flag
// with which package config lists every flag.
func wantsHelp(flags []string) bool {
	for i, arg := range flags {
		switch strings.TrimLeft(arg, "-") {
		case "h", "help":
			return true
		case "help-all":
			flags[i] = "-h"
		}
	}
	return false
}

// program runs the program, one instance after the other.
type program struct {
	name           string // of the command
	live           *config.Live[runconfig.Config]
	cfg            runconfig.Config // at the start
	path           string
	argv           []string
	stdin          io.Reader
	stdout, stderr io.Writer

	listeners []net.Listener
	made      chan struct{} // has a token when there is another instance
	status    int           // exit status of the last instance

	mu        sync.Mutex  // guards the field below
	instances []*instance // that run, and the last one that has run, the oldest first
}

func (p *program) run(ctx context.Context, log *slog.Logger) int {
	registry := prometheus.NewRegistry()
	app, err := lifecycle.New(p.cfg.Lifecycle, lifecycle.WithLogger(log), metrics.With(registry))
	if err != nil {
		fmt.Fprintf(p.stderr, "%s: %v\n", p.name, err)
		return lifecycle.ExitCode(err)
	}
	p.live.Attach(app)
	p.live.OnChange(func(old, next runconfig.Config) {
		old.Lifecycle = next.Lifecycle
		if !reflect.DeepEqual(old, next) {
			log.Warn("settings beside lifecycle have changed: they take effect when the container is started again")
		}
	})
	defer p.closeListeners()
	for _, text := range p.cfg.Listen {
		network, addr, _ := runconfig.ParseListen(text) // validated by Load
		ln, err := app.Listen(network, addr)
		if err != nil {
			fmt.Fprintf(p.stderr, "%s: listen: %v\n", p.name, err)
			return lifecycle.ExitCode(err)
		}
		log.Info("listening for the program", "network", network, "address", ln.Addr().String())
		p.listeners = append(p.listeners, ln)
	}
	if len(p.listeners) > 0 {
		p.warnOfChecks(log)
	}
	// No name of a unit is the user's, so that none is given twice.
	tree := worker.NewSupervisor("instances", worker.SupervisorConfig{
		Backoff: p.cfg.Backoff,
		Children: []worker.Spec{{
			Name:         "program",
			New:          p.next,
			Restart:      p.cfg.Restart,
			StartTimeout: p.cfg.Lifecycle.WithDefaults().UpgradeTimeout, // until it is ready, with sockets
			StopTimeout:  p.cfg.Lifecycle.WithDefaults().ShutdownGrace,
		}},
	})
	app.Add(tree).
		Probe("program", lifecycle.ProbeFunc(func(context.Context) error { return running(tree.State()) })).
		Go("program", func(ctx context.Context) error { return p.watch(ctx, app, log) }).
		Go("signals", func(ctx context.Context) error { return p.forwardAll(ctx, log) })
	if len(p.listeners) > 0 {
		app.OnReload("replace the program", func(ctx context.Context) error { return tree.RestartChild(ctx, "program") })
		// The program has the sockets too, and nothing starts it again while the App drains.
		app.OnDrain("sockets", lifecycle.DrainFunc(func(context.Context) error { p.closeAtDrain(); return nil }))
	} else if slices.ContainsFunc(p.cfg.Forward, func(name string) bool { sig, _ := runconfig.ParseSignal(name); return sig == syscall.SIGHUP }) {
		app.OnReload("forward SIGHUP", func(context.Context) error { return p.forward(syscall.SIGHUP) })
	}
	if os.Getpid() == 1 {
		app.Add(worker.NewReaper("reaper"))
	}
	if p.cfg.Proxy != "" {
		to, _ := runconfig.ParseProxy(p.cfg.Proxy) // validated by Load
		app.Serve("proxy", newProxy(cmp.Or(p.cfg.Addr, runconfig.DefaultAddr), to, log, newCounted(registry)))
		if len(p.cfg.Ready) == 0 {
			p.cfg.Ready = []string{"tcp://" + to.Host}
		}
	}
	p.checks(app)
	err = app.Run(ctx)
	if p.status != 0 {
		return p.status
	}
	if err != nil {
		fmt.Fprintf(p.stderr, "%s: %v\n", p.name, err)
	}
	// A program that was asked to stop is Stopped for its supervisor, with any exit
	// status. A parent that waits, such as the kubelet, needs the status itself.
	if status := p.lastStatus(); status != 0 {
		return status
	}
	return lifecycle.ExitCode(err)
}

// lastStatus returns the exit status of the last instance that began, or 0 when it
// has not ended.
func (p *program) lastStatus() int {
	last := p.serving()
	if last == nil || !last.hasEnded() {
		return 0
	}
	select {
	case <-last.proc.Gone():
	case <-time.After(deathTakes): // abandoned
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, i := range p.instances { // one that was not ready yet may have ended last
		if exit, before := i.proc.State().Exit, last.proc.State().Exit; exit != nil && before != nil && exit.At.After(before.At) {
			last = i
		}
	}
	if last.cmd.ProcessState == nil {
		return 0
	}
	return shellStatus(last.cmd.ProcessState)
}

// instance is one run of the program.
type instance struct {
	proc *worker.Process
	cmd  *exec.Cmd
}

func (i *instance) hasEnded() bool { return i.proc.Status().Terminal() }

// serving returns the instance that serves: the newest that has been ready and runs. Without one it
// is the newest that runs, or else the last that has run.
func (p *program) serving() *instance {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.servingLocked()
}

func (p *program) servingLocked() (found *instance) {
	rank := -1
	for _, i := range p.instances {
		own := 0
		if !i.proc.StartedAt().IsZero() {
			own++
		}
		if !i.hasEnded() {
			own += 2
		}
		if own >= rank {
			found, rank = i, own
		}
	}
	return found
}

// closeListeners closes this process's copies of the sockets. A second call does nothing.
func (p *program) closeListeners() {
	for _, ln := range p.listeners {
		_ = ln.Close() // nothing is accepted here
	}
}

// closeAtDrain closes the sockets that the program's clients reach without this process. A unix
// socket is reached by its file, which goes with the listener: it stays until the program has ended.
func (p *program) closeAtDrain() {
	for _, ln := range p.listeners {
		if ln.Addr().Network() != "unix" {
			_ = ln.Close() // as above
		}
	}
}

// warnOfChecks names the checks of readiness that an instance which is replaced may answer in
// place of the new one.
func (p *program) warnOfChecks(log *slog.Logger) {
	if len(p.cfg.Ready) == 0 {
		log.Warn("listen without ready: a new instance replaces the one before as soon as it has started")
	}
	for _, text := range p.cfg.Ready {
		check, _ := runconfig.ParseCheck(text) // validated by Load
		asksNew := slices.ContainsFunc(p.listeners, func(ln net.Listener) bool {
			addr, ok := ln.Addr().(*net.TCPAddr)
			return ok && check.Port() == addr.Port
		})
		if !asksNew {
			log.Warn("this check asks no socket of listen: at a reload the instance that is replaced may answer it", "check", text)
		}
	}
}

// isReady asks the instance itself, also while another one accepts on the same sockets.
func (p *program) isReady(ctx context.Context, proc *worker.Process) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(p.cfg.CheckTimeout, p.cfg.Lifecycle.WithDefaults().ProbeTimeout))
	defer cancel()
	for _, text := range p.cfg.Ready {
		check, _ := runconfig.ParseCheck(text) // validated by Load
		if err := check.AskBy(ctx, proc.DialContext); err != nil {
			return err
		}
	}
	return nil
}

// next makes the next instance.
func (p *program) next(name string) (worker.Worker, error) {
	cmd := exec.Command(p.path, p.argv[1:]...) //nolint:gosec // the operator configured the program
	cmd.Args[0] = p.argv[0]
	cmd.Stdout, cmd.Stderr = p.stdout, p.stderr
	if f, ok := p.stdin.(*os.File); !ok || !isTerminal(f) {
		cmd.Stdin = p.stdin
	}
	stop, err := runconfig.ParseSignal(p.cfg.StopSignal)
	if err != nil {
		return nil, err
	}
	opts := []worker.ProcessOption{
		worker.WithGrace(p.cfg.Lifecycle.WithDefaults().ShutdownGrace), // all of the time; the supervisor's Stop shortens it
		worker.WithStopSignal(stop),
	}
	if p.cfg.Signal == "group" {
		opts = append(opts, worker.WithGroupSignals())
	}
	if len(p.listeners) > 0 {
		opts = append(opts, worker.WithListeners(p.listeners...), worker.WithReady(p.isReady))
	}
	i := &instance{worker.NewProcess(name, cmd, opts...), cmd}
	p.mu.Lock()
	last := p.servingLocked()
	p.instances = slices.DeleteFunc(p.instances, func(i *instance) bool { return i != last && i.hasEnded() })
	p.instances = append(p.instances, i)
	p.mu.Unlock()
	select {
	case p.made <- struct{}{}:
	default: // it has one
	}
	return i.proc, nil
}

// watch ends the App when the program has ended and will not be started again. Its error says how.
func (p *program) watch(ctx context.Context, app *lifecycle.App, log *slog.Logger) error {
	var seen *instance // the last one that has ended
	for {
		last := p.serving()
		if last == seen {
			select {
			case <-p.made:
			case <-ctx.Done():
				return nil
			}
			continue
		}
		proc := last.proc
		select {
		case <-proc.Done():
		case <-ctx.Done():
			return nil
		}
		seen = last
		if p.serving() != last {
			continue // another one has replaced it, or is about to
		}
		s := proc.State()
		if s.Status == worker.StatusStopped && !p.wasLate(ctx, proc) {
			continue // the App stops it
		}
		log.Info("the program has ended", "status", string(s.Status), "error", s.Error)
		finished := s.Status == worker.StatusFinished
		if p.cfg.Restart == worker.Always || !finished && p.cfg.Restart == worker.OnFailure {
			continue
		}
		// No program serves any more: a drain window would only delay the next container.
		cfg := app.Config()
		cfg.DrainWait = lifecycle.WaitNever
		if _, _, err := app.Reconfigure(cfg); err != nil && !errors.Is(err, lifecycle.ErrReloadRefused) {
			log.Warn("cannot skip the drain window", "error", err)
		}
		switch {
		case finished:
			app.Stop(nil)
			return nil
		case s.Status == worker.StatusStopped:
			return fmt.Errorf("the program was not ready within %v (upgrade_timeout)", p.cfg.Lifecycle.WithDefaults().UpgradeTimeout)
		}
		p.status = statusOf(proc)
		ran := ""
		if end := s.Exit; end != nil && !proc.StartedAt().IsZero() {
			ran = fmt.Sprintf(" after %v", end.At.Sub(proc.StartedAt()).Round(time.Millisecond))
		}
		return fmt.Errorf("%s ended%s: %w; its own output says why", p.path, ran, proc.Err())
	}
}

// wasLate reports whether an instance was stopped because it was not ready in time, and not because
// the App is stopping.
func (p *program) wasLate(ctx context.Context, proc *worker.Process) bool {
	return len(p.listeners) > 0 && proc.StartedAt().IsZero() && ctx.Err() == nil
}

// statusOf returns the exit status that a shell would show.
func statusOf(proc *worker.Process) int {
	var exit *exec.ExitError
	if err := proc.Err(); !errors.As(err, &exit) {
		if errors.Is(err, syscall.ENOEXEC) || errors.Is(err, fs.ErrPermission) {
			return exitNotExecutable
		}
		return 1
	}
	return shellStatus(exit.ProcessState)
}

// shellStatus returns the exit status that a shell would show for a process that has
// ended.
func shellStatus(end *os.ProcessState) int {
	if ws, ok := end.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return end.ExitCode()
}

// running returns an error unless the program runs.
func running(s worker.State) error {
	for _, c := range s.Children {
		if c.Status != worker.StatusRunning {
			if c.Error != "" {
				return fmt.Errorf("%s: %s", c.Status, c.Error)
			}
			return fmt.Errorf("%s", c.Status)
		}
	}
	return nil
}

// checks registers the configured checks.
func (p *program) checks(app *lifecycle.App) {
	var opts []health.Option
	if p.cfg.CheckTimeout > 0 {
		opts = append(opts, health.WithTimeout(p.cfg.CheckTimeout))
	}
	for _, text := range p.cfg.Ready {
		check, _ := runconfig.ParseCheck(text) // validated by Load
		app.Probe(check.Name(), lifecycle.ProbeFunc(check.Ask), opts...)
	}
	for _, text := range p.cfg.Live {
		check, _ := runconfig.ParseCheck(text)
		// Run returns the errors. Until they have passed once the kubelet does not ask /livez.
		_ = app.Registry().RegisterLiveness(check.Name(), lifecycle.ProbeFunc(check.Ask), opts...)
		_ = app.Registry().RegisterStartup(check.Name(), lifecycle.ProbeFunc(check.Ask), opts...)
	}
	if p.cfg.Proxy != "" {
		to, _ := runconfig.ParseProxy(p.cfg.Proxy)
		check, _ := runconfig.ParseCheck("tcp://" + to.Host)
		_ = app.Registry().RegisterStartup("program", lifecycle.ProbeFunc(check.Ask), opts...)
	}
	for _, text := range p.cfg.OnDrain {
		check, _ := runconfig.ParseCheck(text)
		app.OnDrain(text, lifecycle.DrainFunc(check.Tell))
	}
}

// forward passes one signal on to the program.
func (p *program) forward(sig syscall.Signal) error {
	if last := p.serving(); last != nil {
		return last.proc.Signal(sig)
	}
	return os.ErrProcessDone
}

// isTerminal reports whether f is a character device, like a terminal. That
// includes /dev/null, which does no harm.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// forwardAll passes on the configured signals, except SIGHUP, which comes
// as a reload.
func (p *program) forwardAll(ctx context.Context, log *slog.Logger) error {
	ch := make(chan os.Signal, 16)
	for _, name := range p.cfg.Forward {
		if sig, _ := runconfig.ParseSignal(name); sig > 0 && sig != syscall.SIGHUP {
			signal.Notify(ch, sig)
		}
	}
	defer signal.Stop(ch)
	for {
		select {
		case sig := <-ch:
			if err := p.forward(sig.(syscall.Signal)); err != nil { //nolint:errcheck // every os.Signal is a syscall.Signal
				log.Warn("signal not passed on", "signal", sig.String(), "error", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}
