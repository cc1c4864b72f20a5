package presence

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker/identity"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// A process's key in the bucket is its id: SERVICE.INSTANCE. A NATS permission on
// "$KV.BUCKET.SERVICE.>" therefore lets a client announce processes of one service only.
//
// An entry is sealed (see seal). Its body is a line with a stamp, and then the Process as JSON.
var validKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}\.[A-Za-z0-9_-]{1,200}$`)

// stamp tells the announcements of a process apart.
type stamp struct {
	Number uint64    `json:"number"` // counts the announcements of one life, from 1
	At     time.Time `json:"at"`     // by the process's clock
}

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

func sealEntry(c Config, key ed25519.PrivateKey, id string, s stamp, process []byte) ([]byte, error) {
	line, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	return seal(key, entryPurpose(c, id), slices.Concat(line, []byte("\n"), process)), nil
}

// removal is the message that removes the entry of a process: the one that
// [jetstream.KeyValue.Purge] sends, with a sealed body. A Fleet believes no other removal.
func removal(js jetstream.JetStream, c Config, key ed25519.PrivateKey, id string, s stamp) (*nats.Msg, error) {
	m := nats.NewMsg("$KV." + c.Bucket + "." + id)
	if prefix := js.Options().APIPrefix; prefix != "" && prefix != jetstream.DefaultAPIPrefix {
		m.Subject = strings.TrimSuffix(prefix, ".") + "." + m.Subject
	} else if domain := js.Options().Domain; domain != "" {
		m.Subject = "$JS." + domain + ".API." + m.Subject
	}
	m.Header.Set("KV-Operation", "PURGE")
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	var err error
	m.Data, err = sealEntry(c, key, id, s, nil)
	return m, err
}

// announcement is an entry whose signature holds.
type announcement struct {
	key     string // the public key that has signed it
	stamp   stamp
	process []byte // as JSON
}

// openEntry checks the signature of an entry.
func openEntry(c Config, id string, entry []byte) (a announcement, err error) {
	key, body, err := unseal(entryPurpose(c, id), entry)
	if err != nil {
		return a, err
	}
	line, process, _ := bytes.Cut(body, []byte("\n"))
	if err := json.Unmarshal(line, &a.stamp); err != nil {
		return a, errors.New("it has no stamp: " + text.Clip(err.Error(), maxShown))
	}
	a.key, a.process = string(key), process
	return a, nil
}

// decode returns the Process of an announcement of id. When parts of it have another form
// than in this version, the Status says only that.
func (a announcement) decode(id string) (*Process, error) {
	p := new(Process)
	var form *json.UnmarshalTypeError
	switch err := json.Unmarshal(a.process, p); {
	case err == nil:
	case errors.As(err, &form): // the rest was read: the process has another version of this package
		p.Status = lifecycle.Status{At: a.stamp.At}
		p.Status.Report.Reason = "its announcement cannot be read: " + text.Clip(err.Error(), maxShown)
	default:
		return nil, errors.New("it cannot be read: " + text.Clip(err.Error(), maxShown))
	}
	if p.ID != id || !strings.HasPrefix(id, serviceToken(p.Service)+".") {
		return nil, errors.New("it is signed as " + text.Clip(p.Service+", "+p.ID, maxShown))
	}
	return p, nil
}

// read reads one entry. It returns what the process has announced, which the caller must
// not change; Suspect says when the entry is not from the process. alive reports whether the
// entry counts as an announcement: also a forged one of a process of which nothing else is
// known, so that operators see it.
func (f *Fleet) read(e jetstream.KeyValueEntry) (p *Process, alive bool) {
	now, id := time.Now(), e.Key()
	if !validKey.MatchString(id) {
		service, _, _ := strings.Cut(id, ".")
		return &Process{
			ID:      text.Clip(id, maxShown),
			Service: text.Clip(service, maxShown),
			SeenAt:  e.Created(),
			Suspect: "another client has written its entry: no process has such a key",
		}, true
	}
	p, a, err := f.open(id, e.Value())
	if err != nil {
		p, known := f.registry.forged(now, id, "another client has written its entry: "+err.Error())
		if !known {
			p.Service, _, _ = strings.Cut(id, ".")
			p.SeenAt = e.Created()
		}
		return p, !known
	}
	p.SeenAt = e.Created()
	return f.registry.announced(now, p, a, e.Revision())
}

// open returns the process in an entry of id.
func (f *Fleet) open(id string, entry []byte) (*Process, announcement, error) {
	a, err := openEntry(f.cfg, id, entry)
	if err != nil {
		return nil, a, err
	}
	p, err := a.decode(id)
	if err != nil {
		return nil, a, err
	}
	p.Number, p.AnnouncedAt = a.stamp.Number, a.stamp.At
	return p, a, nil
}

// removed reports whether the process itself has removed its entry.
func (f *Fleet) removed(e jetstream.KeyValueEntry) bool {
	if !validKey.MatchString(e.Key()) {
		return true // no process has such a key
	}
	a, err := openEntry(f.cfg, e.Key(), e.Value())
	if err != nil {
		a = announcement{}
	}
	return f.registry.left(e.Key(), a)
}
