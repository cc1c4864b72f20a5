package presence

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/worker"
)

// entries returns a Fleet, and an announcement of orders.a with its beats; entry 0 has none.
func entries(t *testing.T, every time.Duration) (f *Fleet, list [maxBeats + 1][]byte, links *chain) {
	t.Helper()
	cfg, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	links = newChain()
	body, err := json.Marshal(said{Process{ID: "orders.a", Service: "orders", Number: 7, AnnouncedAt: time.Unix(1000, 0)}, links.anchor(), every})
	if err != nil {
		t.Fatal(err)
	}
	sealed := seal(key, entryPurpose(cfg, "orders.a"), body)
	for k := range list {
		list[k] = bytes.Clone(sealed)
		if k > 0 {
			list[k] = append(list[k], links.beat(k)...)
		}
	}
	return &Fleet{cfg: cfg, book: newBook(cfg.TTL)}, list, links
}

// A beat counts as an announcement, and its number says how old it is. The signature is
// checked once.
func TestBeatsCount(t *testing.T) {
	f, list, _ := entries(t, 5*time.Second)
	for _, k := range []int{3, 0, 1, maxBeats} { // a server may see any of them first
		p, o, err := f.open("orders.a", list[k])
		if err != nil || p.Number != 7+uint64(k) || !p.AnnouncedAt.Equal(time.Unix(1000+5*int64(k), 0)) {
			t.Fatalf("beat %d: %+v %v", k, p, err)
		}
		f.book.announced(time.Now(), p, o, uint64(k+1))
	}
	_, known := f.book.opened("orders.a")
	if known == nil {
		t.Fatal("the announcement is not kept")
	}
	if _, o, err := f.open("orders.a", list[5]); err != nil || o != known {
		t.Errorf("the signature is checked again: %v", err)
	}
}

// Another client cannot make a beat: from those that it has seen, from another
// announcement, or in another form. What it changes in the announcement breaks the
// signature.
func TestForgedBeats(t *testing.T) {
	f, list, links := entries(t, 5*time.Second)
	_, other, _ := entries(t, 5*time.Second)
	seen := links.beat(3)
	tail := func(e []byte) []byte { return e[bytes.LastIndex(e, []byte(beatMark)):] }
	plus := func(text string) []byte { return append(bytes.Clone(list[0]), text...) }
	for name, entry := range map[string][]byte{
		"the next one":              plus(strings.Replace(seen, "beat 3", "beat 4", 1)),
		"an earlier one":            plus(strings.Replace(seen, "beat 3", "beat 2", 1)),
		"of another announcement":   plus(string(tail(other[3]))),
		"too late":                  plus(strings.Replace(seen, "beat 3", "beat 13", 1)),
		"0":                         plus(strings.Replace(seen, "beat 3", "beat 0", 1)),
		"negative":                  plus(strings.Replace(seen, "beat 3", "beat -1", 1)),
		"with a zero before":        plus(strings.Replace(seen, "beat 3", "beat 003", 1)),
		"a huge number":             plus(strings.Replace(seen, "beat 3", "beat 99999999999999999999", 1)),
		"no link":                   plus("\nbeat 3 "),
		"no space":                  plus("\nbeat 3"),
		"half a link":               plus(seen[:len(seen)-8]),
		"more than a link":          plus(seen + "AAAA"),
		"two":                       plus(seen + links.beat(4)),
		"of an altered process":     append(bytes.Replace(bytes.Clone(list[0]), []byte(`"number":7`), []byte(`"number":8`), 1), seen...),
		"of an anchor of its own":   append(bytes.Replace(bytes.Clone(list[0]), []byte(`"every"`), []byte(`"Every"`), 1), seen...),
		"without an announcement":   []byte(seen),
		"and the body is not there": append(bytes.Clone(list[0][:sealing]), seen...),
	} {
		if p, _, err := f.open("orders.a", entry); err == nil {
			t.Errorf("%s is believed: %+v", name, p)
		}
	}
	f, list, _ = entries(t, 0) // an announcement that has no beats
	if _, _, err := f.open("orders.a", list[1]); !errors.Is(err, errBeat) {
		t.Errorf("a beat without a unit: %v", err)
	}
	f, list, _ = entries(t, 1<<62)
	if _, _, err := f.open("orders.a", list[12]); !errors.Is(err, errBeat) {
		t.Errorf("a beat with a unit of years: %v", err)
	}
}

