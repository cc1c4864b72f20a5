package workflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/worker"
)

// Hook is a reaction to what happens to the entities of a workflow: to send an
// invoice when an order is "paid", to call a pilot when a mission waits too long. The
// Manager calls it at least once for each transition, also when every process was away
// when the transition was stored.
//
//	err := mgr.Register("drone-survey", newMission, phases, workflow.WithJournal(),
//		workflow.WithHook(workflow.Hook{
//			Name: "invoice", On: []string{"completed"},
//			Do: func(ctx context.Context, r workflow.Reaction) error {
//				return billing.Charge(ctx, r.Record.EntityID, billing.IdempotencyKey(r.ID))
//			},
//		}))
//	app.Lead("hooks", lease, mgr.Hooks)
type Hook struct {
	// Name identifies the hook in its workflow, for ever: the server keeps its progress
	// and its dead letters under it. Letters, digits, - and _.
	Name string
	// On are the phases whose entry it reacts to; [PhaseDeleted] is one of them.
	// Timers are the timers whose firing it reacts to, also of one that moves the
	// entity. With neither it reacts to every transition and every timer.
	On, Timers []string
	// Do reacts. Its context has the trace of the write: see [Trace]. An error, a panic, or a call that takes longer than Timeout is a
	// failure. Calls for one entity come one after the other, in the order of its
	// writes; those for different entities run side by side. After a crash, or while a
	// lease changes hands, a call can come again, and an earlier one may still run in
	// the process that lost the lease: see [Reaction.ID]. Do may call the Manager.
	Do func(ctx context.Context, r Reaction) error
	// Timeout bounds a call: its context ends then. Defaults to 30 s. While a call
	// ignores its context, no other call for the same entity is made; other entities
	// go on.
	Timeout time.Duration
	// Attempts is how often a reaction is tried before it is a dead letter and the
	// entity's next one is due. Defaults to 12, with the default Backoff about half an
	// hour. See [Manager.DeadLetters].
	Attempts int
	// Backoff is the pause after a failure. Defaults to 1 s, doubling to 5 minutes.
	Backoff worker.Backoff
	// Concurrency is how many entities it reacts to at once. Defaults to 16.
	Concurrency int
	// Replay makes a new hook begin with the journal's first write. Otherwise it begins
	// with what happens after [Manager.Hooks] has run it for the first time.
	Replay bool
}

// WithHook adds a hook to a workflow, which needs [WithJournal] and a [HookBucket].
func WithHook(h Hook) RegisterOption { return func(r *registration) { r.hooks = append(r.hooks, h) } }

// HookBucket declares where the hooks of a bucket's workflows keep their progress and
// dead letters, for broker.Config.Buckets.
func HookBucket(bucket string) jetstream.KeyValueConfig {
	return jetstream.KeyValueConfig{
		Bucket:      hooksOf(bucket),
		Description: "progress and dead letters of the hooks of " + bucket,
		History:     1,
		Storage:     jetstream.FileStorage,
	}
}

func hooksOf(bucket string) string { return bucket + "_HOOKS" }

// Reaction is what a hook is called with.
type Reaction struct {
	// ID identifies the transition. Every call for it has this ID, and no other
	// transition ever has it: give it to the effect as its idempotency key.
	ID string
	// Record is the entity as the transition stored it. By now it may have changed:
	// an effect that must not overtake a later one compares Record.Revision, which
	// rises with each write of the entity. After a deletion it has no Participant.
	Record Record
	// TransitionEvent is the transition. For a reminder From and To are the phase.
	TransitionEvent
	// Timer is the timer that fired, "" for none.
	Timer string
	// Attempt is 1 for the first call, as far as this process knows.
	Attempt int
	// Gap says that earlier reactions of this entity may be missing: the journal does not
	// have the change of phase before this one, or has it no more. The record is complete.
	Gap bool
}

var hookName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// checkHooks returns what is wrong with the hooks of a workflow, and sets defaults.
func (r *registration) checkHooks() error {
	var faults []error
	fault := func(h Hook, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%w: hook %q: "+format, append([]any{ErrInvalidParticipant, h.Name}, args...)...))
	}
	seen := make(map[string]bool)
	for i := range r.hooks {
		h := &r.hooks[i]
		if !hookName.MatchString(h.Name) {
			fault(*h, "its name must be 1 to 64 letters, digits, - and _")
		}
		if seen[h.Name] {
			fault(*h, "there are two of that name")
		}
		seen[h.Name] = true
		if h.Do == nil {
			fault(*h, "Do is nil")
		}
		if !r.journaled {
			fault(*h, "the workflow has no journal: add WithJournal")
		}
		for _, phase := range h.On {
			if phase != PhaseDeleted && !r.table.Has(phase) {
				fault(*h, "the table has no phase %q", phase)
			}
		}
		if h.Timeout < 0 || h.Attempts < 0 || h.Concurrency < 0 {
			fault(*h, "Timeout is %v, Attempts %d and Concurrency %d, want 0 or more", h.Timeout, h.Attempts, h.Concurrency)
		}
		if err := h.Backoff.Validate(); err != nil {
			fault(*h, "%w", err)
		}
		h.Timeout = cmp.Or(h.Timeout, 30*time.Second)
		h.Attempts = cmp.Or(h.Attempts, 12)
		h.Concurrency = cmp.Or(h.Concurrency, 16)
		h.Backoff.Min = cmp.Or(h.Backoff.Min, time.Second)
		h.Backoff.Max = cmp.Or(h.Backoff.Max, max(5*time.Minute, h.Backoff.Min))
		h.Backoff = h.Backoff.WithDefaults()
	}
	return errors.Join(faults...)
}

// wants reports whether the hook reacts to an entry.
func (h *Hook) wants(r *registration, e *entry) bool {
	if e.workflow != r.workflow {
		return false
	}
	if len(h.On) == 0 && len(h.Timers) == 0 {
		return e.reacts()
	}
	if e.fired != "" && slices.Contains(h.Timers, e.fired) {
		return true
	}
	phase := e.entered
	if e.deleted() {
		phase = PhaseDeleted
	}
	return (e.deleted() || e.moved()) && slices.Contains(h.On, phase)
}

// reaction makes a reaction of an entry. before returns an earlier revision: a deletion
// does not have the entity's id.
func (r *registration) reaction(e *entry, before func(revision uint64) (*entry, error)) Reaction {
	re := Reaction{ID: r.reactionID(e.key, written{e.revision, e.at}), Record: r.record(e), Timer: e.fired}
	if e.deleted() {
		re.Record = Record{Workflow: r.workflow, Key: e.key, Revision: e.revision, UpdatedAt: e.at, Phase: PhaseDeleted}
		if e.on > 0 {
			if last, err := before(e.on); err == nil && last.key == e.key {
				re.Record.EntityID = r.record(last).EntityID
			}
		}
	}
	if event, ok := r.event(e, "", true); ok {
		re.TransitionEvent = event
	} else {
		re.TransitionEvent = TransitionEvent{
			From:      re.Record.Phase,
			To:        re.Record.Phase,
			At:        e.at,
			Revision:  e.revision,
			Triggered: e.source,
			Trace:     e.trace,
		}
	}
	return re
}

// reactionID returns the ID of a reaction. A bucket that was restored from a backup gives a
// revision again, at another time.
func (r *registration) reactionID(key string, w written) string {
	return fmt.Sprintf("%s/%s@%d.%d", r.name, key, w.revision, w.at.UnixNano())
}
