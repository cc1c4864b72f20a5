package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/fetch"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Option adds detail to one call.
type Option func(*options)

type options struct {
	by, note, digest string
	signature        []byte
	now              bool  // the new version replaces the old one at once, without a canary
	refused          error // set when an option is nil
}

// By records in the history who makes the change, and why.
func By(who, why string) Option { return func(o *options) { o.by, o.note = who, why } }

// Digest makes the call refuse code that does not have this SHA-256, in hex.
func Digest(digest string) Option { return func(o *options) { o.digest = digest } }

// Signature gives the signature of the code: see package codesign.
func Signature(signature []byte) Option {
	return func(o *options) { o.signature = signature }
}

func optionsOf(opts []Option) options {
	var o options
	for i, opt := range opts {
		if opt == nil {
			o.refused = fmt.Errorf("option %d is nil", i+1)
			continue
		}
		opt(&o)
	}
	return o
}

func (o options) change() Change { return Change{By: o.by, Note: o.note} }

// Create makes a worker and returns its id. It looks up the engine, gets the code,
// loads it, stores the code and the record, makes the durable consumer, and sets
// the worker Running, in this order. When a step fails, Create undoes the earlier
// ones and nothing stays behind. The worker misses no message that is published
// once its consumer exists. Errors wrap [ErrInvalid], [engine.ErrNoEngine],
// [engine.ErrBadCode], [ErrNoTopic], [ErrExists] or an error of package fetch, or say
// what could not be reached.
func (h *Host) Create(ctx context.Context, req Spec) (id string, err error) {
	rec, code, err := h.prepare(ctx, &req)
	if err != nil {
		return "", fmt.Errorf("create worker: %w", err)
	}
	return h.create(ctx, &req, rec, code)
}

// create stores and starts what prepare has returned.
func (h *Host) create(ctx context.Context, req *Spec, rec *Record, code []byte) (id string, err error) {
	undo := func(what string, err error, steps ...func(context.Context) error) (string, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		errs := []error{fmt.Errorf("create worker %s: %s: %w", rec.ID, what, err)}
		for _, step := range steps {
			if err := step(ctx); err != nil {
				errs = append(errs, fmt.Errorf("undo: %w", err))
			}
		}
		return "", errors.Join(errs...)
	}
	dropCode := func(ctx context.Context) error { return h.code.drop(ctx, rec) }
	if err := h.code.put(ctx, rec, fetch.Digest(code), code); err != nil {
		return undo("store code", err, dropCode)
	}
	// Remove the record only if it has this UID: the id may belong to another
	// worker by now. Remove it also after a failed write, because the server may
	// have carried out a write whose answer was lost.
	dropRecord := func(ctx context.Context) error {
		err := h.delete(ctx, rec.ID, rec.UID, options{by: req.By, note: "create failed"})
		if errors.Is(err, ErrNotFound) {
			err = nil
		}
		return err
	}
	if err := h.records.create(ctx, rec); err != nil {
		return undo("store record", err, dropRecord, dropCode)
	}
	if err := h.subscribe(ctx, rec); err != nil {
		return undo("subscribe", err, dropRecord, dropCode)
	}
	running, err := h.records.update(ctx, rec.ID, rec.Changed, func(r *Record) (bool, error) {
		if r.UID != rec.UID {
			return false, fmt.Errorf("%w: it was deleted meanwhile", ErrNotFound)
		}
		changed := r.State == StateDeploying
		r.State = StateRunning
		return changed, nil
	})
	if err != nil {
		return undo("set it Running", err, dropRecord, dropCode)
	}
	return rec.ID, h.awaitApplied(ctx, running)
}

// prepare does the steps that store nothing: it checks the request, looks up the
// engine, gets the code and loads it once.
func (h *Host) prepare(ctx context.Context, req *Spec) (*Record, []byte, error) {
	if req.ID == "" {
		req.ID = uid()
	}
	if err := h.validate(req); err != nil {
		return nil, nil, err
	}
	if err := h.ensure(ctx); err != nil {
		return nil, nil, err
	}
	stream, err := h.js.StreamNameBySubject(ctx, req.Topic)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil, fmt.Errorf("topic %s: %w: create a stream that has it", req.Topic, ErrNoTopic)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("topic %s: %w", req.Topic, err)
	}
	if _, err := h.streamOf(ctx, stream); err != nil {
		return nil, nil, fmt.Errorf("topic %s: %w: %w", req.Topic, ErrInvalid, err)
	}
	now := time.Now().UTC()
	code, source, err := h.source(ctx, req.Code, req.URL, req.Digest)
	if err != nil {
		return nil, nil, err
	}
	rec := req.record("")
	rec.UID, rec.State, rec.Stream = uid(), StateDeploying, stream
	rec.Changed = Change{By: req.By, Note: req.Note, At: now}
	version := newVersion(code, source, req.Signature)
	version.By, version.At = req.By, now
	rec.addVersion(*version)
	return rec, code, h.try(ctx, rec, code)
}

