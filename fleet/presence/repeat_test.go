package presence

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/worker"
)

// speaker makes entries of orders.a, which a Fleet reads.
type speaker struct {
	t   *testing.T
	f   *Fleet
	key ed25519.PrivateKey
}

func newSpeaker(t *testing.T) *speaker {
	t.Helper()
	cfg, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &speaker{t, &Fleet{cfg: cfg, registry: newRegistry(cfg.TTL)}, key}
}

// spoken is when number n was announced.
func spoken(n uint64) time.Time { return time.Unix(1000+5*int64(n), 0).UTC() }

// entry returns announcement number n of a process with one unit of that name.
func (s *speaker) entry(n uint64, unit string) []byte {
	s.t.Helper()
	body, err := json.Marshal(Process{ID: "orders.a", Service: "orders", Status: lifecycle.Status{Units: []worker.State{{Name: unit}}}})
	if err != nil {
		s.t.Fatal(err)
	}
	entry, err := sealEntry(s.f.cfg, s.key, "orders.a", stamp{n, spoken(n)}, body)
	if err != nil {
		s.t.Fatal(err)
	}
	return entry
}

// hear reads an entry, as a watch does.
func (s *speaker) hear(now time.Time, entry []byte, revision uint64) (*Process, bool) {
	s.t.Helper()
	p, a, err := s.f.open("orders.a", entry)
	if err != nil {
		s.t.Fatal(err)
	}
	p.SeenAt = now
	return s.f.registry.announced(now, p, a, revision)
}

// Another client cannot make an announcement of what it has seen: each change of a stamp or
// of what is behind it breaks the signature.
func TestForgedStamps(t *testing.T) {
	s := newSpeaker(t)
	entry := s.entry(7, "http")
	if _, _, err := s.f.open("orders.a", entry); err != nil {
		t.Fatal(err)
	}
	change := func(from, to string) []byte { return bytes.Replace(bytes.Clone(entry), []byte(from), []byte(to), 1) }
	body := func(text string) []byte { return seal(s.key, entryPurpose(s.f.cfg, "orders.a"), []byte(text)) }
	for name, entry := range map[string][]byte{
		"the next number":       change(`"number":7`, `"number":8`),
		"a later time":          change(`1970`, `1971`),
		"another process":       change(`http`, `grpc`),
		"without a signature":   entry[sealing:],
		"half of it":            entry[:len(entry)/2],
		"no stamp":              body(`{"id":"orders.a","service":"orders"`),
		"a stamp that is text":  body(`hello` + "\n" + `{"id":"orders.a","service":"orders"}`),
		"a stamp and no more":   body(`{"number":7}`),
		"a number that is text": body(`{"number":"7"}` + "\n" + `{"id":"orders.a","service":"orders"}`),
		"empty":                 body(``),
	} {
		if p, _, err := s.f.open("orders.a", entry); err == nil {
			t.Errorf("%s is believed: %+v", name, p)
		}
	}
}

// An announcement that another client stores again does not show that the process lives.
func TestRepeatsAreNotStoredAgain(t *testing.T) {
	s := newSpeaker(t)
	now := spoken(1)
	for n := range uint64(4) {
		if p, alive := s.hear(now, s.entry(n+1, "http"), n+1); !alive || p.Suspect != "" {
			t.Fatalf("announcement %d: %+v", n+1, p)
		}
	}
	for _, n := range []uint64{4, 2} {
		if p, alive := s.hear(now, s.entry(n, "http"), 9); alive || !strings.Contains(p.Suspect, "again") {
			t.Errorf("announcement %d counts again: %+v", n, p)
		}
	}
	started := newSpeaker(t) // an operators' server that has just started
	if p, _ := started.hear(spoken(1).Add(time.Hour), started.entry(1, "http"), 1); !strings.Contains(p.Suspect, "old announcement") {
		t.Errorf("an announcement of an hour ago: %+v", p)
	}
}
