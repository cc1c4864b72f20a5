package presence

import (
	"cmp"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// command is an operator's request to one life of a process. The operator seals it for
// the purpose "command SUBJECT". The process replies with a sealed answer.
type command struct {
	Do     string `json:"do"`             // "drain", "suspend", "resume", "restart-unit", "logs", "stacks", "config"
	Unit   string `json:"unit,omitempty"` // of "restart-unit": its path
	Reason string `json:"reason,omitempty"`
	Who    string `json:"who"` // the principal that asked the operator

	// Of "logs".
	After uint64 `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`

	Life    string    `json:"life"` // the fingerprint of the process's own key
	Issued  time.Time `json:"issued"`
	Expires time.Time `json:"expires"`
	Nonce   string    `json:"nonce"`
}

// answer is sealed by the process for the purpose "answer SUBJECT".
type answer struct {
	Nonce string `json:"nonce"` // the command's
	Phase string `json:"phase,omitempty"`
	Error string `json:"error,omitempty"`

	Lines  []Line `json:"lines,omitempty"`
	Missed uint64 `json:"missed,omitempty"`
	Text   string `json:"text,omitempty"`   // of "stacks"
	Status string `json:"status,omitempty"` // of "restart-unit": the unit's status

	Settings  []Setting           `json:"settings,omitempty"` // of "config"
	Truncated bool                `json:"truncated,omitempty"`
	Reloads   []lifecycle.Outcome `json:"reloads,omitempty"`
}

// Limits of commands.
const (
	maxReason   = 256              // bytes of the reason and of the operator's name
	maxCommand  = 8 << 10          // bytes of a sealed command
	maxClockGap = 30 * time.Second // between an operator's clock and the process's
	maxValid    = 2 * time.Minute  // from the issue of a command to its expiry
)

// gate decides whether a process obeys a command. One goroutine uses it.
type gate struct {
	subject string                        // on which the process takes commands
	life    string                        // the fingerprint of the process's own key
	trust   func(ed25519.PublicKey) error // nil when the key is an operator's
	nonces  map[string]time.Time          // the used ones, and when their commands expire
	newest  time.Time                     // when the latest of the admitted commands was issued
}

// isOld reports whether a command that expires then is older than an admitted one, however far the clocks
// of two operators are apart. A nonce is forgotten, and a command with it refused, by the commands
// alone: a clock that is set back makes none valid again, and a clock of the process that was ahead
// refuses none when it is right again. When an operator's clock was ahead as well, and such a command was
// admitted, the commands with the right time are refused until that time has come or the process restarts.
func (g *gate) isOld(expires time.Time) bool { return expires.Add(2 * maxClockGap).Before(g.newest) }

// admit opens a command and checks everything that does not depend on the process's
// phase. After an error it returns what it knows of the command; signer is "" when the
// signature does not hold.
func (g *gate) admit(now time.Time, message []byte) (c command, signer string, err error) {
	if len(message) > maxCommand {
		return c, "", fmt.Errorf("the command has %d bytes, at most %d are allowed", len(message), maxCommand)
	}
	key, body, err := unseal("command "+g.subject, message)
	if err != nil {
		return c, "", fmt.Errorf("the command is not signed for %s: %w", g.subject, err)
	}
	signer = fingerprint(key)
	malformed := json.Unmarshal(body, &c)
	if err := g.trust(key); err != nil {
		return c, signer, err
	}
	gap := func(at time.Time) string {
		return fmt.Sprintf("at %s, and this process's clock says %s: compare the clocks",
			at.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	switch {
	case malformed != nil:
		return c, signer, errors.New("the command is not JSON of the expected form")
	case c.Life != g.life:
		return c, signer, fmt.Errorf("the command is for another life of this process (%s, this one is %s): it has restarted",
			text.Clip(c.Life, 40), g.life)
	case c.Who == "":
		return c, signer, errors.New("the command names no operator")
	case len(c.Reason) > maxReason || len(c.Who) > maxReason:
		return c, signer, fmt.Errorf("the reason or the name is longer than %d bytes", maxReason)
	case len(c.Nonce) < 16 || len(c.Nonce) > 64:
		return c, signer, fmt.Errorf("the command's nonce has %d bytes, want 16 to 64", len(c.Nonce))
	case c.Expires.Sub(c.Issued) > maxValid || c.Expires.Before(c.Issued):
		return c, signer, fmt.Errorf("the command is valid for %v, want at most %v", c.Expires.Sub(c.Issued), maxValid)
	case c.Issued.After(now.Add(maxClockGap)):
		return c, signer, errors.New("the command was issued in the future, " + gap(c.Issued))
	case now.After(c.Expires.Add(maxClockGap)):
		return c, signer, errors.New("the command expired " + gap(c.Expires))
	case g.isOld(c.Expires):
		return c, signer, errors.New("the command expired before the latest one was issued")
	}
	if c.Issued.After(g.newest) {
		g.newest = c.Issued
		maps.DeleteFunc(g.nonces, func(_ string, expires time.Time) bool { return g.isOld(expires) })
	}
	if _, used := g.nonces[c.Nonce]; used {
		return c, signer, errors.New("the command was sent before: it is a replay")
	}
	g.nonces[c.Nonce] = c.Expires
	return c, signer, nil
}

// trust returns an error unless a key belongs to an operator. It reads the file for each
// command, so that a key that is added or removed counts at once.
func (a *announcer) trust(key ed25519.PublicKey) error {
	if a.cfg.OperatorsFile == "" {
		if onThisMachine(a.js.Conn()) {
			return nil
		}
		return errors.New("this process knows no operator's key, and its NATS is on another machine: " +
			"set presence.Config.OperatorsFile")
	}
	keys, err := readOperators(a.cfg.OperatorsFile)
	if err != nil {
		return fmt.Errorf("this process cannot read the operators' keys: %w", err)
	}
	if !slices.ContainsFunc(keys, func(k ed25519.PublicKey) bool { return k.Equal(key) }) {
		return fmt.Errorf("the key %s is not in this process's OperatorsFile", fingerprint(key))
	}
	return nil
}

// onThisMachine reports whether the connection ends in this process or on its machine.
func onThisMachine(nc *nats.Conn) bool {
	if nc.Opts.InProcessServer != nil {
		return true
	}
	host, _, err := net.SplitHostPort(nc.ConnectedAddr())
	ip := net.ParseIP(host)
	return err == nil && ip != nil && ip.IsLoopback()
}

// answer answers one message on the subject of commands.
func (a *announcer) answer(m *nats.Msg) {
	c, signer, err := a.gate.admit(time.Now(), m.Data)
	out := answer{Nonce: text.Clip(c.Nonce, 64)}
	switch {
	case err != nil:
		out.Error = err.Error()
	case c.reads():
		out.Error = a.read(c, &out)
	default:
		out.Error = a.obey(c, &out)
	}
	if !a.readsOn(c, signer, out.Error) {
		a.audit(c, signer, out.Error)
	}
	out.Phase = string(a.app.Phase())
	reply, err := json.Marshal(out)
	if err == nil && m.Reply != "" {
		err = m.Respond(seal(a.key, "answer "+a.gate.subject, reply))
	}
	if err != nil {
		a.cfg.Logger.Warn("presence: a command was not answered", "do", text.Clip(c.Do, maxReason), "error", err)
	}
	a.changed.Notify()
}

// readsOn reports whether a command only goes on with a reading that is noted already.
func (a *announcer) readsOn(c command, signer, refused string) bool {
	if refused != "" || !c.reads() {
		return false
	}
	isNoted := a.readings.Note(time.Now(), signer+" "+c.Who, c.Do)
	return isNoted && c.After > 0
}

// audit notes a command in the log and the journal; signer is "" when the signature does not
// hold. Refused commands may come in any number: at most one a second is noted.
func (a *announcer) audit(c command, signer, refused string) {
	now := time.Now()
	clip := func(s string) string { return text.Clip(s, maxReason) }
	do, who, reason := clip(strings.TrimSpace(c.Do+" "+c.Unit)), clip(c.Who), clip(c.Reason)
	refused = clip(refused)
	event := a.event(Event{Kind: "command", Name: do, Who: who, Cause: reason, To: cmp.Or(refused, "done")})
	if refused == "" {
		a.journal.add(event)
		a.cfg.Logger.Info("presence: command", "do", do, "who", who, "key", signer, "reason", reason)
		return
	}
	if now.Sub(a.warned) < time.Second {
		a.unlogged++
		return
	}
	a.cfg.Logger.Warn("presence: command refused",
		"do", do, "who", who, "key", signer, "reason", reason, "error", refused, "not_logged", a.unlogged)
	a.journal.add(event)
	a.warned, a.unlogged = now, 0
}

// commandSubject returns the subject on which a process takes commands.
func commandSubject(c Config, id string) string { return c.Prefix + ".command." + id }

// because is the reason of a command with the operator's name.
func because(c command) string {
	return strings.TrimPrefix(c.Reason+" (asked by "+c.Who+")", " ")
}

// obey carries out a command. When it refuses, it returns the reason.
func (a *announcer) obey(c command, out *answer) (refused string) {
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
		if by, isSuspended := a.app.Suspended(); isSuspended && by.Reason != text.Clip(because(c), maxReason) {
			return fmt.Sprintf("it is suspended already, since %s: %s; resume it first",
				by.Since.UTC().Format(time.RFC3339), cmp.Or(by.Reason, "no reason given"))
		}
		a.app.Suspend(because(c))
	case "resume":
		a.app.Resume()
	case doRestart:
		return a.restart(c, out)
	default:
		return fmt.Sprintf("there is no command %q: want drain, suspend, resume, restart-unit, logs, stacks or config", c.Do)
	}
	return ""
}
