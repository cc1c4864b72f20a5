package presence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/broker/identity"
	"github.com/pleme-io/lifecycle-go/internal/text"
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

// read reads one entry. It returns what the process has announced; Suspect says when the
// entry is not that. alive reports whether the entry is a sign of life of its process.
func (f *Fleet) read(e jetstream.KeyValueEntry) (p Process, alive bool) {
	now := time.Now()
	id := e.Key()
	if !validKey.MatchString(id) {
		return readUnsigned(e), true
	}
	forged := func(why string) (Process, bool) {
		p, known := f.book.forged(now, id, "another client has written its entry: "+why)
		if !known {
			p.Service, _, _ = strings.Cut(id, ".")
			p.SeenAt = e.Created()
		}
		return p, !known
	}
	p, key, err := f.open(id, e.Value())
	if err != nil {
		return forged(err.Error())
	}
	p.SeenAt = e.Created()
	return f.book.announced(now, p, key, e.Revision())
}

// unseal opens an announcement of id.
func (f *Fleet) unseal(id string, sealed []byte) (*opened, error) {
	key, body, err := unseal(entryPurpose(f.cfg, id), sealed)
	if err != nil {
		return nil, err
	}
	o := &opened{key: key}
	if err := json.Unmarshal(body, &o.said); err != nil {
		return nil, errors.New("it cannot be read: " + text.Clip(err.Error(), maxShown))
	}
	if p := o.said.Process; p.ID != id || !strings.HasPrefix(id, serviceToken(p.Service)+".") {
		return nil, errors.New("it is signed as " + text.Clip(p.Service+", "+p.ID, maxShown))
	}
	return o, nil
}

// readUnsigned reads the entry of a version without signatures.
func readUnsigned(e jetstream.KeyValueEntry) Process {
	var p Process
	if err := json.Unmarshal(e.Value(), &p); err != nil {
		p = Process{}
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
