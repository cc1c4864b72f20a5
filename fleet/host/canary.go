package host

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Rollout says how a new version of a running worker replaces the one before it. The
// zero value replaces it between two messages. A change holds for the next version.
type Rollout struct {
	// Canary is the percentage of the messages that a new version gets at first: 1 to
	// 99, or 0 for no canary. The key of a message decides which version gets it, so
	// all messages of a key go to the same one. A message without a key counts alone.
	Canary int `json:"canary,omitempty"`
	// For is how long the canary lasts at least until the new version gets every
	// message. Defaults to 10 min. In JSON it is in nanoseconds.
	For time.Duration `json:"for,omitempty"`
	// Messages is how many messages the new version has to handle, those that it fails
	// included, before the host compares it with the old one. Defaults to 20.
	Messages int `json:"messages,omitempty"`
	// Margin is by how many percentage points more of its messages the new version may
	// fail than the old one. Defaults to 5.
	Margin int `json:"margin,omitempty"`
}

func (o Rollout) withDefaults() Rollout {
	o.For = cmp.Or(o.For, 10*time.Minute)
	o.Messages = cmp.Or(o.Messages, 20)
	o.Margin = cmp.Or(o.Margin, 5)
	return o
}

func (o Rollout) validate() error {
	switch {
	case o == Rollout{}:
		return nil
	case o.Canary < 1 || o.Canary > 99:
		return fmt.Errorf("rollout: %w: canary is %d, want 1 to 99 percent", ErrInvalid, o.Canary)
	case o.For < 0 || o.Messages < 0 || o.Margin < 0 || o.Margin > 100:
		return fmt.Errorf("rollout: %w: for is %v, messages %d and margin %d: want nothing negative, "+
			"and a margin of at most 100", ErrInvalid, o.For, o.Messages, o.Margin)
	}
	return nil
}

// Candidate is a version that gets a share of a worker's messages, beside the worker's
// own version.
type Candidate struct {
	Version
	Runtime
	Rollout Rollout `json:"rollout"`
}

// Until returns when the candidate may get every message.
func (c *Candidate) Until() time.Time { return c.At.Add(c.Rollout.withDefaults().For) }

// What Version.Rollout says of a version that was a canary.
const (
	rolloutRuns     = "canary"
	rolloutPromoted = "promoted"
	rolloutBack     = "rolled back"
	rolloutReplaced = "replaced"
)

// mark notes what has become of a canary.
func (r *Record) mark(generation int, what string) {
	for i := range r.History {
		if r.History[i].Generation == generation {
			r.History[i].Rollout = what
		}
	}
}

// candidate returns the worker as it is for the messages of its canary, and nil when it
// has none.
func (r *Record) candidate() *Record {
	c := r.Candidate
	if c == nil {
		return nil
	}
	as := *r
	as.Candidate = nil
	as.Generation, as.Digest, as.Signature, as.Runtime = c.Generation, c.Digest, c.Signature, c.Runtime
	return &as
}

// Newest returns the worker as it is for the messages of its canary, and the worker
// itself when it has none.
func (r *Record) Newest() *Record {
	if c := r.candidate(); c != nil {
		return c
	}
	return r
}

// copyVersion gives r the version of another record, with what belongs to a version.
func (r *Record) copyVersion(other *Record) {
	r.Generation, r.Digest, r.Signature = other.Generation, other.Digest, other.Signature
	r.Runtime, r.Candidate = other.Runtime, other.Candidate
}

// replace makes v the worker's version, or its canary. set changes the settings. Without
// v it changes only settings that belong to no version.
func (r *Record) replace(v *Version, set func(*Record), now bool) {
	before := *r
	if c := r.candidate(); c != nil && !now {
		*r = *c // the next version goes on from the newest one
	}
	set(r)
	if v == nil {
		r.copyVersion(&before)
		return
	}
	if before.Candidate != nil {
		r.mark(before.Candidate.Generation, rolloutReplaced)
	}
	r.Candidate = nil
	canary := r.Rollout.Canary > 0 && r.State == StateRunning && !now
	if r.State == StateDeploying || r.State == StateFailed {
		r.State, r.Reason = StateRunning, ""
	}
	if !canary {
		r.addVersion(*v)
		return
	}
	v.Rollout = rolloutRuns
	r.addVersion(*v)
	c := &Candidate{Version: r.History[len(r.History)-1], Runtime: r.Runtime, Rollout: r.Rollout}
	r.copyVersion(&before)
	r.Candidate = c
}

