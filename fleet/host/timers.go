package host

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/btree"
	"github.com/nats-io/nats.go/jetstream"
)

// storedTimer is a timer of a key, as it is stored: a value of the slot like those that
// workers put, so that it is committed with everything else that a message has caused. It is
// gone with the effects of the message that it causes, which therefore are committed once.
//
//	$host.state.SLOT.tm.WORKER.UID.PLACE   the timer
//	$host.state.SLOT.tc.WORKER.UID.ID      an operator has cancelled the one with this ID
//
// PLACE is the lowest number that no other timer of the worker has, so that there are never
// more subjects than there were timers at once. A subject is never removed, only marked as
// deleted: when a server is killed and reads its files again, a message that was replaced by
// a later one comes back once the later one is removed.
type storedTimer struct {
	ID    string    `json:"id"` // of this setting; a timer that is set again has another
	Name  string    `json:"name"`
	Key   []byte    `json:"key"`   // of the messages with which it is in order, which need not be UTF-8
	Topic string    `json:"topic"` // of the message that set it
	Due   time.Time `json:"due"`   // by the server's clock
	Data  []byte    `json:"data,omitempty"`
	Tries tries     `json:"tries,omitzero"`
}

// timersOf returns the prefix of a worker's timers. cancelledOf returns the prefix of the
// marks for timers that an operator has cancelled.
func (s *states) timersOf(slot string, w workerUID) string {
	return s.prefix + slot + ".tm." + w.id + "." + w.uid + "."
}

func (s *states) cancelledOf(slot string, w workerUID) string {
	return s.prefix + slot + ".tc." + w.id + "." + w.uid + "."
}

// pendingTimer is a timer in memory, without its data. It does not change once it is staged.
type pendingTimer struct {
	storedTimer
	slot   string
	worker workerUID
	place  string
	// An earlier holder may have called a handler for it.
	maybeHandled bool
}

// workerUID names a worker. A later worker of the same id has another uid.
type workerUID struct{ id, uid string }

func (r *Record) workerUID() workerUID { return workerUID{r.ID, r.UID} }

func (t *pendingTimer) write(data []byte) stateWrite {
	stored := t.storedTimer
	stored.Data = data
	w := t.removal()
	w.Data, _ = json.Marshal(&stored) // it has nothing that JSON cannot have
	w.Deleted, w.timer = false, t
	return w
}

// removal returns the write that removes it.
func (t *pendingTimer) removal() stateWrite {
	return stateWrite{Slot: t.slot, Worker: t.worker.id, UID: t.worker.uid, Key: t.place, Deleted: true}
}

// timerKey is a key of a worker's messages.
type timerKey struct {
	worker workerUID
	key    string
}

// timers are the timers of a slot, in the order in which they are due. Those that are due are
// taken out one by one, and stay known until their removal is written. Those of workers that do not run
// are known and in no queue: the runner with which their worker starts reads them again.
type timers struct {
	states *states
	slot   string
	runs   map[workerUID]bool // the workers that run
	ids    atomic.Uint64      // counts settings
	taking sync.Mutex         // held by takeTimers

	mu     sync.Mutex // guards everything below
	next   *time.Timer
	all    map[string]*pendingTimer // by subject
	named  map[timerKey]map[string]*pendingTimer
	count  map[workerUID]int
	lowest map[workerUID]int // no place below is free
	queue  *btree.BTreeG[*pendingTimer]
	taken  map[string]bool // by subject
}

// isEarlier orders timers by time, and then as they were set.
func isEarlier(a, b *pendingTimer) bool {
	return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID)) < 0
}

func newTimers(s *states, slot string, members []*Record) *timers {
	runs := make(map[workerUID]bool, len(members))
	for _, rec := range members {
		runs[rec.workerUID()] = true
	}
	return &timers{
		states: s,
		slot:   slot,
		runs:   runs,
		all:    make(map[string]*pendingTimer),
		named:  make(map[timerKey]map[string]*pendingTimer),
		count:  make(map[workerUID]int),
		lowest: make(map[workerUID]int),
		queue:  btree.NewG(32, isEarlier),
		taken:  make(map[string]bool),
	}
}

