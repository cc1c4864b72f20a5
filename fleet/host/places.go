package host

import (
	"fmt"
	"slices"
	"strconv"
)

// assign gives each timer that is set its place: that of the one that it replaces, or
// the lowest that is free.
func (ts *timers) assign(writes []write) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for i := range writes {
		w := &writes[i]
		if w.alarm == nil || w.alarm.place != "" {
			continue
		}
		of := life{w.Worker, w.UID}
		if old := ts.keys[lifeKey{of, string(w.alarm.Key)}][w.alarm.Name]; old != nil {
			w.alarm.place = old.place
		} else {
			w.alarm.place = ts.placesOf(of).take()
		}
		w.Key = w.alarm.place
	}
}

func (ts *timers) placesOf(of life) *places {
	p := ts.places[of]
	if p == nil {
		p = new(places)
		for _, e := range ts.all {
			if (life{e.worker, e.uid}) == of {
				p.use(e.place)
			}
		}
		ts.places[of] = p
	}
	return p
}

// places are the numbers that the timers of a worker have as their place.
type places struct {
	used []bool
	low  int // none below is free
}

// take returns the lowest free place, which is used from now on.
func (p *places) take() string {
	for p.low < len(p.used) && p.used[p.low] {
		p.low++
	}
	place := strconv.Itoa(p.low)
	p.use(place)
	return place
}

func (p *places) use(place string) {
	n := number(place)
	for len(p.used) <= n {
		p.used = append(p.used, false)
	}
	if n >= 0 {
		p.used[n] = true
	}
}

func (p *places) free(place string) {
	if n := number(place); n >= 0 && n < len(p.used) {
		p.used[n] = false
		p.low = min(p.low, n)
	}
}

// number returns the number of a place, -1 for one of an earlier version.
func number(place string) int {
	n, err := strconv.Atoi(place)
	if err != nil || n < 0 || n > 2*maxTimers || strconv.Itoa(n) != place {
		return -1
	}
	return n
}

// twins returns the removals of timers that a later one replaces under its key and name,
// at another place: hosts of before and of after there were places have set them.
func (ts *timers) twins() (removals []write) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	newest := func(e *entryOf) *alarm {
		return ts.keys[lifeKey{life{e.worker, e.uid}, string(e.Key)}][e.Name]
	}
	for _, e := range ts.all {
		if a := newest(e); a == nil || later(e.ID, a.ID) {
			ts.name(e.alarm)
		}
	}
	for _, e := range ts.all {
		if newest(e) != e.alarm {
			removals = append(removals, e.removal())
		}
	}
	return removals
}

// later reports whether a setting was made after another: its fencing token and then its
// count are greater.
func later(id, than string) bool {
	var a, b [2]uint64
	_, errA := fmt.Sscanf(id, "%d-%d", &a[0], &a[1])
	_, errB := fmt.Sscanf(than, "%d-%d", &b[0], &b[1])
	return errA == nil && (errB != nil || slices.Compare(a[:], b[:]) > 0)
}
