package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/handover"
	"github.com/pleme-io/lifecycle-go/internal/sdsocket"
)

var (
	// ErrUpgraded is the cause of the stop of an App that another process has replaced
	// ([App.Upgrade]). Units see it as the context.Cause of their context. The stop is
	// clean: Run returns nil.
	ErrUpgraded = errors.New("lifecycle: another process has taken over")

	// ErrUpgradeRefused is returned by [App.Upgrade] when it starts no process. The error
	// that wraps it says why, and what would be right.
	ErrUpgradeRefused = errors.New("lifecycle: upgrade refused")
)

// Upgrade replaces this process by a new one without a moment in which none serves. It
// starts the program again, with the same arguments, environment, folder, standard input and
// outputs, and gives it all listening sockets of the App: those of its servers, of the health
// address, of [App.Listen] and [App.ListenPacket], and those of systemd. Until the new process
// is ready this one serves as before. Then the new one serves, and this one drains and stops.
//
// The program is the file that os.Args[0] names, when that is an absolute path, and
// otherwise the file of os.Executable: put the new release in its place first.
//
//   - The new process binds its servers, starts its units and runs its readiness probes. It
//     accepts no connection. It says that it is ready when /readyz would pass.
//   - This process gives away what only one process can have ([App.Exclusive]), last in, first
//     out. The new one takes it.
//   - The new process enters the phase running and accepts connections. This one closes its
//     listeners and its health server and stops, with the cause [ErrUpgraded]. The drain
//     window ends as soon as no request is in flight and no websocket is open. Nothing else
//     differs from any other stop: open connections have Linger, websockets the window, and a
//     job that has not ended is stopped. The new process runs its own units and jobs.
//
// A server gets the socket that the old process had opened for the same network and address,
// by their texts; of several, such as with port 0, the first. So an address that has changed is
// opened anew, and the socket for the old one is closed. A socket that is not one of the App's
// cannot be handed over: open it with [App.Listen].
//
// When the new process ends, says something unexpected, or needs longer than
// Config.UpgradeTimeout, Upgrade kills it (SIGKILL), takes back what it has given, and returns
// the error, which it also logs. No request notices. The same holds when ctx ends, or the App
// is asked to stop. When something cannot be taken back, the App stops with that error.
//
// Upgrade returns nil when the new process gets all new connections. While the App is starting
// it waits. It returns an error that wraps [ErrUpgradeRefused], and starts nothing, when the App
// is not running or is suspended; while another Upgrade runs; when a server has a listener that
// cannot be handed over; on another system than Linux; and in process 1 of a container, which
// ends with it: there the orchestrator starts a second container before it stops this one.
//
// When this process is killed meanwhile, the new one goes on and serves. The program that
// supervises this process has to know that another one goes on. systemd hears of it
// (MAINPID=). Any other needs a file with the process id, which an [App.Exclusive] writes.
func (a *App) Upgrade(ctx context.Context) error {
	_, err := a.upgradeNow(ctx)
	return err
}

// upgradeNow is Upgrade. It returns the id of the new process.
func (a *App) upgradeNow(ctx context.Context) (pid int, err error) {
	select {
	case a.upgrade.turn <- struct{}{}:
	default:
		return 0, fmt.Errorf("%w: another upgrade runs", ErrUpgradeRefused)
	}
	defer func() { <-a.upgrade.turn }()
	if a.Phase() == PhaseStarting {
		select {
		case <-a.Reached(PhaseRunning):
		case <-a.Draining():
		case <-ctx.Done():
			return 0, fmt.Errorf("upgrade: wait for the app to run: %w", context.Cause(ctx))
		}
	}
	a.notifier.Load().Reloading()
	defer func() {
		if err != nil {
			a.notifier.Load().Ready(fmt.Sprintf("%s: %v", a.Phase(), err))
		}
	}()
	if err := a.mayUpgrade(); err != nil {
		a.log.Warn("upgrade refused", "error", err)
		return 0, err
	}
	pid, err = a.replace(ctx)
	if err != nil {
		text := "upgrade failed, this process serves on"
		if a.isStopping() {
			text = "upgrade failed"
		}
		a.log.Error(text, "error", err)
		return 0, fmt.Errorf("upgrade: %w", err)
	}
	a.log.Info("upgraded", "process", pid)
	return pid, nil
}

