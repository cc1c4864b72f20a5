package host

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/host/fetch"
)

// Spec describes a hosted worker. The API, REST and the command line have the same
// fields. [Host.Create] makes a new worker of it. [Host.Apply] makes a worker be as its
// spec says.
type Spec struct {
	// ID is the worker's id, which never changes: 1 to 100 letters, digits, - and _.
	// Create chooses a random one when it is empty. Apply needs one.
	ID string
	// Tenant says whose worker it is: it gets what Config.Grants has for this tenant.
	// It consists of letters, digits, - and _, or is empty. It never changes.
	Tenant string
	// MIMEType selects the engine that runs the code. It never changes.
	MIMEType string
	// Code is the worker's code. Set either Code or URL.
	Code []byte
	// URL is where the host gets the code, under the policy of Config.Fetch.
	URL string
	// Digest, when not empty, is the SHA-256 that the code must have, in hex.
	Digest string
	// Topic is the subject that feeds the worker. It may have wildcards. A stream
	// must have it. The worker handles messages published after its creation. On a
	// work queue it also handles messages that wait already. A worker that joins a
	// group takes part from the group's position in the stream. Topic never changes.
	Topic string
	// Group is the group that the worker joins; empty means none. The members of a
	// group handle one message at a time among them all, across hosts. The topics
	// of one group must be in one stream. Group never changes.
	Group string
	// OutputTopic is the topic of what the handler returns, and of outputs that have
	// none of their own. Without it the host drops and counts them: Tally.Discarded.
	OutputTopic string
	// Key is the header whose first value is a message's key: messages with one key
	// are handled in order. Defaults to [HeaderKey]. A message without the header has
	// its subject as key. A change holds for messages that arrive after it.
	Key string
	// Limits lower those of the host.
	Limits engine.Limits
	// Env and Secrets are names of variables that the code gets. Config.Grants has
	// their values. A name that it does not grant to the tenant is refused.
	Env, Secrets []string
	// HTTP says which HTTP requests the code may send. Defaults to none.
	HTTP HTTP
	// Signature, when not empty, is the signature of the code: see package codesign. Code
	// of a tenant whose Grant has keys needs one.
	Signature []byte
	// Rollout says how a new version replaces the one before it.
	Rollout Rollout
	// Rate bounds how many messages the worker handles in a time. A change holds at once.
	Rate Rate
	// By and Note say who makes the change and why, for the history.
	By, Note string
}

// maxNames is how many variables and secrets a worker may have, each.
const maxNames = 100

// validate returns an error that names each invalid field.
func (h *Host) validate(s *Spec) error {
	errs := []error{checkID("id", s.ID), s.Limits.Validate(), s.Rate.validate(), s.Rollout.validate(), s.HTTP.validate()}
	if s.Tenant != "" {
		errs = append(errs, checkID("tenant", s.Tenant))
	}
	if s.Group != "" {
		errs = append(errs, checkID("group", s.Group))
	}
	if (s.URL == "") == (len(s.Code) == 0) {
		errs = append(errs, fmt.Errorf("%w: give either Code or URL", ErrInvalid))
	}
	if !validPattern(s.Topic) {
		errs = append(errs, fmt.Errorf("topic %.200q: %w: want tokens between single dots, "+
			"* for one token and > for the rest", s.Topic, ErrInvalid))
	}
	if s.OutputTopic != "" && !engine.ValidTopic(s.OutputTopic) {
		errs = append(errs, fmt.Errorf("output topic %.200q: %w: want tokens between single dots, without wildcards",
			s.OutputTopic, ErrInvalid))
	}
	if h.reserved(s.OutputTopic) {
		errs = append(errs, fmt.Errorf("output topic %.200q: %w: %w", s.OutputTopic, ErrInvalid, errReserved))
	}
	if len(s.Key) > 100 || strings.ContainsFunc(s.Key, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == ':' }) {
		errs = append(errs, fmt.Errorf("key %.200q: %w: want the name of a header", s.Key, ErrInvalid))
	}
	errs = append(errs, checkNames(s.Env, s.Secrets))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	_, err := h.cfg.Engines.Lookup(s.MIMEType)
	return err
}

