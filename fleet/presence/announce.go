package presence

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker/identity"
	"github.com/pleme-io/lifecycle-go/fsm"
)

// Announce adds a unit to app, named "presence", that announces the process while
// it runs: at once, after every change of a phase, a unit or a probe (at most
// five times a second), and every Config.Every. It answers the operators'
// commands. While NATS is away the unit logs it and the app goes on. An invalid
// Config, an OperatorsFile that cannot be read, or a bucket with another TTL, stops the
// app.
//
// The unit ends after the drain, as all units do, so operators see the process
// drain. Then it removes the process from the fleet.
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
	public, private, keyErr := ed25519.GenerateKey(nil)
	a := &announcer{app: app, js: js, cfg: cfg, host: identity.Host(), started: time.Now(), key: private, kick: make(chan struct{}, 1)}
	a.gate = gate{subject: commandSubject(cfg, cfg.ID), life: fingerprint(public), trust: a.trust, nonces: make(map[string]time.Time)}
	if err == nil && cfg.OperatorsFile != "" {
		if _, err = readOperators(cfg.OperatorsFile); err != nil {
			err = fmt.Errorf("presence: OperatorsFile: %w", err)
		}
	}
	app.Go("presence", func(ctx context.Context) error {
		if err := cmp.Or(err, keyErr); err != nil {
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
	kick    chan struct{}      // of size 1; filled when something has changed
	number  uint64             // of the last announcement; only the unit's goroutine uses it

	// Only the goroutine of the subscription uses these.
	gate     gate
	warned   time.Time // when a refusal was logged
	unlogged int       // refusals since then

	mu       sync.Mutex // guards the fields below
	obeyed   []Command  // the last ones, newest first
	refusals int64
	refused  *Command
}

// pace is the least time between two announcements.
const pace = 200 * time.Millisecond

// maxPending is how many commands may wait while one is answered.
const maxPending = 256

// retry is the time until the unit looks for the bucket again.
const retry = 2 * time.Second

func (a *announcer) run(ctx context.Context) error {
	commands, err := a.js.Conn().Subscribe(a.gate.subject, a.answer)
	if err == nil {
		err = commands.SetPendingLimits(maxPending, maxPending*maxCommand) // a flood must not fill the memory
	}
	if err != nil {
		return fmt.Errorf("presence: %w", err)
	}
	// A command in progress ends before the unit does, so its caller gets the
	// answer.
	defer func() {
		closed := make(chan struct{})
		commands.SetClosedHandler(func(string) { close(closed) })
		if commands.Drain() == nil {
			bound := time.NewTimer(a.cfg.CommandTimeout)
			defer bound.Stop()
			select {
			case <-closed:
			case <-bound.C:
			}
		}
	}()
	stop := a.app.Events().Listen(64, func(fsm.Event) { a.wake() })
	defer stop()

	var kv jetstream.KeyValue
	failed, opened := false, false
	for {
		var err error
		if kv == nil || failed { // the bucket is in memory: a server that restarts loses it
			var found jetstream.KeyValue
			if found, err = bucket(ctx, a.js, a.cfg); err == nil {
				kv = found
			} else if errors.Is(err, errTTL) && !opened {
				return err // at the start the Config is wrong; a later mismatch must not stop the app
			}
		}
		if err == nil {
			opened = true
			err = a.put(ctx, kv)
		}
		switch {
		case ctx.Err() != nil:
			return a.leave(ctx, kv)
		case err != nil && !failed:
			a.cfg.Log.Warn("presence: cannot announce this process, trying again", "error", err)
		case err == nil && failed:
			a.cfg.Log.Info("presence: announced again")
		}
		failed = err != nil
		wait := a.cfg.Every
		if failed {
			wait = min(retry, wait)
		}
		if !a.sleep(ctx, wait) {
			return a.leave(ctx, kv)
		}
	}
}

// sleep waits for a change, for at least pace and at most d. It returns false
// when ctx ends.
func (a *announcer) sleep(ctx context.Context, d time.Duration) bool {
	least := time.NewTimer(min(pace, d))
	defer least.Stop()
	most := time.NewTimer(d)
	defer most.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-least.C:
	}
	select {
	case <-ctx.Done():
		return false
	case <-a.kick:
	case <-most.C:
	}
	return true
}

func (a *announcer) wake() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// put announces the process as it is now.
func (a *announcer) put(ctx context.Context, kv jetstream.KeyValue) error {
	p := Process{
		ID: a.cfg.ID, Host: a.host, PID: os.Getpid(), Version: a.cfg.Version, StartedAt: a.started,
		Ready: a.app.Ready() == nil, Status: a.app.Status(), Number: a.number + 1, AnnouncedAt: time.Now().UTC(),
	}
	a.number++
	a.mu.Lock()
	p.Commands, p.Refusals, p.Refused = a.obeyed, a.refusals, a.refused
	a.mu.Unlock()
	p.Service = p.Status.Report.Name
	if by := p.Status.Suspended; !by.Since.IsZero() {
		p.Suspended = cmp.Or(by.Reason, "no reason given")
	}
	text, err := json.Marshal(p)
	for depth := 8; err == nil && len(text) > maxAnnouncement-1024 && depth >= 0; depth -= 2 {
		p.Truncated = true
		p.Status.Units, _ = prune(p.Status.Units, depth)
		if depth == 0 {
			p.Status.Units, p.Status.Report.Units = nil, nil
		}
		text, err = json.Marshal(p)
	}
	if err != nil {
		return fmt.Errorf("encode the announcement: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Every)
	defer cancel()
	_, err = kv.Put(ctx, a.cfg.ID, seal(a.key, a.purpose(), text))
	return err
}

// leave removes the process from the fleet. It takes at most a second, and works
// although ctx has ended.
func (a *announcer) leave(ctx context.Context, kv jetstream.KeyValue) error {
	if kv == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := a.farewell(ctx); err != nil {
		a.cfg.Log.Warn("presence: operators see this process until its entry expires", "ttl", a.cfg.TTL, "error", err)
	}
	return nil
}

// purpose is what an announcement is sealed for.
func (a *announcer) purpose() string { return entryPurpose(a.cfg, a.cfg.ID) }

// farewell removes the process's entry. It is the message that [jetstream.KeyValue.Purge]
// sends, with a sealed body: watchers believe no other.
func (a *announcer) farewell(ctx context.Context) error {
	m := nats.NewMsg("$KV." + a.cfg.Bucket + "." + a.cfg.ID)
	if prefix := a.js.Options().APIPrefix; prefix != "" && prefix != jetstream.DefaultAPIPrefix {
		m.Subject = strings.TrimSuffix(prefix, ".") + "." + m.Subject
	} else if domain := a.js.Options().Domain; domain != "" {
		m.Subject = "$JS." + domain + ".API." + m.Subject
	}
	m.Header.Set("KV-Operation", "PURGE")
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	body, err := json.Marshal(Process{ID: a.cfg.ID, Number: a.number + 1})
	if err != nil {
		return err
	}
	m.Data = seal(a.key, a.purpose(), body)
	_, err = a.js.PublishMsg(ctx, m)
	return err
}

// obey carries out a command. When it refuses, it returns the reason.
func (a *announcer) obey(c command) (refused string) {
	if p := a.app.Phase(); p != lifecycle.PhaseRunning && p != lifecycle.PhaseStarting && p != lifecycle.PhaseCreated {
		return fmt.Sprintf("the process is %s already", p)
	}
	switch c.Do {
	case "drain":
		a.app.StopBecause("drain: " + because(c))
	case "suspend":
		if c.Reason == "" {
			return "a suspension needs a reason"
		}
		a.app.Suspend(because(c))
	case "resume":
		a.app.Resume()
	default:
		return fmt.Sprintf("there is no command %q: want drain, suspend or resume", c.Do)
	}
	return ""
}
