package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/fetch"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/worker"
)

// CreateRequest describes a worker to be.
type CreateRequest struct {
	// ID names it for ever: 1 to 100 letters, digits, - and _. Empty makes one up.
	ID string
	// MIMEType says which engine runs the code.
	MIMEType string
	// Code is the code; URL is where to get it. One of the two is required.
	Code []byte
	// URL is fetched under the policy of Config.Fetch.
	URL string
	// Digest, when not empty, is the SHA-256 that the code must have, in hex.
	Digest string
	// Topic is the subject that feeds it, which may have wildcards. A stream
	// must have it. Messages from the creation on are handled, and of a stream that
	// is a work queue those that wait too; of a worker that joins a group, those
	// from where the group stands.
	Topic string
	// Group has one message handled at a time among its members, across hosts.
	// The topics of one group must be in one stream.
	Group string
	// OutputTopic is where outputs without a topic go.
	OutputTopic string
	// Limits lower those of the host.
	Limits engine.Limits
	// By and Note say who creates it and why, for the history.
	By, Note string
}

// Option says more about one call.
type Option func(*options)

type options struct {
	by, note, digest string
	refused          error // of the options themselves
}

// By says who asks, and why, for the history.
func By(who, why string) Option { return func(o *options) { o.by, o.note = who, why } }

// WithDigest has the code refused unless it has this SHA-256, in hex.
func WithDigest(digest string) Option { return func(o *options) { o.digest = digest } }

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

// Create makes a worker and returns its id. In this order it looks up the
// engine, gets the code, loads it, stores it and the record, makes the durable
// consumer, and sets it Running; what it did is undone when a step fails, and
// nothing of it stays. From the consumer on no message is missed. Errors wrap
// [ErrInvalid], [engine.ErrNoEngine], [engine.ErrBadCode], [ErrNoTopic],
// [ErrExists], those of package fetch, or say what could not be reached.
func (h *Host) Create(ctx context.Context, req CreateRequest) (id string, err error) {
	rec, code, err := h.prepare(ctx, &req)
	if err != nil {
		return "", fmt.Errorf("create worker: %w", err)
	}
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
	// The record goes only if it is of this life: the id may be another worker's
	// by now, and a write that was not answered may have been done.
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
	return rec.ID, h.settle(ctx, running)
}

// prepare does what needs nothing stored: checks, engine, code, a trial load.
func (h *Host) prepare(ctx context.Context, req *CreateRequest) (*Record, []byte, error) {
	if req.ID == "" {
		req.ID = uid()
	}
	errs := []error{checkID("id", req.ID), req.Limits.Validate()}
	if req.Group != "" {
		errs = append(errs, checkID("group", req.Group))
	}
	if (req.URL == "") == (len(req.Code) == 0) {
		errs = append(errs, fmt.Errorf("%w: give either Code or URL", ErrInvalid))
	}
	if !validPattern(req.Topic) {
		errs = append(errs, fmt.Errorf("topic %.200q: %w: it takes tokens between single dots, * for one and > for the rest", req.Topic, ErrInvalid))
	}
	if req.OutputTopic != "" && !engine.ValidTopic(req.OutputTopic) {
		errs = append(errs, fmt.Errorf("output topic %.200q: %w: it takes tokens between single dots, without wildcards", req.OutputTopic, ErrInvalid))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, nil, err
	}
	if _, err := h.cfg.Engines.Lookup(req.MIMEType); err != nil {
		return nil, nil, err
	}
	if err := h.ensure(ctx); err != nil {
		return nil, nil, err
	}
	stream, err := h.js.StreamNameBySubject(ctx, req.Topic)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil, fmt.Errorf("topic %s: %w: create one that has it", req.Topic, ErrNoTopic)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("topic %s: %w", req.Topic, err)
	}
	now := time.Now().UTC()
	rec := &Record{ID: req.ID, UID: uid(), State: StateDeploying, MIMEType: req.MIMEType, Topic: req.Topic, Stream: stream, Group: req.Group,
		OutputTopic: req.OutputTopic, Limits: req.Limits, Changed: Change{By: req.By, Note: req.Note, At: now}}
	code, source, err := h.source(ctx, req.Code, req.URL, req.Digest)
	if err != nil {
		return nil, nil, err
	}
	rec.addVersion(Version{Digest: fetch.Digest(code), Source: source, Size: len(code), By: req.By, At: now})
	return rec, code, h.try(ctx, rec, code)
}

// source gets code from where the caller says that it is.
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

// try loads code to see whether it can be.
func (h *Host) try(ctx context.Context, rec *Record, code []byte) error {
	p, err := h.loadCode(ctx, rec, code)
	if err != nil {
		return err
	}
	h.closeProgram(rec.ID, p)
	return nil
}

// load makes a program of the code that a record names.
func (h *Host) load(ctx context.Context, rec *Record) (engine.Program, error) {
	ctx, cancel := context.WithTimeout(ctx, h.limits(rec).Load+30*time.Second)
	defer cancel()
	code, err := h.code.get(ctx, rec, rec.Digest)
	if err == nil {
		err = fetch.Verify(code, rec.Digest)
	}
	if err != nil {
		return nil, fmt.Errorf("read code %s: %w", rec.Digest, err)
	}
	return h.loadCode(ctx, rec, code)
}

// StartWorker has a stopped worker handle messages again, from where it was. One
// that failed is tried again. For one that runs it does nothing.
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
	return h.settle(ctx, rec)
}