// endCandidate promotes the candidate, or gives it up.
func (r *Record) endCandidate(promote bool) {
	generation := r.Candidate.Generation
	if !promote {
		r.Candidate = nil
		r.mark(generation, rolloutBack)
		return
	}
	*r = *r.candidate()
	r.mark(generation, rolloutPromoted)
	if r.State == StateFailed {
		r.State, r.Reason = StateRunning, ""
	}
}

// Promote gives every message of a worker to its canary, which becomes the worker's
// version between two messages. The error wraps [ErrInvalid] when there is no canary.
// [Host.Rollback] to the digest of the worker's own version ends a canary too.
func (h *Host) Promote(ctx context.Context, id string, opts ...Option) error {
	rec, err := h.change(ctx, id, optionsOf(opts), func(r *Record) (bool, error) {
		if r.Candidate == nil {
			return false, fmt.Errorf("worker %s: %w: it has no canary", id, ErrInvalid)
		}
		r.endCandidate(true)
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	return h.awaitApplied(ctx, rec)
}

// endCanary promotes the candidate that rec has, or gives it up, unless the worker has
// another one by now. set, which may be nil, changes the record then.
func (h *Host) endCanary(
	ctx context.Context, rec *Record, promote bool, o options, set func(*Record),
) (*Record, error) {
	return h.change(ctx, rec.ID, o, func(r *Record) (bool, error) {
		if r.UID != rec.UID || r.Candidate == nil || r.Candidate.Generation != rec.Candidate.Generation {
			return false, nil
		}
		r.endCandidate(promote)
		if set != nil {
			set(r)
		}
		return true, nil
	})
}

// canary is a candidate on the host that runs its worker. It counts the messages of both
// versions from when this host has loaded it.
type canary struct {
	member   *member // of the candidate
	rollout  Rollout // with its defaults
	since    time.Time
	old, new score
	over     atomic.Bool // it gets no more messages
}

// score counts first attempts.
type score struct{ succeeded, failed atomic.Int64 }

// failureRate returns which part of the messages failed.
func (s *score) failureRate() float64 {
	failed := s.failed.Load()
	if all := failed + s.succeeded.Load(); all > 0 {
		return float64(failed) / float64(all)
	}
	return 0
}

// verdict says whether the canary is promoted or rolled back, and why. decided is false while it
// goes on.
func (c *canary) verdict(now time.Time) (decided, promote bool, why string) {
	failed := c.new.failed.Load()
	all := failed + c.new.succeeded.Load()
	switch {
	case all < int64(c.rollout.Messages):
		return false, false, ""
	case c.new.failureRate() > c.old.failureRate()+float64(c.rollout.Margin)/100:
		return true, false, fmt.Sprintf("%d of its %d messages failed, and %.1f%% of the version before it: "+
			"more than %d percentage points", failed, all, 100*c.old.failureRate(), c.rollout.Margin)
	case now.Sub(c.since) >= c.rollout.For:
		took := now.Sub(c.since).Round(time.Second)
		return true, true, fmt.Sprintf("it handled %d messages in %v, and %d of them failed", all, took, failed)
	}
	return false, false, ""
}

// takes reports whether the canary gets the messages of a key. Every host gives the same
// answer, and each version gets a different part of the keys.
func (c *canary) takes(key string) bool {
	sum := sha256.Sum256([]byte(strconv.Itoa(c.member.record.Generation) + "\x00" + key))
	return binary.BigEndian.Uint64(sum[:])%100 < uint64(c.rollout.Canary)
}

// versionFor returns the version that handles a message. A message that failed stays with the
// worker's own version, or goes back to it.
func (m *member) versionFor(d *delivery, was tries) *member {
	c := m.canary
	if c == nil || c.over.Load() || was.Failed > 0 || was.CanaryFailed {
		return m
	}
	key := d.header.Get(cmp.Or(m.record.Key, HeaderKey))
	if d.timer != nil && string(d.timer.Key) != d.timer.Topic { // a timer has the key of the message that set it
		key = string(d.timer.Key)
	}
	if c.takes(cmp.Or(key, d.name())) {
		return c.member
	}
	return m
}

// judge counts the first attempt of a message while there is a canary.
func (r *runner) judge(a *attempt, failed bool) {
	c := a.member.canary
	if c == nil || c.over.Load() || a.tries.Failed > 0 || a.tries.CanaryFailed {
		return
	}
	s := &c.old
	if a.member.isCanary {
		s = &c.new
	}
	if failed {
		s.failed.Add(1)
	} else {
		s.succeeded.Add(1)
	}
	if decided, promote, _ := c.verdict(time.Now()); decided {
		c.over.Store(!promote)
		r.slot.wake.Notify()
	}
}

// withCanary returns a copy of m with the canary of rec, or without one when rec has none. It
// ends a canary whose outcome is clear, or whose code cannot run. When it returns an error, the
// slot calls it again later.
func (s *slot) withCanary(ctx context.Context, rec *Record, m *member) (*member, error) {
	own := *m
	own.canary = nil
	version := rec.candidate()
	if version == nil {
		return &own, nil
	}
	if _, err := s.troubleOf(version); err != nil {
		return &own, s.finishCanary(ctx, rec, false, err.Error())
	}
	c, err := s.canary(ctx, rec, version)
	if isFinal(err) {
		return &own, s.finishCanary(ctx, rec, false, err.Error())
	}
	if err != nil {
		return &own, fmt.Errorf("worker %s: load its canary: %w", rec.ID, err)
	}
	own.canary = c
	if decided, promote, why := c.verdict(time.Now()); decided {
		c.over.Store(!promote)
		return &own, s.finishCanary(ctx, rec, promote, why)
	}
	if left := time.Until(c.since.Add(c.rollout.For)); left > 0 && (s.canaryDue == 0 || left < s.canaryDue) {
		s.canaryDue = left
	}
	return &own, nil
}

// isFinal reports whether err means that the code can never be loaded.
func isFinal(err error) bool {
	return errors.Is(err, engine.ErrBadCode) || errors.Is(err, ErrNotGranted) || errors.Is(err, ErrNotSigned) ||
		hasType[*engine.KilledError](err)
}

// canary returns the canary that is loaded already, or loads it.
func (s *slot) canary(ctx context.Context, rec, version *Record) (*canary, error) {
	for _, m := range s.loaded {
		if m.canary != nil && m.canary.member.record.codeVersion() == version.codeVersion() {
			return m.canary, nil
		}
	}
	lines := s.host.printer(version)
	program, err := s.host.load(ctx, version, true, lines)
	if err != nil {
		return nil, err
	}
	c := &canary{
		member:  s.newMember(version, program, lines),
		rollout: rec.Candidate.Rollout.withDefaults(),
		since:   rec.Candidate.At,
	}
	c.member.canary, c.member.isCanary = c, true
	return c, nil
}

// finishCanary ends a canary and says so in the worker's log.
func (s *slot) finishCanary(ctx context.Context, rec *Record, promote bool, why string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	what := "the canary is rolled back: "
	if promote {
		what = "the canary is promoted: "
	}
	note := text.Clip(what+why, 1000)
	_, err := s.host.endCanary(ctx, rec, promote, options{by: s.host.cfg.HostID, note: note}, nil)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("worker %s: %s: %w", rec.ID, what, err)
	}
	s.host.lines.add(rec.candidate(), !promote, note)
	s.host.log.Info("hosted worker: canary", "worker", rec.ID, "digest", rec.Candidate.Digest, "outcome", note)
	return nil
}

func withCanaries(members []*member) []*member {
	var both []*member
	for _, m := range members {
		both = append(both, m)
		if m.canary != nil {
			both = append(both, m.canary.member)
		}
	}
	return both
}