// Exclusive adds something that only one process can have at a time: a lock, a file with the
// process id, a port that no socket of the App has. take gets it, and give lets it go.
//
//   - Run calls take before it starts the first unit. In a process that takes over from
//     another one ([App.Upgrade]) it calls take when everything else is ready and the other
//     process has given it, and before the phase running. A unit that needs it there waits for
//     [App.Reached](PhaseRunning).
//   - Upgrade calls give in the process that is replaced, and take again when the upgrade fails.
//   - The App calls give as a shutdown hook, in the order of [App.OnShutdown], when it has it.
//
// So for each take that returned nil before that hook there is one give. An error of take fails the
// start or the upgrade. A give that fails has given nothing; one that does not return within 100 ms
// after the end of ctx stops the App. ctx ends with the time of the start, the upgrade or the hook.
func (a *App) Exclusive(name string, take, give func(context.Context) error) *App {
	isNil := missing("Exclusive", argument{"function take", take == nil}, argument{"function give", give == nil})
	a.parts.add("shutdown hook", name, isNil, func() {
		e := &exclusive{name: name, take: take, give: give}
		a.upgrade.exclusives = append(a.upgrade.exclusives, e)
		a.hooks.Add(name, e.giveIfHeld)
	})
	return a
}

// Listen opens a listener that [App.Upgrade] hands over, as net.Listen does. In a process that
// takes over it returns the socket of the process before, and Accept waits until this process
// is to serve. A service manager that keeps sockets (systemd's FileDescriptorStoreMax=, which sets
// FDSTORE) gets it, and gives it to the next process, also after a crash. Use it for [App.GRPC],
// [WithListener] and units that listen by themselves. For fd://NAME it returns a socket of systemd,
// as [App.Serve] does. The caller, or the server that it is given to, closes it.
func (a *App) Listen(network, address string) (net.Listener, error) {
	ln, err := a.parts.sockets.Listen(context.Background(), new(net.ListenConfig), network, address)
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return ln, nil
}

// ListenPacket is [App.Listen] for packets, as net.ListenPacket. In a process that takes over,
// ReadFrom waits until this process is to serve. From then on, until the old process closes its
// socket, each packet reaches one of the two: state of a peer that a packet needs has to be in
// both.
func (a *App) ListenPacket(network, address string) (net.PacketConn, error) {
	conn, err := a.parts.sockets.ListenPacket(context.Background(), new(net.ListenConfig), network, address)
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return conn, nil
}

// upgrade is what an App needs to replace its process, and to replace another one.
type upgrade struct {
	turn       chan struct{} // holds a token while an upgrade runs
	asked      fsm.Wake      // a signal requested an upgrade
	handedOver fsm.Signal    // the listeners are closed: new connections reach the new process
	exclusives []*exclusive
	parent     *handover.Parent               // that this process replaces; nil for none
	announced  bool                           // the old process tells the service manager that this one is ready
	child      atomic.Pointer[handover.Child] // that replaces this process, until that is certain

	// standby says that the files of the process belong to another one: in a new process
	// until it serves, and in an old one from then on.
	standby atomic.Bool
}

// errMayGive is in the error of a give that was abandoned.
var errMayGive = errors.New("it may still give it away")

// exclusive is something that one process can have.
type exclusive struct {
	name       string
	take, give func(context.Context) error
	held       atomic.Bool // take has returned nil, and give has not since then
}

// call calls take or give, and bounds the call.
func (e *exclusive) call(ctx context.Context, verb string, fn func(context.Context) error, held bool) error {
	out := callPart(ctx, "exclusive", e.name+": "+verb, ctx.Done(), settle, func() error {
		err := fn(ctx)
		if err == nil {
			e.held.Store(held) // also when the App no longer waits for the call
		}
		return err
	})
	switch {
	case out.Result == ResultAbandoned && verb == "give":
		return fmt.Errorf("give %s: %w; %w", e.name, out.err, errMayGive)
	case out.err != nil:
		return fmt.Errorf("%s %s: %w", verb, e.name, out.err)
	}
	return nil
}

// giveIfHeld is the shutdown hook.
func (e *exclusive) giveIfHeld(ctx context.Context) error {
	if !e.held.Load() {
		return nil
	}
	err := e.give(ctx)
	if err == nil {
		e.held.Store(false)
	}
	return err
}

// takeAll takes what only one process can have, in order.
func takeAll(ctx context.Context, all []*exclusive) error {
	for _, e := range all {
		if err := e.call(ctx, "take", e.take, true); err != nil {
			return err
		}
	}
	return nil
}

