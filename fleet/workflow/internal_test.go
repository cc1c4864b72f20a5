package workflow

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"
	"weak"

	"github.com/nats-io/nats.go"

	"github.com/pleme-io/lifecycle-go/trace"
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
		e := &entry{key: "x", revision: 7, data: data, meta: meta{version: version}}
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
		msg := r.message("x", &decision{data: []byte("{}"), phase: phase, meta: meta{op: "op", entered: phase, from: phase, source: TransitionSourceRule, note: text}})
		wire := "NATS/1.0\r\n"
		for name, values := range msg.Header {
			wire += name + ": " + values[0] + "\r\n"
		}
		back, err := nats.DecodeHeadersMsg([]byte(wire + "\r\n"))
		if err != nil {
			t.Fatal(err)
		}
		e := newEntry("x", 1, time.Now(), back, nil)
		event, ok := r.event(e, "", false)
		if !ok || event.Note != text || event.To != phase || event.From != phase || e.op != "op" || len(back) != len(msg.Header) {
			t.Fatalf("%q from %q came back as %+v with %v", text, phase, event, back)
		}
	})
}

// An entity of the view keeps nothing of its message but the record: a hundred thousand headers are
// as large as the records.
func TestEntityKeepsNoHeaders(t *testing.T) {
	r := notes(t)
	r.bucket = &bucket{put: "$KV.NOTES."}
	msg := r.message("x", &decision{phase: "draft", meta: meta{op: "op", entered: "draft", timers: "due 7", keys: "key"}})
	wire := "NATS/1.0\r\n"
	for name, values := range msg.Header {
		wire += name + ": " + values[0] + "\r\n"
	}
	back, err := nats.DecodeHeadersMsg([]byte(wire + "\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	block := weak.Make(unsafe.StringData(back[headerWrite][0])) // of which each header is a part
	made := newEntity(r, newEntry("x", 1, time.Now(), back, nil), nil, nil)
	runtime.GC()
	if block.Value() != nil {
		t.Error("the entity keeps the headers of its message")
	}
	if made.timers != "due 7" || made.keys != "key" {
		t.Errorf("the entity has the timers %q and the keys %q", made.timers, made.keys)
	}
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
	r, v := emptyView(t)
	put := &entry{key: "x", revision: 10, at: time.Now(), meta: meta{workflow: r.workflow, version: "2"}, data: []byte(`{"id":"x","phase":"a"}`)}
	d := &decision{next: &note{ID: "x", State: "a"}, data: put.data, phase: "a"}
	v.entry(put)
	if v.entities["x"] == nil {
		t.Fatal("the view does not take the write")
	}
	v.entry(&entry{key: "x", revision: 11, at: time.Now(), meta: meta{removal: "DEL"}})
	v.wrote(r, put, d)
	if v.entities["x"] != nil {
		t.Error("the entity is in the view, but not at the server")
	}
	// Or the bucket was restored from a backup: the view looks.
	if len(v.follow.lookSoon) != 1 {
		t.Error("the view takes the bucket for the one that it knows")
	}
}

// TestOwnWritesOutliveOlderMessages: what the server sends of the time before a write of
// this process changes nothing, and what follows it does.
func TestOwnWritesOutliveOlderMessages(t *testing.T) {
	r, v := emptyView(t)
	at := func(revision uint64, how meta) *entry {
		how.workflow = r.workflow
		return &entry{key: "x", revision: revision, at: time.Now(), meta: how, data: []byte(`{"id":"x","phase":"a"}`)}
	}
	write := &decision{next: &note{ID: "x", State: "a"}, phase: "a"}
	v.wrote(r, at(10, meta{}), write)
	v.entry(at(8, meta{removal: "DEL"}))
	v.entry(at(9, meta{}))
	if en := v.entities["x"]; en == nil || en.revision != 10 {
		t.Errorf("after older messages the view has %+v", en)
	}
	v.wrote(r, at(12, meta{removal: "DEL"}), &decision{meta: meta{removal: "DEL"}})
	v.entry(at(10, meta{}))
	v.entry(at(11, meta{}))
	if en := v.entities["x"]; en != nil {
		t.Errorf("a deletion of this process is undone by %+v", en)
	}
	v.entry(at(12, meta{removal: "DEL"}))
	v.entry(at(13, meta{}))
	if en := v.entities["x"]; en == nil || en.revision != 13 {
		t.Errorf("after a later message the view has %+v", en)
	}
	// Its last write was purged before the follower read it.
	v.wrote(r, at(14, meta{}), write)
	v.current(13)
	if v.entities["x"] == nil {
		t.Error("a write is gone before the follower is there")
	}
	v.current(14)
	if v.entities["x"] != nil || len(v.own) != 0 {
		t.Error("the view has an entity that the bucket does not have")
	}
}

// emptyView returns a workflow and its view, which reads nothing.
func emptyView(t *testing.T) (*registration, *view) {
	t.Helper()
	r := notes(t)
	v := newView(NewManager(nil, nil), &bucket{name: r.name})
	v.indexes[r.workflow], v.regs = newIndex(r), []*registration{r}
	return r, v
}

// TestHookFilesOfTheFirstRelease reads what the first release stores of hooks, and writes
// the same.
func TestHookFilesOfTheFirstRelease(t *testing.T) {
	var progress hookProgress
	var letter DeadLetter
	for name, into := range map[string]any{"hookprogress": &progress, "deadletter": &letter} {
		stored, err := os.ReadFile(filepath.Join("testdata", "v0.1.0", name+".json"))
		check(t, err)
		check(t, json.Unmarshal(stored, into))
		again, err := json.Marshal(into)
		check(t, err)
		if string(again) != strings.TrimSpace(string(stored)) {
			t.Errorf("%s is written as %s, not as %s", name, again, stored)
		}
	}
	done := progress.Done.Has(5) && !progress.Done.Has(6) && progress.Done.Has(7) && !progress.Done.Has(8)
	if !done || progress.Failed[9] != 2 || progress.Mark != 8 {
		t.Errorf("the progress is read as %+v", progress)
	}
	if letter.Hook != "invoice" || letter.Revision != 7 || letter.Attempts != 12 {
		t.Errorf("the dead letter is read as %+v", letter)
	}
}

// FuzzMeta sends what a write stores beside the record through the headers of a message.
func FuzzMeta(f *testing.F) {
	f.Add("a|b", "phase ü / 100%", "from|", "a note\r\n", "timer 1", int64(17), uint64(3))
	f.Add("-", "", "", "", "", int64(0), uint64(0))
	f.Add("%41 b", "a", "b", "\x00\xff", "%", int64(-1), uint64(1<<63))
	f.Fuzz(func(t *testing.T, workflow, entered, from, note, fired string, since int64, on uint64) {
		want := meta{
			op: "op.1", workflow: workflow, on: on, chained: true, version: "2", entered: entered, from: from,
			source: TransitionSourceRule, since: since, change: on / 2, pending: int(on % 64), note: note, timers: "[]", fired: fired, keys: "a@1,b", removal: "DEL",
			pause: pauseHolds, trace: trace.Context{Parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", State: "a=b"},
		}
		if got := readMeta(want.header()); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

// TestProgressOfAHookIsBounded lets every second of many reactions fail, and the others end.
func TestProgressOfAHookIsBounded(t *testing.T) {
	p := new(hookProgress)
	for revision := uint64(1); revision < 300_000; revision += 2 {
		p.failed(revision, 11)
		p.done(written{revision + 1, time.Now()})
	}
	data, err := json.Marshal(p.stored())
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > 100<<10 {
		t.Errorf("the record has %d bytes", len(data))
	}
	var read hookProgress
	if err := json.Unmarshal(data, &read); err != nil {
		t.Fatal(err)
	}
	if read.Done.Has(1) || !read.Done.Has(2) || read.Done.Has(299_999) || read.Failed[1] != 11 {
		t.Errorf("the record is wrong about the first or the last reactions: %d spans", read.Done.Gaps())
	}
	if !p.Done.Has(300_000) {
		t.Error("the process itself has forgotten what it has done")
	}
}

// TestKeysAreShort: all keys that an entity remembers take a kilobyte of each of its writes.
func TestKeysAreShort(t *testing.T) {
	var cur *entry
	const first = 1_000_000
	for i := range 2 * MaxKeys {
		cur = &entry{revision: first + uint64(i), meta: meta{keys: addKey(cur, keyHash(strconv.Itoa(i)))}}
	}
	if len(cur.keys) > 1024 || strings.Contains(cur.keys, "N") {
		t.Errorf("%d bytes of keys: %s", len(cur.keys), cur.keys)
	}
	plain := &entry{revision: first + 3*MaxKeys, meta: meta{keys: addKey(cur, "")}}
	for i := range 2 * MaxKeys {
		at, landed := plain.landed(keyHash(strconv.Itoa(i)))
		if landed != (i >= MaxKeys) || landed && at != first+uint64(i) {
			t.Errorf("key %d: %d, %v", i, at, landed)
		}
	}
}
