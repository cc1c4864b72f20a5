package presence

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/time/rate"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker/identity"
	"github.com/pleme-io/lifecycle-go/fleet/broker/natserr"
	"github.com/pleme-io/lifecycle-go/fleet/internal/eventlog"
	"github.com/pleme-io/lifecycle-go/fleet/internal/unittree"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/call"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Announce adds a unit to app, named "presence", that announces the process while
// it runs: at once, after every change of a phase, a unit or a probe (at most
// five times a second), and every Config.Every. It answers the operators'
// commands, and writes what happens into the fleet's journal. While NATS is away the
// unit logs it and the app goes on. An invalid Config, an OperatorsFile that cannot be
// read, or a bucket with another TTL, stops the app.
//
// The process announces itself until its end: Announce also adds a shutdown hook,
// named "presence", that writes the end into the journal and removes the process from
// the fleet. Hooks run last in, first out. So call Announce at once after the hook that
// closes the connection to NATS, and before all other hooks: then operators see each of
// them run.
//
// It returns the id under which the process is seen: its service, a dot and Config.ID.
// The service is the app's name, with a dash in place of each character that is not a
// letter or a digit of ASCII, - or _, and at most 100 of them.
func Announce(app *lifecycle.App, js jetstream.JetStream, cfg Config) (id string) {
	cfg, err := cfg.withDefaults()
	if cfg.ID == "" {
		cfg.ID = identity.New()
	}
	cfg.ID = serviceToken(app.Config().Name) + "." + cfg.ID
	public, private, _ := ed25519.GenerateKey(nil) // the system's random numbers never fail
	a := &announcer{
		app:     app,
		js:      js,
		cfg:     cfg,
		host:    identity.Host(),
		started: time.Now(),
		key:     private,
		changed: fsm.NewWake(),
		journal: newJournalWriter(js, cfg, maxWaiting, rate.NewLimiter(eventRate, eventBurst)),
		asked:   make(map[string]asked),
	}
	a.gate = gate{
		subject: commandSubject(cfg, cfg.ID),
		life:    fingerprint(public),
		trust:   a.trust,
		nonces:  make(map[string]time.Time),
	}
	if err == nil && cfg.OperatorsFile != "" {
		if _, err = readOperators(cfg.OperatorsFile); err != nil {
			err = fmt.Errorf("presence: OperatorsFile: %w", err)
		}
	}
	app.OnShutdown("presence", a.leave)
	app.Go("presence", func(ctx context.Context) error {
		if err != nil {
			return err
		}
		return a.run(ctx)
	})
	return cfg.ID
}

type announcer struct {
	app     *lifecycle.App
	js      jetstream.JetStream
	cfg     Config
	host    string
	started time.Time
	key     ed25519.PrivateKey // of this life of the process
	changed fsm.Wake           // something has changed
	journal *journalWriter

	// Only the goroutine of the subscription uses these.
	gate     gate
	settings call.Answers
	readings eventlog.Readings
	warned   time.Time // when a refusal was logged
	unlogged int       // refusals since then

	mu    sync.Mutex       // guards asked
	asked map[string]asked // restarts of units that were asked for, by path

	begun atomic.Bool // run has set the fields below
	stop  context.CancelFunc
	ends  sync.WaitGroup // of announce and the journal's writer

	commands *nats.Subscription

	// Only announce uses the fields below, and the hook after it.
	kv        jetstream.KeyValue
	number    uint64         // of the last announcement
	before    map[string]int // the restarts of each unit at the last look
	restarts  []Restart
	suspended string // the reason of the suspension at the last look
	meter     usageMeter
}

// pace is the least time between two announcements.
const pace = 200 * time.Millisecond

// maxPending is how many commands may wait while one is answered.
const maxPending = 256

// retry is the time until the unit looks for the bucket again.
const retry = 2 * time.Second

// run begins to announce and to answer commands. Both go on until the hook ends them: an
// operator who asks why a stop hangs gets an answer.
func (a *announcer) run(ctx context.Context) error {
	commands, err := a.js.Conn().Subscribe(a.gate.subject, a.answer)
	if err == nil {
		err = commands.SetPendingLimits(maxPending, maxPending*maxCommand) // a flood must not fill the memory
	}
	if err != nil {
		return fmt.Errorf("presence: %w", err)
	}
	announcing, stop := context.WithCancel(context.WithoutCancel(ctx))
	a.commands, a.stop = commands, stop
	wrong := make(chan error, 1)
	a.ends.Go(func() { a.journal.run(announcing, a.event(Event{})) })
	a.ends.Go(func() {
		if err := a.announce(announcing); err != nil {
			wrong <- err
		}
	})
	a.begun.Store(true)
	select {
	case <-ctx.Done():
		return nil
	case err := <-wrong:
		return err
	}
}

