package host

import (
	"cmp"
	"container/heap"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// timer is a timer of a key, as it is stored: a value of the slot like those that
// workers put, so that it is committed with everything else that a message has caused.
// It is gone with the effects of the message that it causes, which therefore are
// committed once.
//
//	host.state.SLOT.tm.WORKER.UID.PLACE   the timer
//	host.state.SLOT.tc.WORKER.UID.PLACE   an operator has cancelled the one with this ID
//
// PLACE is the lowest number that no other timer of the worker has, so that there are
// never more subjects than there were timers at once. A subject is never removed, only
// marked as deleted: when a server is killed and reads its files again, a message that
// was replaced by a later one comes back once the later one is removed.
type timer struct {
	ID    string    `json:"id"` // of this setting; a timer that is set again has another
	Name  string    `json:"name"`
	Key   []byte    `json:"key"`   // of the messages with which it is in order, which need not be UTF-8
	Topic string    `json:"topic"` // of the message that set it
	Due   time.Time `json:"due"`   // by the server's clock
	Data  []byte    `json:"data,omitempty"`
	Tries tries     `json:"tries,omitzero"`
	Doom  *doom     `json:"doom,omitempty"`
}

// Bounds of timers.
const (
	maxTimersOfKey = 100
	maxTimers      = 10_000 // of a worker
)

// timersOf returns the prefix of the timers of one life of a worker's id, and marksOf
// that of the marks of those that were cancelled.
func (s *states) timersOf(slot, id, uid string) string {
	return s.prefix + slot + ".tm." + id + "." + uid + "."
}

func (s *states) marksOf(slot, id, uid string) string {
	return s.prefix + slot + ".tc." + id + "." + uid + "."
}

// headerOf is on the message of a timer: the hashes of its key and its name, by which it
// is found without its data.
const headerOf = "Lifecycle-Timer-Of"

func hashOf(key []byte, name string) string { return token(key) + "." + token([]byte(name)) }

// token names a text of any form and length.
func token(text []byte) string {
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:18])
}

// alarm is a timer in memory, without its data. It does not change once it is staged.
type alarm struct {
	timer
	slot, worker, uid string

	place string // earlier versions had the hashOf the timer
	old   bool   // an earlier holder may have called a handler for it
}

// write returns the write that stores the alarm's timer with this data.
func (a *alarm) write(data []byte) write {
	t := a.timer
	t.Data = data
	w := a.removal()
	w.Data, _ = json.Marshal(&t) // it has nothing that JSON cannot have
	w.Deleted, w.alarm = false, a
	return w
}

// removal returns the write that removes it.
func (a *alarm) removal() write {
	return write{Slot: a.slot, Worker: a.worker, UID: a.uid, Key: a.place, Deleted: true}
}

// life is one life of a worker's id, and lifeKey a key of its messages.
type (
	life    struct{ worker, uid string }
	lifeKey struct {
		life
		key string
	}
)

// timers are the timers of a slot, in the order in which they are due. Those that are
// due are taken out one by one, and stay known until their removal is written.
type timers struct {
	states *states
	slot   string
	rung   func()        // called when there may be something to take
	ids    atomic.Uint64 // counts settings

	mu     sync.Mutex // guards everything below
	all    map[string]*entryOf
	keys   map[lifeKey]map[string]*alarm // by name
	counts map[life]int
	places map[life]*places
	queue  agenda
	parked map[string]*entryOf // their worker is not loaded
	out    int
}

// entryOf is the place of an alarm.
type entryOf struct {
	*alarm
	subject string
	index   int  // in the agenda; -1 when it is not there
	out     bool // it was taken
}

func newTimers(s *states, slot string) *timers {
	return &timers{states: s, slot: slot, rung: func() {}, all: make(map[string]*entryOf), keys: make(map[lifeKey]map[string]*alarm), counts: make(map[life]int), places: make(map[life]*places), parked: make(map[string]*entryOf)}
}

// load reads the timers of the slot from the leader of the stream, which has every
// acknowledged write. lives reports whether a worker exists.
func (ts *timers) load(ctx context.Context, now time.Time, lives func(worker, uid string) (bool, error)) error {
	prefix := ts.states.prefix + ts.slot + ".tm."
	subjects, err := ts.states.subjects(ctx, prefix+">", 1<<24)
	if err != nil {
		return fmt.Errorf("read the timers: %w", err)
	}
	read, err := ts.states.readMany(ctx, subjects)
	if err != nil {
		return fmt.Errorf("read the timers: %w", err)
	}
	for i, subject := range subjects {
		worker, rest, _ := strings.Cut(strings.TrimPrefix(subject, prefix), ".")
		uid, key, _ := strings.Cut(rest, ".")
		if read[i].missing {
			continue
		}
		is, err := lives(worker, uid)
		if err != nil {
			return err
		}
		if is {
			ts.restore([]write{{Slot: ts.slot, Worker: worker, UID: uid, Key: key, Data: read[i].data}}, now)
		}
	}
	return nil
}

// restore takes writes of an earlier holder.
func (ts *timers) restore(writes []write, now time.Time) {
	for i := range writes {
		w := &writes[i]
		if w.Slot == "" || w.Deleted {
			continue
		}
		a := &alarm{slot: w.Slot, worker: w.Worker, uid: w.UID, place: w.Key}
		if err := json.Unmarshal(w.Data, &a.timer); err != nil {
			continue // only hosts write here
		}
		a.Data = nil
		a.old = a.Due.Before(now.Add(time.Minute)) // by a clock that may differ a little
		w.alarm = a
	}
	ts.apply(writes)
}