// source returns the code and where it came from: code itself, or what url serves.
func (h *Host) source(ctx context.Context, code []byte, url, digest string) ([]byte, string, error) {
	if url != "" {
		code, err := h.fetcher.Get(ctx, url, digest)
		return code, url, err
	}
	if int64(len(code)) > h.cfg.MaxCode {
		return nil, "", fmt.Errorf("code: %w: %d bytes are more than %d", fetch.ErrTooLarge, len(code), h.cfg.MaxCode)
	}
	return code, "content", fetch.Verify(code, digest)
}

// try loads code to check it, and closes the program. It returns the error of the
// load.
func (h *Host) try(ctx context.Context, rec *Record, code []byte) error {
	leave, err := h.budget.load(ctx, len(code))
	if err != nil {
		return err
	}
	defer leave()
	p, err := h.loadCode(ctx, rec, code, false, nil)
	if err != nil {
		return err
	}
	h.closeProgram(rec.ID, p)
	return nil
}

// load makes a program of the code that a record names. With later, an engine that runs
// code in children starts none before the first message. lines takes what the code prints.
func (h *Host) load(ctx context.Context, rec *Record, later bool, lines *printer) (engine.Program, error) {
	ctx, cancel := context.WithTimeout(ctx, h.limits(rec).Load+30*time.Second)
	defer cancel()
	size := 0
	if i, err := rec.version(rec.Digest); err == nil {
		size = rec.History[i].Size
	}
	leave, err := h.budget.load(ctx, size)
	if err != nil {
		return nil, err
	}
	defer leave()
	code, err := h.readCode(ctx, rec, rec.Digest)
	if err != nil {
		return nil, err
	}
	return h.loadCode(ctx, rec, code, later, lines.print)
}

// readCode returns a version of a worker's code.
func (h *Host) readCode(ctx context.Context, rec *Record, digest string) ([]byte, error) {
	if err := h.states.asking.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("read code %s: %w", digest, err)
	}
	defer h.states.asking.Release(1)
	code, err := h.code.get(ctx, rec, digest)
	if err == nil {
		err = fetch.Verify(code, digest)
	}
	if err != nil {
		return nil, fmt.Errorf("read code %s: %w", digest, err)
	}
	return code, nil
}

// StartWorker sets a stopped worker Running. The worker continues with the first
// message that it has not handled. StartWorker tries a failed worker again and does
// nothing for a worker that runs.
func (h *Host) StartWorker(ctx context.Context, id string, opts ...Option) error {
	rec, err := h.change(ctx, id, optionsOf(opts), func(r *Record) (bool, error) {
		changed := r.State != StateRunning && r.State != StateDeploying
		if changed {
			r.State, r.Reason = StateRunning, ""
		}
		return changed, nil
	})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return h.awaitApplied(ctx, rec)
}

// StopWorker stops a worker once it has finished the message that it handles. New
// messages wait. For a stopped worker it does nothing. When the worker runs on
// another host, StopWorker returns once the new state is stored.
func (h *Host) StopWorker(ctx context.Context, id string, opts ...Option) error {
	rec, err := h.change(ctx, id, optionsOf(opts), func(r *Record) (bool, error) {
		changed := r.State != StateStopped
		r.State, r.Reason = StateStopped, ""
		return changed, nil
	})
	if err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return h.awaitApplied(ctx, rec)
}

// LoadCodeFromContent replaces a worker's code. It loads the new code once before it
// stores it: bad code is an error, and the worker keeps its old code. The worker
// changes code between two messages, or as its Rollout says. On this host the first
// message that begins after the return runs the new code; on another host the change
// follows within moments.
func (h *Host) LoadCodeFromContent(ctx context.Context, id string, code []byte, opts ...Option) error {
	return h.loadNew(ctx, id, code, "", optionsOf(opts))
}

// LoadCodeFromURL is LoadCodeFromContent with code from a URL.
func (h *Host) LoadCodeFromURL(ctx context.Context, id, url string, opts ...Option) error {
	return h.loadNew(ctx, id, nil, url, optionsOf(opts))
}

func (h *Host) loadNew(ctx context.Context, id string, code []byte, url string, o options) error {
	rec, err := h.Get(ctx, id)
	if err != nil {
		return fmt.Errorf("load code: %w", err)
	}
	code, source, err := h.source(ctx, code, url, o.digest)
	if err == nil {
		trial := *rec.Newest()
		trial.Signature = o.signature
		err = h.try(ctx, &trial, code)
	}
	if err == nil {
		err = h.code.put(ctx, rec, fetch.Digest(code), code)
	}
	if err != nil {
		return fmt.Errorf("worker %s: %w", id, err)
	}
	if err := h.deploy(ctx, rec, newVersion(code, source, o.signature), o, func(*Record) {}); err != nil {
		return fmt.Errorf("load code: %w", err)
	}
	return nil
}