// checkNames returns an error that names each invalid variable and secret.
func checkNames(env, secrets []string) error {
	if len(env) > maxNames || len(secrets) > maxNames {
		return fmt.Errorf("env, secrets: %w: %d and %d names are more than %d", ErrInvalid, len(env), len(secrets), maxNames)
	}
	var errs []error
	names := slices.Sorted(slices.Values(slices.Concat(env, secrets)))
	for i, name := range names {
		if err := engine.CheckName(name); err != nil {
			errs = append(errs, fmt.Errorf("env, secrets: %w: %w", ErrInvalid, err))
		}
		if i > 0 && name == names[i-1] {
			errs = append(errs, fmt.Errorf("env, secrets: %w: %.100s is there twice", ErrInvalid, name))
		}
	}
	return errors.Join(errs...)
}

// applyTo writes the fields that may change into a record.
func (s *Spec) applyTo(r *Record) {
	r.OutputTopic, r.Key = s.OutputTopic, s.Key
	r.Limits, r.Rate, r.Rollout = s.Limits, s.Rate, s.Rollout
	r.Env, r.Secrets = slices.Sorted(slices.Values(s.Env)), slices.Sorted(slices.Values(s.Secrets))
	r.HTTP = s.HTTP.sorted()
}

// Difference is a field of a spec whose value is another one than the worker's.
type Difference struct {
	Field string // as in the API: "code", "outputTopic", "limits.time"
	From  string // the worker's value; "" for none
	To    string // the spec's; a code is named by its digest
}

// Plan says what [Host.Apply] changes.
type Plan struct {
	Create      bool // the worker does not exist
	Differences []Difference
}

// field is a field of a spec as the API names it, and its value as people write it.
type field struct{ name, text string }

// record returns what the spec says about a worker whose code has this digest.
func (s *Spec) record(digest string) *Record {
	r := &Record{
		ID:        s.ID,
		Tenant:    s.Tenant,
		MIMEType:  s.MIMEType,
		Topic:     s.Topic,
		Group:     s.Group,
		Digest:    digest,
		Signature: s.Signature,
	}
	s.applyTo(r)
	return r
}

// identity returns the fields that never change.
func (r *Record) identity() []field {
	return []field{
		{"tenant", r.Tenant},
		{"mimeType", r.MIMEType},
		{"topic", r.Topic},
		{"group", r.Group},
	}
}

// settings returns the fields that may change.
func (r *Record) settings() []field {
	digest := ""
	if r.Digest != "" {
		digest = "sha256:" + r.Digest
	}
	l, o := r.Limits, r.Rollout
	return []field{
		{"code", digest},
		{"outputTopic", r.OutputTopic},
		{"key", r.Key},
		{"limits.time", unlessZero(l.Time, "")},
		{"limits.load", unlessZero(l.Load, "")},
		{"limits.memory", unlessZero(l.Memory, "")},
		{"limits.output", unlessZero(l.Output, "")},
		{"limits.outputs", unlessZero(l.Outputs, "")},
		{"rate", r.Rate.String()},
		{"env", nameList(r.Env)},
		{"secrets", nameList(r.Secrets)},
		{"code.signature", base64.StdEncoding.EncodeToString(r.Signature)},
		{"http.allow", nameList(r.HTTP.Allow)},
		{"http.secrets", nameList(r.HTTP.Secrets)},
		{"rollout.canary", unlessZero(o.Canary, "%")},
		{"rollout.for", unlessZero(o.For, "")},
		{"rollout.messages", unlessZero(o.Messages, "")},
		{"rollout.margin", unlessZero(o.Margin, "%")},
	}
}

// unlessZero returns v with a unit, "" for 0.
func unlessZero[T comparable](v T, unit string) string {
	var zero T
	if v == zero {
		return ""
	}
	return fmt.Sprint(v) + unit
}

func nameList(names []string) string {
	return strings.Join(slices.Sorted(slices.Values(names)), ", ")
}

// differences compares fields with their new values.
func differences(before, after []field) []Difference {
	var found []Difference
	for i, was := range before {
		if now := after[i]; was.text != now.text {
			found = append(found, Difference{Field: was.name, From: was.text, To: now.text})
		}
	}
	return found
}

// Diff returns what [Host.Apply] would change, and checks everything that Apply checks.
// It loads new code once and changes nothing.
func (h *Host) Diff(ctx context.Context, spec Spec) (*Plan, error) {
	d, err := h.plan(ctx, &spec)
	if err != nil {
		return nil, fmt.Errorf("worker %s: %w", spec.ID, err)
	}
	return &d.Plan, nil
}