// announce announces the process until the hook runs. It returns an error when the
// Config turns out to be wrong.
func (a *announcer) announce(ctx context.Context) error {
	a.noteJoined()
	defer a.app.Events().Listen(1024, a.note)()
	for _, ph := range a.app.Report().Phases { // the phases before Listen
		a.notePhase(Event{To: string(ph.Phase), Waited: time.Since(ph.Entered)})
	}

	failed, opened := false, false
	for {
		var err error
		if a.kv == nil || failed { // the bucket is in memory: a server that restarts loses it
			var found jetstream.KeyValue
			if found, err = bucket(ctx, a.js, a.cfg); err == nil {
				a.kv = found
			} else if errors.Is(err, errTTL) && !opened {
				return err // at the start the Config is wrong; a later mismatch must not stop the app
			}
		}
		if err == nil {
			opened = true
			err = a.put(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failed:
			a.cfg.Logger.Warn("presence: cannot announce this process, trying again", "process", a.cfg.ID, "error", err)
		case err == nil && failed:
			a.cfg.Logger.Info("presence: announced again", "process", a.cfg.ID)
		}
		failed = err != nil
		wait := a.cfg.Every
		if failed {
			wait = min(retry, wait)
		}
		if !a.sleep(ctx, wait) {
			return nil
		}
	}
}

// event completes an event of this process.
func (a *announcer) event(e Event) Event {
	e.Service, e.Process, e.Version, e.Host = a.app.Config().Name, a.cfg.ID, a.cfg.Version, a.host
	return e
}

// notePhase writes a phase into the journal, which takes each once: an App enters each once.
func (a *announcer) notePhase(e Event) {
	e.Kind, e.once = "phase", once("phase-"+e.To, a.cfg.ID, a.started)
	a.journal.add(a.event(e))
}

// note writes a change of a phase, a unit, a probe, a hook or a reload into the journal.
func (a *announcer) note(e fsm.Event) {
	a.changed.Notify()
	kind, cause := e.Kind, ""
	if e.Cause != nil {
		cause = e.Cause.Error()
	}
	switch kind {
	case lifecycle.KindApp:
		a.notePhase(Event{From: e.From, To: e.To, Cause: cause})
		return
	case worker.KindWorker:
		kind = "unit"
		switch {
		case e.Name == "presence":
			return
		case worker.Status(e.To) == worker.StatusKilled: // ended by force, or abandoned
			kind = "killed"
		}
	case fsm.KindGap:
		a.journal.add(a.event(Event{
			Kind:  "dropped",
			Count: int64(e.Seq),
			Cause: "the App changed faster than it could be written down",
		}))
		return
	case "probe", lifecycle.KindDrainer, lifecycle.KindHook, lifecycle.KindReload:
	default:
		return
	}
	a.journal.add(a.event(Event{Kind: kind, Name: e.Name, From: e.From, To: e.To, Cause: cause}))
}

// noteJoined writes the begin of this life into the journal, and the end of the one before.
func (a *announcer) noteJoined() {
	joined := previous(a.app.Report())
	joined.Kind, joined.To = "joined", a.cfg.Version
	a.journal.add(a.event(joined))
}

// previous describes the end of the life before this one, as far as it is known.
func previous(r lifecycle.Report) (e Event) {
	last := r.Previous
	if last == nil {
		return e
	}
	e.Life, e.ExitStatus = began(*last), last.ExitStatus
	switch last.Phase {
	case lifecycle.PhaseStopped:
		e.From = EndClean
	case lifecycle.PhaseKilled:
		e.From = EndForced
	case lifecycle.PhaseFailed:
		if e.From, _ = describeEnd(*last); e.From == EndClean {
			e.From = EndFailed
		}
		if slices.ContainsFunc(last.Units, func(o lifecycle.Outcome) bool { return o.Result == lifecycle.ResultPanicked }) {
			e.From = EndPanicked
		}
	}
	why := cmp.Or(last.Error, last.Reason, "no reason is known")
	e.Cause = fmt.Sprintf("the previous life ended %s, with exit status %d: %s", last.Phase, last.ExitStatus, why)
	if last.BlackBox != "" {
		e.Cause += "; its black box is " + last.BlackBox
	}
	return e
}

// began returns when a life began: it entered its first phase.
func began(r lifecycle.Report) time.Time {
	if len(r.Phases) == 0 {
		return time.Time{}
	}
	return r.Phases[0].Entered.UTC()
}

// sleep waits for a change, for at least pace and at most d. It returns false
// when ctx ends.
func (a *announcer) sleep(ctx context.Context, d time.Duration) bool {
	most := time.After(d)
	select {
	case <-ctx.Done():
		return false
	case <-time.After(min(pace, d)):
	}
	select {
	case <-ctx.Done():
		return false
	case <-a.changed:
	case <-most:
	}
	return true
}

// look returns the present state of the process. It writes changes into the journal that are not
// events of the App.
func (a *announcer) look() Process {
	p := Process{
		ID:        a.cfg.ID,
		Host:      a.host,
		PID:       os.Getpid(),
		Version:   a.cfg.Version,
		StartedAt: a.started,
		Ready:     a.app.Ready() == nil,
		Status:    a.app.Status(),
	}
	p.Service = p.Status.Report.Name
	p.Status.Report.Units = slices.DeleteFunc(p.Status.Report.Units, func(o lifecycle.Outcome) bool {
		return o.Result == lifecycle.ResultRunning // Status.Units has it
	})
	if by := p.Status.Suspended; !by.Since.IsZero() {
		p.Suspended = cmp.Or(by.Reason, "no reason given")
	}
	var limit string
	p.Memory, limit = memory()
	p.Usage = a.meter.look(time.Now(), p.Memory.Used, limit)
	a.compare(p)
	p.Restarts = a.restarts
	return p
}

// put announces the process.
func (a *announcer) put(ctx context.Context) error {
	a.number++
	body, err := encode(a.look())
	if err == nil {
		body, err = sealEntry(a.cfg, a.key, a.cfg.ID, stamp{a.number, time.Now().UTC()}, body)
	}
	if err != nil {
		return fmt.Errorf("encode the announcement: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Every)
	defer cancel()
	_, err = a.kv.Put(ctx, a.cfg.ID, body)
	return err
}

// encode returns the Process as JSON. It leaves out the deepest units until that is small
// enough for an entry.
func encode(p Process) ([]byte, error) {
	data, err := json.Marshal(p)
	for depth := 8; err == nil && len(data) > maxAnnouncement-1024 && depth >= 0; depth -= 2 {
		p.Truncated = true
		if p.Status.Units, _ = unittree.Cut(p.Status.Units, depth); depth == 0 {
			p.Status.Report.Units = nil
		}
		data, err = json.Marshal(p)
	}
	return data, err
}

// maxRestarts is how many restarts an announcement has.
const maxRestarts = 20

// compare writes into the journal what has changed since the last announcement and is
// not an event of the App: restarts and suspensions.
func (a *announcer) compare(p Process) {
	now := map[string]int{}
	var visit func(units []worker.State, above string)
	visit = func(units []worker.State, above string) {
		for _, u := range units {
			path := above + u.Name
			now[path] = u.Restarts
			visit(u.Children, path+"/")
			n := u.Restarts - a.before[path]
			if n <= 0 {
				continue
			}
			cause := u.Reason
			if u.Exit != nil && u.Exit.Error != "" {
				cause = u.Exit.Error
			}
			by, requested := a.askedFor(path)
			if requested {
				cause = because(command{Who: by.who, Reason: by.reason})
			}
			cause = text.Clip(cause, maxReason)
			a.journal.add(a.event(Event{Kind: "restart", Name: path, Cause: cause, Who: by.who, Count: int64(n)}))
			one := Restart{Unit: path, At: time.Now(), Cause: cause, Who: by.who}
			list := append(slices.Repeat([]Restart{one}, min(n, maxRestarts)), a.restarts...)
			a.restarts = list[:min(len(list), maxRestarts)]
		}
	}
	visit(p.Status.Units, "")
	a.before = now
	if p.Suspended != a.suspended {
		kind := "suspended"
		if p.Suspended == "" {
			kind = "resumed"
		}
		a.journal.add(a.event(Event{Kind: kind, Cause: p.Suspended}))
		a.suspended = p.Suspended
	}
}

// leave is the shutdown hook: it ends the announcements, writes the end into the
// journal, and removes the process from the fleet.
func (a *announcer) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leaveTime)
	defer cancel()
	if !a.begun.Load() { // the start has failed before the process could announce itself
		a.noteJoined()
		a.noteEnd(ctx)
		return nil
	}
	a.stop()
	a.ends.Wait()
	// A command in progress ends first, so its caller gets the answer.
	closed := make(chan struct{})
	a.commands.SetClosedHandler(func(string) { close(closed) })
	if a.commands.Drain() == nil {
		select {
		case <-closed:
		case <-ctx.Done():
		}
	}
	a.noteEnd(ctx)
	if a.kv == nil {
		return nil
	}
	m, err := removal(a.js, a.cfg, a.key, a.cfg.ID, stamp{a.number + 1, time.Now().UTC()})
	if err == nil {
		_, err = a.js.PublishMsg(ctx, m)
	}
	if err != nil {
		a.cfg.Logger.Warn("presence: operators see this process until its entry expires",
			"process", a.cfg.ID, "ttl", a.cfg.TTL, "error", err)
	}
	return nil
}

// noteEnd writes the end of the process into the journal.
func (a *announcer) noteEnd(ctx context.Context) {
	report := a.app.Report()
	e := a.event(Event{Kind: "exit", From: string(report.Phase), Life: began(report)})
	e.To, e.Cause = describeEnd(report)
	if e.To != EndClean {
		e.ExitStatus = cmp.Or(report.ExitStatus, 1)
	}
	a.journal.add(e)
	err := a.journal.flush(ctx, a.event(Event{}))
	// A server answers and cannot write, for example while it still removes the files of a
	// journal that was deleted: the hook has time to ask again. Any other error, as for a
	// journal of another fleet, would come again.
	for natserr.Code(err) != 0 && !natserr.Away(err) && a.sleep(ctx, pace) {
		err = a.journal.flush(ctx, a.event(Event{}))
	}
	if err != nil {
		a.cfg.Logger.Warn("presence: the journal does not have the end of this process", "process", a.cfg.ID, "error", err)
	}
}

// leaveTime is the longest that the hook takes.
var leaveTime = 2 * time.Second
