package presence

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
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
// Config, or a bucket with another TTL, stops the app.
//
// The unit ends after the drain, as all units do, so operators see the process
// drain. Then it removes the process from the fleet.
//
// It returns the id under which the process is seen.
func Announce(app *lifecycle.App, js jetstream.JetStream, cfg Config) (id string) {
	cfg, err := cfg.withDefaults()
	if cfg.ID == "" {
		cfg.ID = identity.New()
	}
	a := &announcer{app: app, js: js, cfg: cfg, host: identity.Host(), started: time.Now(), kick: make(chan struct{}, 1)}
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
	kick    chan struct{} // of size 1; filled when something has changed
}

// pace is the least time between two announcements.
const pace = 200 * time.Millisecond

// retry is the time until the unit looks for the bucket again.
const retry = 2 * time.Second

func (a *announcer) run(ctx context.Context) error {
	commands, err := a.js.Conn().Subscribe(commandSubject(a.cfg, a.cfg.ID), a.answer)
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
		Ready: a.app.Ready() == nil, Status: a.app.Status(),
	}
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
	_, err = kv.Put(ctx, a.cfg.ID, text)
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
	if err := kv.Purge(ctx, a.cfg.ID); err != nil {
		a.cfg.Log.Warn("presence: operators see this process until its entry expires", "ttl", a.cfg.TTL, "error", err)
	}
	return nil
}

// command is an operator's request to a process. The process replies with an answer.
type command struct {
	Do     string `json:"do"` // "drain", "suspend", "resume"
	Reason string `json:"reason,omitempty"`
	Who    string `json:"who,omitempty"`
}

type answer struct {
	Phase string `json:"phase,omitempty"`
	Error string `json:"error,omitempty"`
}

// maxReason bounds the reason and the operator's name in a command, in bytes.
const maxReason = 256

func (a *announcer) answer(m *nats.Msg) {
	var c command
	var out answer
	if err := json.Unmarshal(m.Data, &c); err != nil {
		out.Error = "the command is not JSON of the expected form"
	} else if len(c.Reason) > maxReason || len(c.Who) > maxReason {
		out.Error = fmt.Sprintf("the reason or the name is longer than %d bytes", maxReason)
	} else {
		out.Error = a.obey(c)
	}
	out.Phase = string(a.app.Phase())
	text, err := json.Marshal(out)
	if err == nil {
		err = m.Respond(text)
	}
	if err != nil {
		a.cfg.Log.Warn("presence: a command was not answered", "do", c.Do, "error", err)
	}
	a.wake()
}

// obey carries out a command. When it refuses, it returns the reason.
func (a *announcer) obey(c command) (refused string) {
	a.cfg.Log.Info("presence: command", "do", c.Do, "who", c.Who, "reason", c.Reason)
	because := c.Reason
	if c.Who != "" {
		because = strings.TrimPrefix(c.Reason+" (asked by "+c.Who+")", " ")
	}
	if p := a.app.Phase(); p != lifecycle.PhaseRunning && p != lifecycle.PhaseStarting && p != lifecycle.PhaseCreated {
		return fmt.Sprintf("the process is %s already", p)
	}
	switch c.Do {
	case "drain":
		a.app.StopBecause(strings.TrimSuffix("drain: "+because, ": "))
	case "suspend":
		if c.Reason == "" {
			return "a suspension needs a reason"
		}
		a.app.Suspend(because)
	case "resume":
		a.app.Resume()
	default:
		return fmt.Sprintf("there is no command %q: want drain, suspend or resume", c.Do)
	}
	return ""
}

// commandSubject returns the subject on which a process takes commands.
func commandSubject(c Config, id string) string { return c.Prefix + ".command." + id }