// stored returns the timers of the slot that the server has. The log may have later ones.
func (ts *timers) stored(ctx context.Context) ([]stateWrite, error) {
	prefix := ts.states.prefix + ts.slot + ".tm."
	messages, err := ts.states.readAll(ctx, prefix, withoutData)
	if err != nil {
		return nil, fmt.Errorf("read the timers: %w", err)
	}
	writes := make([]stateWrite, 0, len(messages))
	for _, m := range messages {
		worker, rest, _ := strings.Cut(strings.TrimPrefix(m.Subject, prefix), ".")
		uid, place, _ := strings.Cut(rest, ".")
		writes = append(writes, stateWrite{Slot: ts.slot, Worker: worker, UID: uid, Key: place, Data: m.Data})
	}
	return writes, nil
}

// withoutData removes the data from a stored timer.
func withoutData(m *jetstream.RawStreamMsg) {
	var t storedTimer
	if json.Unmarshal(m.Data, &t) == nil && len(t.Data) > 0 {
		t.Data = nil
		m.Data, _ = json.Marshal(&t) // it has nothing that JSON cannot have
	}
}

// restore takes the writes of earlier holders, the older ones first. exists reports whether a
// worker was not deleted since.
func (ts *timers) restore(writes []stateWrite, now time.Time, exists func(workerUID) (bool, error)) error {
	var found []stateWrite
	for _, w := range ts.states.newest(writes) {
		of := workerUID{w.Worker, w.UID}
		if w.Slot == "" || w.Deleted {
			continue
		}
		if is, err := exists(of); err != nil || !is {
			if err != nil {
				return err
			}
			continue
		}
		t := &pendingTimer{slot: w.Slot, worker: of, place: w.Key}
		if err := json.Unmarshal(w.Data, &t.storedTimer); err != nil {
			continue // only hosts write here
		}
		t.Data = nil
		t.maybeHandled = t.Due.Before(now.Add(time.Minute)) // by a clock that may differ a little
		w.timer = t
		found = append(found, w)
	}
	ts.apply(found)
	return nil
}

// apply carries out what a message has done to timers.
func (ts *timers) apply(writes []stateWrite) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for i := range writes {
		w := &writes[i]
		if w.Slot == "" {
			continue
		}
		subject := ts.states.subject(w)
		old := ts.all[subject]
		if old != nil && w.timer != nil && old.ID == w.timer.ID { // it was taken, and has another count of its attempts
			ts.all[subject] = w.timer
			ts.nameLocked(w.timer)
			continue
		}
		if old != nil {
			ts.removeLocked(subject, old)
		}
		if w.timer != nil {
			ts.addLocked(subject, w.timer)
		}
	}
}

func (ts *timers) nameLocked(t *pendingTimer) {
	key := timerKey{t.worker, string(t.Key)}
	if ts.named[key] == nil {
		ts.named[key] = make(map[string]*pendingTimer)
	}
	ts.named[key][t.Name] = t
}

func (ts *timers) addLocked(subject string, t *pendingTimer) {
	ts.all[subject] = t
	ts.nameLocked(t)
	ts.count[t.worker]++
	if !ts.runs[t.worker] {
		return
	}
	ts.queue.ReplaceOrInsert(t)
	if first, _ := ts.queue.Min(); first == t {
		ts.lookNowLocked()
	}
}

func (ts *timers) removeLocked(subject string, t *pendingTimer) {
	delete(ts.all, subject)
	ts.queue.Delete(t)
	key := timerKey{t.worker, string(t.Key)}
	if ts.named[key][t.Name] == t { // not one that was set since, at another place
		delete(ts.named[key], t.Name)
	}
	if len(ts.named[key]) == 0 {
		delete(ts.named, key)
	}
	if place, err := strconv.Atoi(t.place); err == nil {
		ts.lowest[t.worker] = min(ts.lowest[t.worker], place)
	}
	if ts.count[t.worker]--; ts.count[t.worker] == 0 {
		delete(ts.count, t.worker)
		delete(ts.lowest, t.worker)
	}
	if ts.taken[subject] {
		delete(ts.taken, subject)
		ts.lookNowLocked()
	}
}