// apply carries out what a message has done to timers.
func (ts *timers) apply(writes []write) {
	ring := false
	ts.mu.Lock()
	for i := range writes {
		w := &writes[i]
		if w.Slot == "" {
			continue
		}
		subject := ts.states.subject(w)
		old := ts.all[subject]
		if old != nil && w.alarm != nil && old.ID == w.alarm.ID { // with another count of its attempts
			old.alarm = w.alarm
			ts.name(w.alarm)
			continue
		}
		if old != nil {
			ts.remove(old)
			ring = ring || old.out
		}
		if !w.Deleted && w.alarm != nil {
			e := &entryOf{alarm: w.alarm, subject: subject, index: -1, out: false}
			ts.add(e)
			ring = ring || e.index == 0
		}
	}
	ts.mu.Unlock()
	if ring {
		ts.rung()
	}
}

// name makes an alarm the one of its key and name.
func (ts *timers) name(a *alarm) {
	key := lifeKey{life{a.worker, a.uid}, string(a.Key)}
	if ts.keys[key] == nil {
		ts.keys[key] = make(map[string]*alarm)
	}
	ts.keys[key][a.Name] = a
}

func (ts *timers) add(e *entryOf) {
	of := life{e.worker, e.uid}
	ts.all[e.subject] = e
	ts.name(e.alarm)
	ts.counts[of]++
	if p := ts.places[of]; p != nil {
		p.use(e.place)
	}
	heap.Push(&ts.queue, e)
}

func (ts *timers) remove(e *entryOf) {
	of := life{e.worker, e.uid}
	key := lifeKey{of, string(e.Key)}
	delete(ts.all, e.subject)
	delete(ts.parked, e.subject)
	if ts.keys[key][e.Name] == e.alarm { // not one that was set since, at another place
		delete(ts.keys[key], e.Name)
	}
	if len(ts.keys[key]) == 0 {
		delete(ts.keys, key)
	}
	if p := ts.places[of]; p != nil {
		p.free(e.place)
	}
	if ts.counts[of]--; ts.counts[of] == 0 {
		delete(ts.counts, of)
	}
	if e.index >= 0 {
		heap.Remove(&ts.queue, e.index)
	}
	if e.out {
		ts.out--
	}
}

// take takes out timers that are due, so that at most most are out. next is when the
// next of the others is due; zero when there is none, or no room.
func (ts *timers) take(now time.Time, most int) (due []*alarm, next time.Time) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for len(ts.queue) > 0 && ts.out < most {
		e := ts.queue[0]
		if e.Due.After(now) {
			return due, e.Due
		}
		heap.Pop(&ts.queue)
		e.out = true
		ts.out++
		due = append(due, e.alarm)
	}
	return due, time.Time{}
}

// park keeps a timer that was taken until its worker is loaded.
func (ts *timers) park(a *alarm) {
	ts.mu.Lock()
	e := ts.entry(a)
	if e != nil {
		e.out = false
		ts.out--
		ts.parked[e.subject] = e
	}
	ts.mu.Unlock()
	ts.rung()
}

// unpark makes those that wait for their worker due again.
func (ts *timers) unpark() {
	ts.mu.Lock()
	some := len(ts.parked) > 0
	for _, e := range ts.parked {
		heap.Push(&ts.queue, e)
	}
	clear(ts.parked)
	ts.mu.Unlock()
	if some {
		ts.rung()
	}
}

// entry returns the place of an alarm, nil when the timer was cancelled or set again.
func (ts *timers) entry(a *alarm) *entryOf {
	w := a.removal()
	if e := ts.all[ts.states.subject(&w)]; e != nil && e.ID == a.ID {
		return e
	}
	return nil
}

// none reports whether there is no timer.
func (ts *timers) none() bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return len(ts.all) == 0
}

// nextID names a setting.
func (ts *timers) nextID(fence uint64) string {
	return strconv.FormatUint(fence, 10) + "-" + strconv.FormatUint(ts.ids.Add(1), 10)
}

// has reports whether a timer still is the one that was taken.
func (ts *timers) has(a *alarm) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.entry(a) != nil
}

// forget drops the timers of a worker that is deleted.
func (ts *timers) forget(worker, uid string) {
	ts.mu.Lock()
	for _, e := range slices.Collect(maps.Values(ts.all)) {
		if e.worker == worker && e.uid == uid {
			ts.remove(e)
		}
	}
	delete(ts.places, life{worker, uid})
	ts.mu.Unlock()
	ts.rung()
}

// ofKey returns the timers of a key by name, and how many its worker has.
func (ts *timers) ofKey(_ context.Context, rec *Record, key string) (map[string]*alarm, int, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	of := life{rec.ID, rec.UID}
	return maps.Clone(ts.keys[lifeKey{of, key}]), ts.counts[of], nil
}

// agenda is a heap.Interface, ordered by time, and then as the timers were set.
type agenda []*entryOf

func (q agenda) Len() int { return len(q) }
func (q agenda) Less(i, j int) bool {
	a, b := q[i], q[j]
	return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID)) < 0
}

func (q agenda) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push is for package heap.
func (q *agenda) Push(x any) {
	e := x.(*entryOf) //nolint:errcheck,forcetypeassert // only entries are pushed
	e.index = len(*q)
	*q = append(*q, e)
}

// Pop is for package heap.
func (q *agenda) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	e.index = -1
	return e
}
