package presence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unique"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker/identity"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/worker"
)

// A process's key in the bucket is its id: SERVICE.INSTANCE. A NATS permission on
// "$KV.BUCKET.SERVICE.>" therefore lets a client announce processes of one service only.
// Processes of a version without signatures have a key without a service.
var validKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}\.[A-Za-z0-9_-]{1,200}$`)

// maxShown bounds what is shown of a key that no process can have, in bytes.
const maxShown = 200

// serviceToken returns the service's part of an id.
func serviceToken(name string) string {
	token := identity.Token(name)
	if token == "" {
		return "-"
	}
	return token[:min(len(token), 100)]
}

// entryPurpose is what an entry of the bucket is sealed for.
func entryPurpose(c Config, key string) string { return "entry " + c.Bucket + " " + key }

// read reads one entry. It returns what the process has announced, which the caller must
// not change; Suspect says when the entry is not that. alive reports whether the entry is
// a sign of life of its process.
func (f *Fleet) read(e jetstream.KeyValueEntry) (p *Process, alive bool) {
	now := time.Now()
	id := e.Key()
	if !validKey.MatchString(id) {
		return readUnsigned(e), true
	}
	forged := func(why string) (*Process, bool) {
		p, known := f.book.forged(now, id, "another client has written its entry: "+why)
		if !known {
			p.Service, _, _ = strings.Cut(id, ".")
			p.SeenAt = e.Created()
		}
		return p, !known
	}
	p, o, err := f.open(id, e.Value())
	if err != nil {
		return forged(err.Error())
	}
	p.SeenAt = e.Created()
	return f.book.announced(now, p, o, e.Revision())
}

// unseal opens an announcement of id. One whose parts have another form than in this
// release is of a process whose Status is empty but for the reason.
func (f *Fleet) unseal(id string, sealed []byte) (*Process, *opened, error) {
	key, body, err := unseal(entryPurpose(f.cfg, id), sealed)
	if err != nil {
		return nil, nil, err
	}
	var s said
	p := &s.Process
	var form *json.UnmarshalTypeError
	switch err := json.Unmarshal(body, &s); {
	case err == nil:
	case errors.As(err, &form): // the rest was read: the process is of a release with another form
		p.Status = lifecycle.Status{At: p.AnnouncedAt}
		p.Status.Report.Reason = "its announcement cannot be read: " + text.Clip(err.Error(), maxShown)
	default:
		return nil, nil, errors.New("it cannot be read: " + text.Clip(err.Error(), maxShown))
	}
	if p.ID != id || !strings.HasPrefix(id, serviceToken(p.Service)+".") {
		return nil, nil, errors.New("it is signed as " + text.Clip(p.Service+", "+p.ID, maxShown))
	}
	shareTexts(p)
	return p, &opened{key: string(key), anchor: s.Anchor, every: s.Every, number: p.Number, at: p.AnnouncedAt}, nil
}

// shareTexts makes p refer to the texts that many processes have in common, so that an
// operators' server has each once.
func shareTexts(p *Process) {
	one := func(s *string) { *s = unique.Make(*s).Value() }
	one(&p.Service)
	one(&p.Version)
	r := &p.Status.Report
	one(&r.Name)
	r.Phase = unique.Make(r.Phase).Value()
	for i := range r.Phases {
		r.Phases[i].Phase = unique.Make(r.Phases[i].Phase).Value()
	}
	for i := range p.Status.Probes {
		c := &p.Status.Probes[i]
		one(&c.Plane)
		one(&c.Name)
		c.State, c.Severity = unique.Make(c.State).Value(), unique.Make(c.Severity).Value()
	}
	var units func(list []worker.State)
	units = func(list []worker.State) {
		for i := range list {
			u := &list[i]
			one(&u.Name)
			one(&u.Kind)
			u.Status, u.Health = unique.Make(u.Status).Value(), unique.Make(u.Health).Value()
			units(u.Children)
		}
	}
	units(p.Status.Units)
}

// readUnsigned reads the entry of a version without signatures. The key of such an entry
// has no dot. Any client of a service may write keys with more dots, so of their entries
// only the service in the key is believed.
func readUnsigned(e jetstream.KeyValueEntry) *Process {
	if service, _, dotted := strings.Cut(e.Key(), "."); dotted {
		return &Process{ID: text.Clip(e.Key(), maxShown), Service: text.Clip(service, maxShown), SeenAt: e.Created(), Suspect: "another client has written its entry: no process has such a key"}
	}
	p := new(Process)
	if err := json.Unmarshal(e.Value(), p); err != nil {
		*p = Process{}
		p.Status.Report.Reason = "its announcement cannot be read: " + err.Error()
	}
	p.ID, p.SeenAt = text.Clip(e.Key(), maxShown), e.Created()
	p.Suspect = "its announcement has no signature: its version is too old, or another client has written it"
	return p
}

// removed judges the removal of an entry. It reports whether the process itself has
// removed it, or is of a version that signs nothing.
func (f *Fleet) removed(e jetstream.KeyValueEntry) bool {
	if !validKey.MatchString(e.Key()) {
		return true
	}
	var p Process
	key, body, err := unseal(entryPurpose(f.cfg, e.Key()), e.Value())
	if err == nil {
		err = json.Unmarshal(body, &p)
	}
	if err != nil || p.ID != e.Key() {
		key = nil
	}
	return f.book.gone(e.Key(), key, p.Number)
}

// find returns the key of the entry of an id, which may lack the service.
func (f *Fleet) find(ctx context.Context, id string) (key string, err error) {
	switch {
	case validKey.MatchString(id):
		return id, nil
	case !validID.MatchString(id):
		return "", fmt.Errorf("%w: %q", ErrNotFound, text.Clip(id, maxShown))
	}
	// The entry of a version without signatures counts only when there is no other.
	watch, err := f.kv.WatchFiltered(ctx, []string{"*." + id, id}, jetstream.IgnoreDeletes(), jetstream.MetaOnly())
	if err != nil {
		return "", fmt.Errorf("presence: find %s: %w", id, err)
	}
	defer func() { _ = watch.Stop() }()
	var keys []string
	unsigned := false
	for {
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("presence: find %s: %w", id, ctx.Err())
		case e, ok := <-watch.Updates():
			switch {
			case !ok:
				return "", errors.New("presence: find " + id + ": the watch ended")
			case e != nil && e.Key() == id:
				unsigned = true
				continue
			case e != nil:
				if len(keys) < maxOthers {
					keys = append(keys, e.Key())
				}
				continue
			case len(keys) == 0 && unsigned:
				return id, nil
			case len(keys) == 0:
				return "", fmt.Errorf("%w: %q", ErrNotFound, id)
			case len(keys) > 1:
				return "", fmt.Errorf("%w: %s", ErrAmbiguous, strings.Join(keys, ", "))
			}
			return keys[0], nil
		}
	}
}