// Apply makes a worker be as its spec says and returns what it has changed. It creates
// a worker that does not exist. It changes nothing of a worker that matches the spec already. It
// leaves a stopped worker stopped. New code, limits, variables or secrets are a new
// version, which the worker takes between two messages, or as Rollout says; while there
// is a canary, Apply compares the spec with it. A rollback brings back code and
// leaves the rest. Fields that never change are refused. It returns the errors of
// [Host.Create], and [ErrNotGranted].
func (h *Host) Apply(ctx context.Context, spec Spec) (*Plan, error) {
	for {
		d, err := h.plan(ctx, &spec)
		if err == nil {
			err = h.carryOut(ctx, &spec, d)
		}
		if err != nil && d != nil && d.Create && errors.Is(err, ErrExists) && ctx.Err() == nil {
			continue // another caller has created it meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("worker %s: %w", spec.ID, err)
		}
		return &d.Plan, nil
	}
}

// deployment is a plan with what it takes to carry it out.
type deployment struct {
	Plan
	rec    *Record // the stored one; the new one for a plan that creates
	code   []byte  // nil when it is the worker's own
	digest string
	source string
	reload bool // the worker needs a new version
	back   bool // the spec asks for the worker's own version while there is a canary
}

func (h *Host) plan(ctx context.Context, spec *Spec) (*deployment, error) {
	if spec.ID == "" {
		return nil, fmt.Errorf("%w: a spec needs an id", ErrInvalid)
	}
	if err := h.validate(spec); err != nil {
		return nil, err
	}
	rec, err := h.Get(ctx, spec.ID)
	if errors.Is(err, ErrNotFound) {
		rec, code, err := h.prepare(ctx, spec)
		if err != nil {
			return nil, err
		}
		none := new(Record)
		all := slices.Concat(differences(none.identity(), rec.identity()), differences(none.settings(), rec.settings()))
		return &deployment{Plan: Plan{Create: true, Differences: all}, rec: rec, code: code}, nil
	}
	if err != nil {
		return nil, err
	}
	if rec.State.leaving() {
		return nil, fmt.Errorf("%w: it is being deleted", ErrExists)
	}
	now := rec.Newest()
	d := &deployment{rec: rec, digest: now.Digest, source: "settings"}
	if spec.URL == "" || spec.Digest != now.Digest { // otherwise the worker has this code
		if d.code, d.source, err = h.source(ctx, spec.Code, spec.URL, spec.Digest); err != nil {
			return nil, err
		}
		if d.digest = fetch.Digest(d.code); d.digest == now.Digest {
			d.code, d.source = nil, "settings"
		}
	}
	wanted := spec.record(d.digest)
	if fixed := differences(now.identity(), wanted.identity()); len(fixed) > 0 {
		f := fixed[0]
		return nil, fmt.Errorf("%w: %s is %q and cannot become %q: delete the worker first, "+
			"or give the new one another id", ErrInvalid, f.Field, f.From, f.To)
	}
	d.Differences = differences(now.settings(), wanted.settings())
	if d.reload = slices.ContainsFunc(d.Differences, needsVersion); !d.reload {
		return d, nil
	}
	if rec.Candidate != nil {
		d.back = !slices.ContainsFunc(differences(rec.settings(), wanted.settings()), needsVersion)
	}
	trial := *now
	spec.applyTo(&trial)
	trial.Signature = spec.Signature
	code := d.code
	if code == nil {
		if code, err = h.readCode(ctx, rec, now.Digest); err != nil {
			return nil, err
		}
	}
	return d, h.try(ctx, &trial, code)
}

// needsVersion reports whether a worker needs a new version for a difference.
func needsVersion(d Difference) bool {
	return d.Field != "outputTopic" && d.Field != "key" && d.Field != "rate" && !strings.HasPrefix(d.Field, "rollout.")
}

func (h *Host) carryOut(ctx context.Context, spec *Spec, d *deployment) error {
	if d.Create {
		_, err := h.create(ctx, spec, d.rec, d.code)
		return err
	}
	if len(d.Differences) == 0 {
		return nil
	}
	if d.back {
		changed, err := h.endCanary(ctx, d.rec, false, options{by: spec.By, note: spec.Note}, spec.applyTo)
		if err != nil {
			return err
		}
		return h.awaitApplied(ctx, changed)
	}
	var v *Version
	if d.reload {
		v = &Version{Digest: d.digest, Source: d.source, Size: len(d.code), Signature: spec.Signature}
		if was, err := d.rec.version(d.digest); d.code == nil && err == nil {
			v.Size = d.rec.History[was].Size
		}
	}
	if d.code != nil {
		if err := h.code.put(ctx, d.rec, d.digest, d.code); err != nil {
			return err
		}
	}
	return h.deploy(ctx, d.rec, v, options{by: spec.By, note: spec.Note}, spec.applyTo)
}