// mayUpgrade returns why no process can replace this one.
func (a *App) mayUpgrade() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrUpgradeRefused}, args...)...)
	}
	if p := a.Phase(); p != PhaseRunning || a.isStopping() {
		return refuse("the app is %s, want it running", p)
	}
	if s, suspended := a.Suspended(); suspended {
		return refuse("the app is suspended (%s), and a new process would not be: resume it first", s.Reason)
	}
	if !handover.Supported {
		return refuse("a process can hand over its sockets on Linux only")
	}
	if os.Getpid() == 1 {
		return refuse("this is process 1 of its container, which ends with it: let the orchestrator start a container " +
			"of the new image before it stops this one, as a Deployment's rolling update does")
	}
	var errs []error
	for _, s := range a.parts.servers {
		if addr := s.drainingServer.Addr(); !a.parts.sockets.Has(addr) {
			errs = append(errs, refuse("the listener of server %s on %s is not one of the App's, so it cannot be handed over: "+
				"open it with App.Listen", s.Name(), addr))
		}
	}
	return errors.Join(errs...)
}

// program returns the file that an upgrade starts. A link to the current release, which
// os.Executable resolves, is followed anew.
func program() (string, error) {
	if filepath.IsAbs(os.Args[0]) {
		return os.Args[0], nil
	}
	return os.Executable()
}

// replace starts the new process and hands over to it. On error that process has ended.
func (a *App) replace(ctx context.Context) (pid int, err error) {
	late := fmt.Errorf("it took longer than %v (UpgradeTimeout)", a.cfg.UpgradeTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, a.cfg.UpgradeTimeout, late)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-a.stop.requested.Signaled():
			stop(errStopped)
		case <-ctx.Done():
		}
	}()
	child, err := a.startSuccessor()
	if err != nil {
		return 0, err
	}
	a.upgrade.child.Store(child)
	given, err := a.handOverTo(ctx, child)
	if err == nil {
		child.Release()
		a.beginStop()
		<-a.upgrade.handedOver.Signaled()
		return child.PID, nil
	}
	a.upgrade.child.Store(nil)
	return 0, a.takeBack(given, fmt.Errorf("%w (%w)", err, child.End()))
}

// takeBack takes what was given for an upgrade that has failed with err. Like a reload it ends with
// the window: a process that stops needs nothing back. It stops the App when this process does not
// have everything again, or a give that was abandoned may still give it away.
func (a *App) takeBack(given []*exclusive, err error) error {
	ctx, cancel := context.WithTimeout(a.reloads.ctx, a.cfg.UpgradeTimeout)
	defer cancel()
	slices.Reverse(given) // into the order of the registration
	backErr := takeAll(ctx, given)
	if backErr != nil {
		err = errors.Join(err, fmt.Errorf("what was given for an upgrade cannot be taken back: %w", backErr))
	}
	hasAll := backErr == nil && !call.Is(err, errMayGive)
	if !hasAll && !a.isStopping() {
		a.fail(err)
	}
	return err
}

// errStopped is the cause of an upgrade's end that a request to stop has ended.
var errStopped = errors.New("the app was asked to stop")

// startSuccessor starts the new process with all sockets.
func (a *App) startSuccessor() (*handover.Child, error) {
	path, err := program()
	if err != nil {
		return nil, fmt.Errorf("find the program: %w", err)
	}
	files, names, err := a.parts.sockets.Files()
	if err != nil {
		return nil, err
	}
	defer func() {
		for _, f := range files {
			_ = f.Close() // a copy
		}
	}()
	env := sdsocket.Environ(append(os.Environ(), a.notifier.Load().Environ()...), names)
	child, err := handover.Start(path, os.Args, env, files)
	if err != nil {
		return nil, err
	}
	a.log.Info("upgrade: a new process starts", "process", child.PID, "program", path, "sockets", len(files))
	return child, nil
}

// handOverTo leads the conversation with the new process. When it returns no error, that
// process serves, and a stop of this one is requested. given is what that process may have
// taken, in the order in which it was given.
func (a *App) handOverTo(ctx context.Context, child *handover.Child) (given []*exclusive, err error) {
	if err := child.Await(ctx, handover.Ready); err != nil {
		return nil, err
	}
	for _, e := range slices.Backward(a.upgrade.exclusives) {
		if err := e.call(ctx, "give", e.give, false); err != nil {
			return given, err // also when the give was abandoned: takeBack then stops the App
		}
		given = append(given, e)
	}
	if err := child.Say(handover.Take); err != nil {
		return given, err
	}
	if err := child.Await(ctx, handover.Taken); err != nil {
		return given, err
	}
	reason := fmt.Sprintf("process %d has taken over", child.PID)
	return given, a.stop.askAfter(stopRequest{reason: reason, cause: ErrUpgraded, successor: child.PID}, func() error {
		// From here on a forced exit must not kill the new process. Should this one end
		// before it has said go, the new one goes on.
		a.upgrade.child.Store(nil)
		a.upgrade.standby.Store(true)
		if err := child.Say(handover.Go); err != nil {
			a.upgrade.standby.Store(false)
			return err
		}
		a.parts.sockets.HandOver()
		return nil
	})
}

