package presence

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
)

// stored is an entry of the bucket as a process of a release has written it. Each file in
// testdata/releases has those of one process with a TTL of 3 s, which is suspended, and then
// stops: of the release before signatures, of that before beats, and of the first with beats.
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
	if e.Op == "KeyValuePutOp" {
		return jetstream.KeyValuePut
	}
	return jetstream.KeyValuePurge
}

func release(t *testing.T, name string) (list []stored) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "releases", name+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for d := json.NewDecoder(bytes.NewReader(text)); d.More(); {
		var e stored
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	return list
}

// A process of an earlier release beside an operators' server of this one is in the fleet
// from its first announcement to its end: it is ready, then suspended, and never counts as
// dead. It is suspect only when it signs nothing.
func TestProcessesOfEarlierReleases(t *testing.T) {
	for name, suspect := range map[string]string{"unsigned": "its announcement has no signature: its version is too old", "signed": "", "beats": ""} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cfg, err := Config{TTL: 3 * time.Second}.withDefaults()
				if err != nil {
					t.Fatal(err)
				}
				f, known := &Fleet{cfg: cfg, book: newBook(cfg.TTL)}, newTracker(cfg.TTL)
				list := release(t, name)
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
					if p.ID != e.Key() || p.Service != "missions" || p.Version != "1.0-"+name || p.Status.Report.Phase == "" || !strings.HasPrefix(p.Suspect, suspect) || suspect == "" && p.Suspect != "" {
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

// An operators' server of the release before beats reads what a process of this release
// signs, and takes each beat for a forgery: the servers are upgraded first.
func TestAnEarlierServerReadsWholeAnnouncements(t *testing.T) {
	whole, beats := 0, 0
	for i, e := range release(t, "beats") {
		_, body, err := unseal("entry FLEET "+e.Key(), e.Value()) // all that such a server does
		if bytes.Contains(e.Value(), []byte(beatMark)) {
			if beats++; !errors.Is(err, errForged) {
				t.Errorf("entry %d: a beat is %v", i, err)
			}
			continue
		}
		whole++
		var p Process
		if err == nil {
			err = json.Unmarshal(body, &p)
		}
		if err != nil || p.ID != e.Key() || p.Number == 0 {
			t.Errorf("entry %d: %+v, %v", i, p, err)
		}
	}
	if whole < 2 || beats < 2 {
		t.Errorf("there are %d announcements and %d beats", whole, beats)
	}
}

// A process of a release whose announcements have another form is in the fleet, and is no
// forgery: its own key has signed what cannot be read.
func TestAnAnnouncementOfAnotherFormIsNoForgery(t *testing.T) {
	cfg, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &Fleet{cfg: cfg, book: newBook(cfg.TTL)}
	body := `{"id":"orders.a","service":"orders","host":"node-9","status":"running, and well","version":"9.0.0","number":7,"announcedAt":"2026-01-02T03:04:05Z"}`
	p, _, err := f.open("orders.a", seal(key, entryPurpose(cfg, "orders.a"), []byte(body)))
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
		if p, _, err := f.open("orders.a", seal(key, entryPurpose(cfg, "orders.a"), []byte(body))); err == nil {
			t.Errorf("%s: it is read as %+v", what, p)
		}
	}
}