// What another client has stored again is no news, also a beat.
func TestBeatsAreNotStoredAgain(t *testing.T) {
	f, list, _ := entries(t, 5*time.Second)
	now := time.Unix(1000, 0)
	see := func(k int, revision uint64) (*Process, bool) {
		p, o, err := f.open("orders.a", list[k])
		if err != nil {
			t.Fatal(err)
		}
		p.SeenAt = now
		return f.book.announced(now, p, o, revision)
	}
	for k := range 4 {
		if p, alive := see(k, uint64(k+1)); !alive || p.Suspect != "" {
			t.Fatalf("beat %d: %+v", k, p)
		}
	}
	if p, alive := see(3, 5); alive || !strings.Contains(p.Suspect, "again") {
		t.Errorf("the same beat once more counts: %+v", p)
	}
	if p, alive := see(1, 6); alive || !strings.Contains(p.Suspect, "again") {
		t.Errorf("an old beat counts: %+v", p)
	}
	f, list, _ = entries(t, 5*time.Second) // a server that has just started
	now = now.Add(time.Hour)
	if p, _ := see(maxBeats, 1); !strings.Contains(p.Suspect, "old announcement") {
		t.Errorf("a beat of an hour ago: %+v", p)
	}
}

// An idle process goes on with beats while only its clock moves. Each other change is
// announced.
func TestWhatAnIdleProcessTells(t *testing.T) {
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(later time.Duration) Process {
		now := begun.Add(later)
		return Process{
			ID: "orders.a", Service: "orders", Ready: true, Number: uint64(later), AnnouncedAt: now, Memory: Memory{Used: int64(later)},
			Status: lifecycle.Status{
				At: now, Units: []worker.State{{Name: "http", Status: worker.StatusRunning, UpdatedAt: begun}},
				Probes:  []health.Status{{Name: "db", State: health.Up, Since: begun, Checked: now, Latency: later, Runs: uint64(later), Running: later}},
				Servers: []lifecycle.ServerStatus{{Name: "http", Accepted: uint64(later), LastArrival: now}},
				Report:  lifecycle.Report{Phase: lifecycle.PhaseRunning, Units: []lifecycle.Outcome{{Name: "http", Result: lifecycle.ResultRunning, Took: later}}},
			},
		}
	}
	first := at(0)
	if !tellsTheSame(at(time.Minute), first) || first.Status.Probes[0].Checked.IsZero() || first.Status.Servers[0].LastArrival.IsZero() {
		t.Error("a later look tells something else, or has changed the first")
	}
	for what, change := range map[string]func(*Process){
		"readiness":    func(p *Process) { p.Ready = false },
		"a suspension": func(p *Process) { p.Suspended = "new disk" },
		"a unit":       func(p *Process) { p.Status.Units[0].Status = worker.StatusFailed },
		"a restart":    func(p *Process) { p.Restarts = []Restart{{Unit: "http"}} },
		"a probe":      func(p *Process) { p.Status.Probes[0].Error = "connection refused" },
		"a command":    func(p *Process) { p.Commands = []Command{{Do: "suspend"}} },
		"an address":   func(p *Process) { p.Status.Servers[0].Addr = ":8080" },
		"an end":       func(p *Process) { p.Status.Report.Units[0].Result = lifecycle.ResultOK },
	} {
		p := at(time.Minute)
		if change(&p); tellsTheSame(p, first) {
			t.Errorf("%s tells nothing new", what)
		}
	}
}
