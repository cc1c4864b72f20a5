package presence

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Errors of a Fleet.
var (
	// ErrNotFound is returned when no process with that id announces itself.
	ErrNotFound = errors.New("presence: no such process")
	// ErrUnreachable is returned when a process did not answer a command. The
	// process may have got the command: check its phase before you try again.
	ErrUnreachable = errors.New("presence: the process does not answer")
	// ErrRefused is wrapped by the error of a command that a process refused. The
	// error's text has the process's reason.
	ErrRefused = errors.New("presence: the process refused")
	// ErrNoJournal is returned by [Fleet.Events] when Config.Journal is JournalOff.
	ErrNoJournal = errors.New("presence: this fleet keeps no journal")
)

// Fleet is an operator's view of all processes. It keeps nothing open, so there is
// no Close. Its methods may be called concurrently.
type Fleet struct {
	js  jetstream.JetStream
	kv  jetstream.KeyValue
	cfg Config
}

// Open returns the fleet of cfg.Bucket. It creates a missing bucket.
func Open(ctx context.Context, js jetstream.JetStream, cfg Config) (*Fleet, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	kv, err := bucket(ctx, js, cfg)
	if err != nil {
		return nil, err
	}
	return &Fleet{js, kv, cfg}, nil
}

// decode reads one announcement. When it cannot read one, for example that of a newer
// version, it returns a Process whose Reason says so.
func decode(e jetstream.KeyValueEntry) Process {
	var p Process
	if err := json.Unmarshal(e.Value(), &p); err != nil {
		p = Process{}
		p.Status.Report.Reason = "its announcement cannot be read: " + err.Error()
	}
	p.ID, p.SeenAt = e.Key(), e.Created()
	return p
}

// List returns every process, sorted by service and id.
func (f *Fleet) List(ctx context.Context) ([]Process, error) {
	watch, err := f.kv.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return nil, fmt.Errorf("presence: list: %w", err)
	}
	defer func() { _ = watch.Stop() }()
	var list []Process
	for {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("presence: list: %w", ctx.Err())
		case e, ok := <-watch.Updates():
			switch {
			case !ok:
				return nil, errors.New("presence: list: the watch ended")
			case e == nil: // the list is complete
				slices.SortFunc(list, func(a, b Process) int { return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.ID, b.ID)) })
				return list, nil
			}
			list = append(list, decode(e))
		}
	}
}

// Get returns one process, or ErrNotFound.
func (f *Fleet) Get(ctx context.Context, id string) (Process, error) {
	if !validID.MatchString(id) {
		return Process{}, fmt.Errorf("%w: %q", ErrNotFound, id)
	}
	e, err := f.kv.Get(ctx, id)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return Process{}, fmt.Errorf("%w: %q", ErrNotFound, id)
	case err != nil:
		return Process{}, fmt.Errorf("presence: get %s: %w", id, err)
	}
	return decode(e), nil
}

// Drain asks a process to stop as a signal would, and returns the process's phase once
// it has agreed. who names the operator in the process's log.
func (f *Fleet) Drain(ctx context.Context, id, reason, who string) (phase string, err error) {
	return f.ask(ctx, id, command{"drain", reason, who})
}

// Suspend asks a process to report that it is not ready until Resume. The reason must
// not be empty.
func (f *Fleet) Suspend(ctx context.Context, id, reason, who string) (phase string, err error) {
	return f.ask(ctx, id, command{"suspend", reason, who})
}

// Resume ends a suspension.
func (f *Fleet) Resume(ctx context.Context, id, who string) (phase string, err error) {
	return f.ask(ctx, id, command{Do: "resume", Who: who})
}

func (f *Fleet) ask(ctx context.Context, id string, c command) (string, error) {
	if _, err := f.Get(ctx, id); err != nil {
		return "", err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("presence: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CommandTimeout)
	defer cancel()
	m, err := f.js.Conn().RequestWithContext(ctx, commandSubject(f.cfg, id), text)
	if err != nil {
		if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, context.DeadlineExceeded) {
			return "", fmt.Errorf("%w: %s: %w", ErrUnreachable, id, err)
		}
		return "", fmt.Errorf("presence: %s %s: %w", c.Do, id, err)
	}
	var a answer
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return "", fmt.Errorf("presence: %s %s: its answer: %w", c.Do, id, err)
	}
	if a.Error != "" {
		return a.Phase, fmt.Errorf("%w: %s", ErrRefused, a.Error)
	}
	return a.Phase, nil
}
