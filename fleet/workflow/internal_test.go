package workflow

import (
	"encoding/json"
	"regexp"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

type note struct {
	ID    string `json:"id"    lifecycle:"id"`
	State string `json:"phase" lifecycle:"phase"`
	Tags  map[string][]int
}

func (n *note) EntityID() string       { return n.ID }
func (n *note) Workflow() string       { return "notes" }
func (n *note) Phase() string          { return n.State }
func (n *note) IsTerminal() bool       { return false }
func (n *note) KVBucket() string       { return "NOTES" }
func (n *note) KVKey(id string) string { return id }
func (n *note) ParentEntityID() string { return "" }

func notes(t testing.TB) *registration {
	t.Helper()
	r := &registration{
		workflow: "notes", factory: func() Participant { return new(note) }, table: Transitions{"a": {"b"}, "b": {}},
		version: 2, migrate: func(_ int, data []byte) ([]byte, error) { return data, nil },
	}
	if err := r.validate(); err != nil {
		t.Fatal(err)
	}
	return r
}

// FuzzRecord passes arbitrary bytes to the decoder: it returns a record or an error
// that names the place, and never panics.
func FuzzRecord(f *testing.F) {
	f.Add("", []byte(`{"id":"x","phase":"a"}`))
	f.Add("2", []byte(`{"id":"x","phase":"a","Tags":{"t":[1]}}`))
	f.Add("9", []byte(`null`))
	f.Add("-1", []byte(`[`))
	r := notes(f)
	f.Fuzz(func(t *testing.T, version string, data []byte) {
		e := &entry{key: "x", revision: 7, data: data, header: nats.Header{headerVersion: {version}}}
		p, err := r.decode(e)
		if (p == nil) == (err == nil) {
			t.Fatalf("%v and %v", p, err)
		}
		if p != nil && p.EntityID() != "x" {
			t.Fatalf("decoded the record of %q under the key x", p.EntityID())
		}
	})
}

// FuzzNote sends arbitrary notes through the headers of a message: a note comes back
// unchanged and adds no other header.
func FuzzNote(f *testing.F) {
	f.Add("out of power", "a")
	f.Add("two\r\nLifecycle-Op: forged", "phase ü / 100%")
	f.Add("\x00\xff", " ")
	r := notes(f)
	r.bucket = &bucket{put: "$KV.NOTES."}
	f.Fuzz(func(t *testing.T, text, phase string) {
		if phase == "" {
			return // no table has such a phase
		}
		msg := r.message("x", decision{data: []byte("{}"), phase: phase, change: change{op: "op", moved: true, from: phase, source: TransitionSourceRule, note: text}}, 1)
		wire := "NATS/1.0\r\n"
		for name, values := range msg.Header {
			wire += name + ": " + values[0] + "\r\n"
		}
		back, err := nats.DecodeHeadersMsg([]byte(wire + "\r\n"))
		if err != nil {
			t.Fatal(err)
		}
		e := &entry{key: "x", header: back}
		event, ok := r.event(e, "", false)
		if !ok || event.Note != text || event.To != phase || event.From != phase || back.Get(headerOp) != "op" || len(back) != len(msg.Header) {
			t.Fatalf("%q from %q came back as %+v with %v", text, phase, event, back)
		}
	})
}

// FuzzAck compares the quick way to read an answer with package json's.
func FuzzAck(f *testing.F) {
	for _, answer := range []string{`{"stream":"KV_M","seq":17}`, `{"stream":"KV_M","seq":17,"duplicate":true}`, `{"stream":"","seq":1}`, `{"stream":"S","seq":0}`, `{"stream":"S","seq":12`, `{"error":{"code":400,"err_code":10071},"stream":"S","seq":0}`, `{"stream":"S","seq":99999999999999999999}`} {
		f.Add([]byte(answer))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		quick, ok := plainAck(answer)
		if _, err := acknowledged(answer); ok && err != nil {
			t.Fatalf("%s: %v", answer, err)
		}
		var ack struct {
			Seq uint64 `json:"seq"`
		}
		if ok && json.Unmarshal(answer, &ack) == nil && ack.Seq != quick {
			t.Fatalf("%s: read %d, want %d", answer, quick, ack.Seq)
		}
	})
}

// FuzzEntityID checks that an accepted id makes a valid subject.
func FuzzEntityID(f *testing.F) {
	for _, id := range []string{"a", "a.b", ".a", "a..b", "a b", "a>", "*", "ü", ""} {
		f.Add(id)
	}
	r := notes(f)
	token := regexp.MustCompile(`^[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*$`)
	f.Fuzz(func(t *testing.T, id string) {
		if _, err := r.key(id); (err == nil) != token.MatchString(id) {
			t.Fatalf("%q: %v", id, err)
		}
	})
}

// TestOwnWriteThatWasDeletedMeanwhile adds a write of this process to the view after the
// server has sent both the write and its deletion by another process. The entity
// stays deleted.
func TestOwnWriteThatWasDeletedMeanwhile(t *testing.T) {
	r := notes(t)
	m := NewManager(nil, nil)
	v := newView(m, &bucket{name: r.name})
	v.indexes[r.workflow], v.regs = newIndex(r), []*registration{r}
	p := &note{ID: "x", State: "a"}
	put := &entry{key: "x", revision: 10, at: time.Now(), header: nats.Header{headerWorkflow: {r.workflow}, headerVersion: {"2"}}, data: []byte(`{"id":"x","phase":"a"}`)}
	v.entry(put)
	if v.entities["x"] == nil {
		t.Fatal("the view does not take the write")
	}
	v.entry(&entry{key: "x", revision: 11, at: time.Now(), header: nats.Header{headerOperation: {"DEL"}}})
	v.wrote(r, put, p, func() bool { return false })
	if v.entities["x"] != nil {
		t.Error("the entity is in the view, but not at the server")
	}
	v.wrote(r, put, p, func() bool {
		v.entry(&entry{key: "x", revision: 12, at: time.Now(), header: nats.Header{headerOperation: {"DEL"}}})
		return true
	})
	if v.entities["x"] != nil {
		t.Error("the entity was deleted while the view asked the server, and it is in the view")
	}
	// The sequence went back and the view has not noticed yet: it shows the write.
	v.wrote(r, put, p, func() bool { return true })
	if v.entities["x"] == nil {
		t.Error("its own write is not seen")
	}
}

// TestWritesBesideTheFirstSessionAreRemembered checks that a follower that
// starts, or starts again, keeps the marks of the writes that it has not seen
// yet. Otherwise a bucket that is restored before the follower sees them looks
// like the same bucket.
func TestWritesBesideTheFirstSessionAreRemembered(t *testing.T) {
	f := &follower{}
	f.wrote(2, "a")
	f.forget(0)
	if got := f.marks(); len(got) != 1 || got[0].seq != 2 {
		t.Errorf("after the first session began: %v", got)
	}
	earlier := f.owned()
	f.wrote(1, "b") // to the restored bucket, while the follower looks at it
	f.forget(earlier)
	if got := f.marks(); len(got) != 1 || got[0].op != "b" {
		t.Errorf("after the bucket was restored: %v", got)
	}
}
