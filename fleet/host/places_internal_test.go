package host

import (
	"slices"
	"testing"
	"time"
)

// timersIn returns the timers of a slot s, and functions that make writes of the worker w.
func timersIn() (ts *timers, put func(place, id, name string) write, gone func(place string) write) {
	ts = newTimers(&states{prefix: "host.state."}, "s")
	put = func(place, id, name string) write {
		a := &alarm{slot: "s", worker: "w", uid: "u", place: place, timer: timer{ID: id, Name: name, Key: []byte("k"), Due: time.Now().Add(time.Hour)}}
		return a.write(nil)
	}
	gone = func(place string) write {
		return write{Slot: "s", Worker: "w", UID: "u", Key: place, Deleted: true}
	}
	return ts, put, gone
}

func (ts *timers) named(name string) string {
	if a := ts.keys[lifeKey{life{"w", "u"}, "k"}][name]; a != nil {
		return a.ID
	}
	return ""
}

// TestReplayOfReusedPlaces checks that a timer which is set again at another place keeps
// its name when the log is replayed. A commit has the newest write of each place, at the
// position of the first: not in the order in which the writes were made.
func TestReplayOfReusedPlaces(t *testing.T) {
	for name, replay := range map[string]func(put func(place, id, name string) write, gone func(string) write) [][]write{
		"set again before the old place is free": func(put func(place, id, name string) write, gone func(string) write) [][]write {
			return [][]write{{put("1", "1-1", "a")}, {put("0", "1-2", "a"), gone("1")}}
		},
		"the server has the new one already": func(put func(place, id, name string) write, gone func(string) write) [][]write {
			return [][]write{{put("0", "1-2", "a")}, {put("1", "1-1", "a")}, {gone("1"), put("0", "1-2", "a")}}
		},
		"and the old place comes last": func(put func(place, id, name string) write, gone func(string) write) [][]write {
			return [][]write{{put("0", "1-2", "a")}, {put("1", "1-1", "a")}, {put("0", "1-2", "a"), gone("1")}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ts, put, gone := timersIn()
			for _, writes := range replay(put, gone) {
				ts.restore(writes, time.Now())
			}
			if got := ts.named("a"); got != "1-2" || len(ts.all) != 1 || ts.counts[life{"w", "u"}] != 1 {
				t.Errorf("the timer is %q; %d timers, %d counted", got, len(ts.all), ts.counts[life{"w", "u"}])
			}
			if twins := ts.twins(); len(twins) > 0 {
				t.Errorf("twins: %+v", twins)
			}
			// A failed attempt is noted at its place, and then it is gone.
			ts.apply([]write{put("0", "1-2", "a")})
			ts.apply([]write{gone("0")})
			if got := ts.named("a"); got != "" || len(ts.all) != 0 {
				t.Errorf("the timer is %q; %d timers", got, len(ts.all))
			}
		})
	}
}

// TestTwins checks that of timers with one name, which hosts of two versions have set at
// two places, the later one stays.
func TestTwins(t *testing.T) {
	ts, put, _ := timersIn()
	ts.restore([]write{put("hash.hash", "9-30", "a"), put("0", "10-1", "a"), put("1", "9-4", "a"), put("2", "9-5", "b")}, time.Now())
	twins := ts.twins()
	var at []string
	for _, w := range twins {
		at = append(at, w.Key)
		if !w.Deleted {
			t.Errorf("%+v", w)
		}
	}
	if slices.Sort(at); !slices.Equal(at, []string{"1", "hash.hash"}) {
		t.Errorf("removed at %q", at)
	}
	ts.apply(twins)
	if ts.named("a") != "10-1" || ts.named("b") != "9-5" || len(ts.all) != 2 {
		t.Errorf("a is %q, b is %q; %d timers", ts.named("a"), ts.named("b"), len(ts.all))
	}
}

// TestPlaces checks that timers get the lowest places that are free, also beside places
// that another program or an earlier version has written.
func TestPlaces(t *testing.T) {
	ts, put, gone := timersIn()
	ts.restore([]write{put("1", "1-1", "a"), put("hash.hash", "1-2", "b"), put("+2", "1-3", "c"), put("007", "1-4", "d"), put("99999999999", "1-5", "e"), put("-1", "1-6", "f")}, time.Now())
	set := func(id, name string) string {
		w := put("", id, name)
		writes := []write{w}
		ts.assign(writes)
		ts.apply(writes)
		return writes[0].Key
	}
	got := []string{set("2-1", "g"), set("2-2", "h"), set("2-3", "a"), set("2-4", "b")}
	ts.apply([]write{gone("+2"), gone("0"), gone("2")})
	got = append(got, set("2-5", "i"), set("2-6", "j"), set("2-7", "k"))
	if want := []string{"0", "2", "1", "hash.hash", "0", "2", "3"}; !slices.Equal(got, want) {
		t.Errorf("the places %q, want %q", got, want)
	}
}