// assignPlaces gives each timer that is set its place: the place of the timer that it
// replaces, or else the lowest free one.
func (ts *timers) assignPlaces(writes []stateWrite) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	var assigned map[string]bool
	for i := range writes {
		w := &writes[i]
		t := w.timer
		if t == nil || t.place != "" {
			continue
		}
		if old := ts.named[timerKey{t.worker, string(t.Key)}][t.Name]; old != nil {
			t.place = old.place
		} else {
			if assigned == nil {
				assigned = make(map[string]bool)
			}
			t.place = ts.freePlaceLocked(t.worker, assigned)
		}
		w.Key = t.place
	}
}

// freePlaceLocked returns the lowest place of a worker that no timer has, and assigns it.
func (ts *timers) freePlaceLocked(of workerUID, assigned map[string]bool) string {
	prefix := ts.states.timersOf(ts.slot, of)
	for n := ts.lowest[of]; ; n++ {
		place := strconv.Itoa(n)
		if ts.all[prefix+place] == nil && !assigned[prefix+place] {
			ts.lowest[of] = n
			assigned[prefix+place] = true
			return place
		}
	}
}

// startClock sets the timer of the process that is to fire when a timer of the slot is due.
func (ts *timers) startClock(next *time.Timer) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.next = next
	ts.lookNowLocked()
}

func (ts *timers) stopClock() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.next != nil {
		ts.next.Stop()
		ts.next = nil
	}
}

// lookNowLocked says that there may be something to take.
func (ts *timers) lookNowLocked() {
	if ts.next != nil && len(ts.all) > 0 {
		ts.next.Reset(0)
	}
}

// lookAtLeast is how often a runner looks whether a timer is due: the clock of the server may
// be set, and this process's own may run faster or slower.
const lookAtLeast = time.Minute

// take takes out timers that are due, until limit of them are out, and sets the process's
// timer for the next one.
func (ts *timers) take(now time.Time, limit int) (due []*pendingTimer) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for len(ts.taken) < limit {
		t, ok := ts.queue.Min()
		if !ok {
			break
		}
		if wait := t.Due.Sub(now); wait > 0 {
			if ts.next != nil {
				ts.next.Reset(min(max(wait, time.Millisecond), lookAtLeast))
			}
			break
		}
		ts.queue.Delete(t)
		ts.taken[ts.subject(t)] = true
		due = append(due, t)
	}
	return due
}

// subject returns where a timer is stored.
func (ts *timers) subject(t *pendingTimer) string {
	w := t.removal()
	return ts.states.subject(&w)
}

// has reports whether a timer that was taken was neither cancelled nor set again.
func (ts *timers) has(t *pendingTimer) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	now := ts.all[ts.subject(t)]
	return now != nil && now.ID == t.ID
}

// nextID names a setting.
func (ts *timers) nextID(fence uint64) string {
	return strconv.FormatUint(fence, 10) + "-" + strconv.FormatUint(ts.ids.Add(1), 10)
}

// forget drops the timers of a worker that is deleted.
func (ts *timers) forget(of workerUID) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for subject, t := range ts.all { // a range may delete what it is at
		if t.worker == of {
			ts.removeLocked(subject, t)
		}
	}
}

// ofKey makes a [timerSource] of timers: it returns the timers of a key by name, and how many its
// worker has. The error is always nil.
func (ts *timers) ofKey(_ context.Context, rec *Record, key string) (map[string]*pendingTimer, int, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	of := rec.workerUID()
	return maps.Clone(ts.named[timerKey{of, key}]), ts.count[of], nil
}
