package presence

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/health"
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

// What a process repeats is decoded once, has the number and the time of its stamp, and
// shares what it refers to. What another process signs shares nothing with it.
func TestARepeatIsDecodedOnce(t *testing.T) {
	s := newSpeaker(t)
	first, alive := s.hear(spoken(1), s.entry(1, "http"), 1)
	again, alive2 := s.hear(spoken(2), s.entry(2, "http"), 2)
	if !alive || !alive2 || again.Number != 2 || !again.AnnouncedAt.Equal(spoken(2)) || first.Number != 1 || again == first {
		t.Fatalf("%+v, and then %+v", first, again)
	}
	if &first.Status.Units[0] != &again.Status.Units[0] {
		t.Error("a repeat is decoded again")
	}
	if other, _ := s.hear(spoken(3), s.entry(3, "grpc"), 3); other.Status.Units[0].Name != "grpc" {
		t.Errorf("a change is read as %+v", other)
	}
	next := newSpeaker(t)
	next.f = s.f
	if other, _ := next.hear(spoken(4), next.entry(1, "grpc"), 4); &other.Status.Units[0] == &again.Status.Units[0] || other.Number != 1 {
		t.Errorf("the announcement of another key is %+v", other)
	}
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

// An idle process repeats itself while only its clock moves. Each other change is
// announced.
func TestWhatAnIdleProcessTells(t *testing.T) {
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(later time.Duration) Process {
		now := begun.Add(later)
		return Process{
			ID: "orders.a", Service: "orders", Ready: true, Memory: Memory{Used: int64(later)},
			Status: lifecycle.Status{
				At: now, Units: []worker.State{{Name: "http", Status: worker.StatusRunning, UpdatedAt: begun}},
				Probes:  []health.Status{{Name: "db", State: health.Up, Since: begun, Checked: now, Latency: later, Runs: uint64(later), Running: later}},
				Servers: []lifecycle.ServerStatus{{Name: "http", Accepted: uint64(later), LastArrival: now}},
				Report:  lifecycle.Report{Phase: lifecycle.PhaseRunning},
			},
		}
	}
	same := func(a, b Process) bool {
		x, err := lasting(a)
		y, err2 := lasting(b)
		return err == nil && err2 == nil && bytes.Equal(x, y)
	}
	first := at(0)
	if !same(at(time.Minute), first) || first.Status.Probes[0].Checked.IsZero() || first.Status.Servers[0].LastArrival.IsZero() {
		t.Error("a later look tells something else, or has changed the first")
	}
	for what, change := range map[string]func(*Process){
		"readiness":    func(p *Process) { p.Ready = false },
		"a suspension": func(p *Process) { p.Suspended = "new disk" },
		"a unit":       func(p *Process) { p.Status.Units[0].Status = worker.StatusFailed },
		"a restart":    func(p *Process) { p.Restarts = []Restart{{Unit: "http"}} },
		"a probe":      func(p *Process) { p.Status.Probes[0].Error = "connection refused" },
		"an address":   func(p *Process) { p.Status.Servers[0].Addr = ":8080" },
		"a request":    func(p *Process) { p.Status.Servers[0].InFlight = 1 },
		"an end": func(p *Process) {
			p.Status.Report.Units = []lifecycle.Outcome{{Name: "http", Result: lifecycle.ResultOK}}
		},
	} {
		p := at(time.Minute)
		if change(&p); same(p, first) {
			t.Errorf("%s tells nothing new", what)
		}
	}
	for _, test := range []struct {
		used, limit int64
		same        bool
	}{{100, 1000, true}, {150, 1000, true}, {51, 1000, true}, {151, 1000, false}, {49, 1000, false}, {100, 900, false}} {
		if got := sameMemory(Memory{test.used, test.limit}, Memory{100, 1000}); got != test.same {
			t.Error(fmt.Sprint("100 of 1000 bytes and ", test.used, " of ", test.limit, ": ", got))
		}
	}
}