// Rollback gives a worker an earlier version of its code. digest is the version's
// digest, or at least its first eight digits. When the digits match more than one
// version, the error wraps [ErrInvalid]; when they match none, [ErrNoVersion]. The
// version takes over between two messages, and a canary ends. Rollback to the worker's own
// version only ends the canary.
func (h *Host) Rollback(ctx context.Context, id, digest string, opts ...Option) error {
	rec, err := h.Get(ctx, id)
	if err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	o := optionsOf(opts)
	if rec.Candidate != nil && len(digest) >= 8 && strings.HasPrefix(rec.Digest, strings.ToLower(digest)) {
		changed, err := h.endCanary(ctx, rec, false, o, nil)
		if err != nil {
			return fmt.Errorf("roll back: %w", err)
		}
		return h.awaitApplied(ctx, changed)
	}
	i, err := rec.version(digest)
	if err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	found := rec.History[i]
	trial := *rec
	trial.Digest, trial.Signature, o.now = found.Digest, found.Signature, true
	p, err := h.load(ctx, &trial, false, h.printer(&trial))
	if err != nil {
		return fmt.Errorf("roll back worker %s: %w", id, err)
	}
	h.closeProgram(id, p)
	back := &Version{Digest: found.Digest, Source: "rollback", Size: found.Size, Signature: found.Signature}
	if err := h.deploy(ctx, rec, back, o, func(*Record) {}); err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

func newVersion(code []byte, source string, signature []byte) *Version {
	return &Version{Digest: fetch.Digest(code), Source: source, Size: len(code), Signature: signature}
}

// deploy changes rec's worker, and makes v its code unless v is nil. It removes code
// that was stored for v when the worker was deleted meanwhile.
func (h *Host) deploy(ctx context.Context, rec *Record, v *Version, o options, set func(*Record)) error {
	changed, err := h.change(ctx, rec.ID, o, func(r *Record) (bool, error) {
		if r.UID != rec.UID {
			return false, fmt.Errorf("worker %s: %w: it was deleted meanwhile", rec.ID, ErrNotFound)
		}
		if v != nil {
			v.By, v.At = o.by, time.Now().UTC()
		}
		r.replace(v, set, o.now)
		return true, nil
	})
	if err != nil {
		gone := errors.Is(err, ErrNotFound) || errors.Is(err, workflow.ErrTerminalPhase)
		if v != nil && (gone || hasType[*fsm.TransitionError](err)) {
			// The deletion may have removed the worker's code before this version was
			// stored, so remove the code again.
			err = errors.Join(err, h.code.drop(ctx, rec))
		}
		return err
	}
	for _, old := range rec.History {
		names := func(r *Record) bool {
			return r.Digest == old.Digest || slices.ContainsFunc(r.History, func(v Version) bool { return v.Digest == old.Digest })
		}
		if names(changed) {
			continue
		}
		if latest, err := h.records.get(ctx, rec.ID); err != nil || names(latest) {
			continue // another update has just stored it again
		}
		if err := h.code.dropVersion(ctx, rec, old.Digest); err != nil {
			h.log.Warn("hosted worker: remove code that is too old for a rollback", "worker", rec.ID, "error", err)
		}
	}
	return h.awaitApplied(ctx, changed)
}

func (h *Host) change(ctx context.Context, id string, o options, change func(*Record) (bool, error)) (*Record, error) {
	if o.refused != nil {
		return nil, o.refused
	}
	if err := h.ensure(ctx); err != nil {
		return nil, err
	}
	return h.records.update(ctx, id, o.change(), change)
}

// awaitApplied waits until this host has applied a record, if the worker belongs to this
// host.
func (h *Host) awaitApplied(ctx context.Context, rec *Record) error {
	if h.Status() != worker.StatusRunning {
		return nil
	}
	err := h.await(ctx, func() bool {
		switch {
		case h.Status() != worker.StatusRunning, h.recovery == recoveryOff, h.draining.Load(), !h.members.held(),
			owner(h.members.live(), rec.slot()) != h.cfg.HostID:
			return true
		}
		if now := h.known[rec.ID]; now != nil && now.revision > rec.revision {
			return true // it was changed again; one of another UID and an older revision is not removed here yet
		}
		s := h.slots[rec.slot()]
		if s == nil {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		w := s.workers[rec.ID]
		return w != nil && w.applied >= rec.revision
	})
	if err != nil {
		return fmt.Errorf("worker %s: the change is stored, but not carried out yet: %w", rec.ID, err)
	}
	return nil
}
