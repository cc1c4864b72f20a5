package presence

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/internal/text"
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
// no Close. It remembers which key announces which process: use one Fleet for as long as
// the program runs. Its methods may be called concurrently.
type Fleet struct {
	js       jetstream.JetStream
	kv       jetstream.KeyValue
	cfg      Config
	key      ed25519.PrivateKey
	registry *registry
}

// Open returns the fleet of cfg.Bucket. It creates a missing bucket. A KeyFile that cannot
// be read is an error.
func Open(ctx context.Context, js jetstream.JetStream, cfg Config) (*Fleet, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	_, key, err := ed25519.GenerateKey(nil)
	if cfg.KeyFile != "" {
		key, err = readKey(cfg.KeyFile)
	}
	if err != nil {
		return nil, fmt.Errorf("presence: KeyFile: %w", err)
	}
	kv, err := bucket(ctx, js, cfg)
	if err != nil {
		return nil, err
	}
	return &Fleet{js, kv, cfg, key, newRegistry(cfg.TTL)}, nil
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
				slices.SortFunc(list, func(a, b Process) int {
					return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.ID, b.ID))
				})
				return list, nil
			}
			p, _ := f.read(e)
			list = append(list, *p)
		}
	}
}

// Get returns one process, or ErrNotFound. The id is the whole one: SERVICE.INSTANCE.
func (f *Fleet) Get(ctx context.Context, id string) (Process, error) {
	if !validKey.MatchString(id) {
		return Process{}, fmt.Errorf("%w: %q", ErrNotFound, text.Clip(id, maxShown))
	}
	e, err := f.kv.Get(ctx, id)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		return Process{}, fmt.Errorf("%w: %q", ErrNotFound, id)
	case err != nil:
		return Process{}, fmt.Errorf("presence: get %s: %w", id, err)
	}
	p, _ := f.read(e)
	return *p, nil
}