// StopWorker has a worker finish the message that it handles and take no other.
// Its messages wait. For one that is stopped it does nothing. When the worker
// runs on another host it returns once the wish is stored.
func (h *Host) StopWorker(ctx context.Context, id string, opts ...Option) error {
	rec, err := h.change(ctx, id, optionsOf(opts), func(r *Record) (bool, error) {
		changed := r.State != StateStopped
		r.State, r.Reason = StateStopped, ""
		return changed, nil
	})
	if err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	return h.settle(ctx, rec)
}

// LoadCodeFromContent gives a worker other code. It is loaded first: bad code is
// an error, and the worker goes on with what it had. The change happens between
// two messages; the first that begins after the return has the new code, when
// the worker runs on this host, and within moments elsewhere.
func (h *Host) LoadCodeFromContent(ctx context.Context, id string, code []byte, opts ...Option) error {
	return h.loadNew(ctx, id, code, "", optionsOf(opts))
}

// LoadCodeFromURL is LoadCodeFromContent with code from a URL.
func (h *Host) LoadCodeFromURL(ctx context.Context, id, url string, opts ...Option) error {
	return h.loadNew(ctx, id, nil, url, optionsOf(opts))
}

func (h *Host) loadNew(ctx context.Context, id string, code []byte, url string, o options) error {
	rec, err := h.get(ctx, id)
	if err != nil {
		return fmt.Errorf("load code: %w", err)
	}
	code, source, err := h.source(ctx, code, url, o.digest)
	if err == nil {
		err = h.try(ctx, rec, code)
	}
	if err == nil {
		err = h.code.put(ctx, rec, fetch.Digest(code), code)
	}
	if err != nil {
		return fmt.Errorf("worker %s: %w", id, err)
	}
	err = h.newVersion(ctx, rec, Version{Digest: fetch.Digest(code), Source: source, Size: len(code)}, o)
	var refused *fsm.TransitionError
	if errors.Is(err, ErrNotFound) || errors.As(err, &refused) {
		// The worker was deleted meanwhile, and its code perhaps before this one
		// was stored.
		err = errors.Join(err, h.code.drop(ctx, rec))
	}
	return err
}

// Rollback gives a worker code that it had before, by its digest, or by as many
// of its first digits as tell it from others, eight at least.
func (h *Host) Rollback(ctx context.Context, id, digest string, opts ...Option) error {
	rec, err := h.get(ctx, id)
	if err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	var found *Version
	for i := range rec.History {
		v := &rec.History[i]
		if len(digest) < 8 || !strings.HasPrefix(v.Digest, strings.ToLower(digest)) {
			continue
		}
		if found != nil && found.Digest != v.Digest {
			return fmt.Errorf("roll back worker %s: %w: %s begins more than one digest", id, ErrInvalid, digest)
		}
		found = v
	}
	if found == nil {
		return fmt.Errorf("roll back worker %s to %.80q: %w", id, digest, ErrNoVersion)
	}
	trial := *rec
	trial.Digest = found.Digest
	p, err := h.load(ctx, &trial)
	if err != nil {
		return fmt.Errorf("roll back worker %s: %w", id, err)
	}
	_ = p.Close()
	return h.newVersion(ctx, rec, Version{Digest: found.Digest, Source: "rollback", Size: found.Size}, optionsOf(opts))
}

// newVersion makes v the code of rec's worker.
func (h *Host) newVersion(ctx context.Context, rec *Record, v Version, o options) error {
	v.By, v.At = o.by, time.Now().UTC()
	changed, err := h.change(ctx, rec.ID, o, func(r *Record) (bool, error) {
		if r.UID != rec.UID {
			return false, fmt.Errorf("worker %s: %w: it was deleted meanwhile", rec.ID, ErrNotFound)
		}
		if r.State == StateDeploying || r.State == StateFailed {
			r.State, r.Reason = StateRunning, ""
		}
		r.addVersion(v)
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("load code: %w", err)
	}
	return h.settle(ctx, changed)
}

func (h *Host) get(ctx context.Context, id string) (*Record, error) {
	if err := h.ensure(ctx); err != nil {
		return nil, err
	}
	return h.records.get(ctx, id)
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

// settle waits until this host has done what a record says, if it is this
// host's to do.
func (h *Host) settle(ctx context.Context, rec *Record) error {
	if h.Status() != worker.StatusRunning {
		return nil
	}
	err := h.await(ctx, func() bool {
		switch {
		case h.Status() != worker.StatusRunning, h.recovery == recoveryOff, h.draining.Load(), !h.members.held(),
			owner(h.members.live(), rec.slot()) != h.cfg.HostID:
			return true
		}
		if now := h.known[rec.ID]; now != nil && (now.UID != rec.UID || now.revision > rec.revision) {
			return true // it was changed again
		}
		s := h.slots[rec.slot()]
		if s == nil {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.applied[rec.ID] >= rec.revision
	})
	if err != nil {
		return fmt.Errorf("worker %s: it is stored, and not yet carried out: %w", rec.ID, err)
	}
	return nil
}

// hold keeps a message of a group of whose members for it none is loaded, so that
// it does not hold up the group. slot.giveBack gives it back once one is.
func (h *Host) hold(ctx context.Context, slot string, d *delivery) error {
	return h.letters.put(ctx, h.letters.held+slot, slot+":"+messageKey(d), &DeadLetter{
		Reason: "no worker for it is running", Topic: d.msg.Subject(), Message: d.id, Header: d.header, Data: d.data,
	})
}