// serveUpgrades runs the upgrades that a signal requests, until the drain.
func (a *App) serveUpgrades() {
	for {
		select {
		case <-a.Draining():
			return
		case <-a.upgrade.asked:
			_ = a.Upgrade(a.unitsCtx) // Upgrade logs its errors
		}
	}
}

// join takes the sockets of the process that this one replaces, if it was started for that.
func (a *App) join() error {
	parent, err := handover.Join()
	if err != nil || parent == nil {
		return err
	}
	a.upgrade.parent = parent
	a.upgrade.standby.Store(true)
	if err := a.parts.sockets.Inherit(); err != nil {
		return fmt.Errorf("the sockets of the process that this one replaces: %w", err)
	}
	return nil
}

// readyAgain is the time between two looks at the readiness of a process that takes over.
const readyAgain = 100 * time.Millisecond

// awaitTakeover waits until this process may serve, when it replaces another one. It reports false
// when it may not: a stop was requested.
func (a *App) awaitTakeover() bool {
	parent := a.upgrade.parent
	if parent == nil {
		return true
	}
	defer parent.Close()
	ctx, cancel := a.untilStop()
	defer cancel()
	a.health.owner.SetGate(StateUp, "")
	died, err := false, a.awaitReady(ctx)
	if err == nil {
		a.setWaiting("the old process")
		parent.Say(handover.Ready)
		died, err = parent.Await(ctx, handover.Take)
	}
	if err == nil {
		a.setWaiting("what only one process can have")
		err = takeAll(ctx, a.upgrade.exclusives)
	}
	if err == nil && !died {
		a.setWaiting("the old process")
		died, err = a.takeOverFrom(parent)
	}
	a.setWaiting("")
	if err != nil {
		if !a.isStopping() {
			a.fail(fmt.Errorf("take over from the old process: %w", err))
			<-a.stop.requested.Signaled() // another request may have been first
		}
		return false
	}
	a.upgrade.announced = !died
	if died {
		a.log.Warn("the old process has ended during the upgrade: this one serves")
	}
	a.upgrade.standby.Store(false)
	if left := a.parts.sockets.Go(); left != nil {
		a.log.Warn("nothing listens any more on what the old process had opened", "addresses", strings.Join(left, ", "))
	}
	return true
}

// takeOverFrom says the word with which this process takes over, unless it was asked to stop
// before that: then the old one serves on. After it only the answer counts, because the old
// one may leave.
func (a *App) takeOverFrom(parent *handover.Parent) (died bool, err error) {
	if !a.stop.unlessRequested(func() { parent.Say(handover.Taken) }) {
		return false, errStopped
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.cfg.UpgradeTimeout)
	defer cancel()
	return parent.Await(ctx, handover.Go)
}

// awaitReady waits until /readyz would pass at two looks, one after the other: a unit that fails
// as it begins has ended the start by the second.
func (a *App) awaitReady(ctx context.Context) error {
	again := time.NewTicker(readyAgain)
	defer again.Stop()
	said, passed := "", 0
	for {
		a.health.reg.Ready(ctx)
		if err := a.health.reg.NotReady(); err != nil {
			passed = 0
			why := strings.ReplaceAll(err.Error(), "\n", "; ")
			a.setWaiting("readiness: " + why)
			if why != said {
				said = why
				a.log.Warn("not ready yet to take over from the old process", "because", why)
			}
		} else if said, passed = "", passed+1; passed == 2 {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// handOverServers closes the listeners, on which the new process accepts connections, and the
// health server, whose address the new process has.
func (a *App) handOverServers(ctx context.Context) {
	a.setWaiting("the listeners")
	var wg sync.WaitGroup
	for _, s := range a.parts.servers {
		wg.Go(func() {
			out := callPart(ctx, "call", s.Name()+": close the listener", ctx.Done(), a.budget.Patience, func() error {
				return s.HandOver(ctx)
			})
			if out.err != nil {
				a.log.Error("server failed to hand over", "server", s.Name(), "error", out.err)
				a.stop.add(out.err)
			}
		})
	}
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if a.health.server != nil {
		wg.Go(func() { a.health.server.HandOver(soon) })
	}
	wg.Wait()
	a.upgrade.handedOver.Signal() // Upgrade returns, and /admin/upgrade answers
	if a.health.server != nil {
		a.health.server.AwaitClients(soon)
	}
}
