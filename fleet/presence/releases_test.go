package presence

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
)

// record names the release whose entries TestRecordRelease records.
var record = flag.String("record", "", "record the entries of a process of this release into testdata/releases")

// stored is an entry of the bucket as a process of a release has written it. Each file in
// testdata/releases has those of one process with a TTL of 3 s, which is suspended, and then
// stops.
type stored struct {
	At   time.Time `json:"at"`
	ID   string    `json:"key"`
	Op   string    `json:"op"`
	Seq  uint64    `json:"revision"`
	Text string    `json:"value"`
}

func (e stored) Bucket() string     { return "FLEET" }
func (e stored) Key() string        { return e.ID }
func (e stored) Value() []byte      { return []byte(e.Text) }
func (e stored) Revision() uint64   { return e.Seq }
func (e stored) Created() time.Time { return e.At }
func (e stored) Delta() uint64      { return 0 }
func (e stored) Operation() jetstream.KeyValueOp {
	if e.Op == jetstream.KeyValuePut.String() {
		return jetstream.KeyValuePut
	}
	return jetstream.KeyValuePurge
}

// TestRecordRelease writes the file of a release, before it is tagged: -record v0.1.0.
func TestRecordRelease(t *testing.T) {
	if *record == "" {
		t.Skip("only with -record")
	}
	js := brokertest.Embedded(t, broker.Config{}).JetStream()
	cfg := Config{TTL: 3 * time.Second, Version: *record, Logger: brokertest.Quiet()}
	app, err := lifecycle.New(lifecycle.Config{Name: "missions", HealthAddr: lifecycle.HealthOff, DrainInterval: lifecycle.Off}, lifecycle.WithLogger(brokertest.Quiet()))
	if err != nil {
		t.Fatal(err)
	}
	kv, err := bucket(t.Context(), js, mustDefaults(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	watch, err := kv.WatchAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cfg.ID = "web-1"
	Announce(app, js, cfg)
	time.AfterFunc(5*time.Second, func() { app.Suspend("new disk") })
	time.AfterFunc(8*time.Second, func() { app.Stop(nil) })
	if err := app.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var file bytes.Buffer
	for deleted := false; !deleted; {
		e := <-watch.Updates()
		if e == nil {
			continue
		}
		deleted = e.Operation() != jetstream.KeyValuePut
		line, err := json.Marshal(stored{e.Created(), e.Key(), e.Operation().String(), e.Revision(), string(e.Value())})
		if err != nil {
			t.Fatal(err)
		}
		file.Write(append(line, '\n'))
	}
	if err := os.WriteFile(filepath.Join("testdata", "releases", *record+".jsonl"), file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func mustDefaults(t *testing.T, cfg Config) Config {
	t.Helper()
	cfg, err := cfg.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// A process of an earlier release beside an operators' server of this one is in the fleet
// from its first announcement to its end: it is ready, then suspended, and never counts as
// dead or suspect.
func TestProcessesOfEarlierReleases(t *testing.T) {
	files, err := filepath.Glob("testdata/releases/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no records of releases: %v", err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var list []stored
		for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
			var e stored
			if err := d.Decode(&e); err != nil {
				t.Fatal(err)
			}
			list = append(list, e)
		}
		t.Run(filepath.Base(name), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg := mustDefaults(t, Config{TTL: 3 * time.Second})
				f, known := &Fleet{cfg: cfg, registry: newRegistry(cfg.TTL)}, newTracker(cfg.TTL)
				ready, suspended, left := 0, 0, false
				for i, e := range list {
					if i > 0 {
						time.Sleep(e.At.Sub(list[i-1].At))
					}
					if died := known.expired(); len(died) > 0 {
						t.Errorf("entry %d: the process counts as dead", i)
					}
					if e.Operation() != jetstream.KeyValuePut {
						left = f.removed(e) && known.left(e.Key()) || left
						continue
					}
					p, alive := f.read(e)
					if !alive || known.announced(p) {
						t.Errorf("entry %d: it is no sign of life, or the process counted as dead", i)
					}
					if p.ID != e.Key() || p.Service != "missions" || p.Version == "" || p.Status.Report.Phase == "" || p.Suspect != "" {
						t.Errorf("entry %d: the process is %+v", i, p)
					}
					if p.Ready && p.Status.Report.Phase == lifecycle.PhaseRunning && p.Suspended == "" {
						ready++
					}
					if p.Suspended == "new disk" && !p.Ready {
						suspended++
					}
				}
				if ready < 3 || suspended < 1 || !left {
					t.Errorf("it was ready %d times and suspended %d times; it has left: %v", ready, suspended, left)
				}
			})
		})
	}
}

// A process whose announcements have another form is in the fleet, and does not count as a forgery: its
// own key has signed what cannot be read.
func TestAnAnnouncementOfAnotherFormIsNoForgery(t *testing.T) {
	s := newSpeaker(t)
	open := func(body string) (*Process, error) {
		entry, err := sealEntry(s.f.cfg, s.key, "orders.a", stamp{7, spoken(7)}, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		p, _, err := s.f.open("orders.a", entry)
		return p, err
	}
	p, err := open(`{"id":"orders.a","service":"orders","host":"node-9","status":"running, and well","version":"9.0.0"}`)
	if err != nil {
		t.Fatal(err)
	}
	if p.Host != "node-9" || p.Version != "9.0.0" || p.Number != 7 || p.Status.Report.Phase != "" || !strings.HasPrefix(p.Status.Report.Reason, "its announcement cannot be read: ") {
		t.Errorf("it is %+v", p)
	}
	for what, body := range map[string]string{
		"torn":                `{"id":"orders.a","service":"orders","status":`,
		"no JSON":             "\x00\xff",
		"of another process":  `{"id":"orders.b","service":"orders","status":1}`,
		"of another service":  `{"id":"orders.a","service":"billing","status":1}`,
		"an id of other form": `{"id":["orders.a"],"service":"orders"}`,
	} {
		if p, err := open(body); err == nil {
			t.Errorf("%s: it is read as %+v", what, p)
		}
	}
}
