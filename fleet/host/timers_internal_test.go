package host

import (
	"slices"
	"testing"
	"time"
)

// timersIn returns the timers of a slot s, and functions that make writes of the worker w.
func timersIn() (ts *timers, put func(place, id, name string) stateWrite, gone func(place string) stateWrite) {
	ts = newTimers(&states{prefix: "$host.state."}, "s", []*Record{{ID: "w", UID: "u"}})
	put = func(place, id, name string) stateWrite {
		t := &pendingTimer{
			storedTimer: storedTimer{ID: id, Name: name, Key: []byte("k"), Due: time.Now().Add(time.Hour)},
			slot:        "s",
			worker:      workerUID{"w", "u"},
			place:       place,
		}
		return t.write(nil)
	}
	gone = func(place string) stateWrite {
		return stateWrite{Slot: "s", Worker: "w", UID: "u", Key: place, Deleted: true}
	}
	return ts, put, gone
}

func restore(t *testing.T, ts *timers, writes ...stateWrite) {
	t.Helper()
	if err := ts.restore(writes, time.Now(), func(workerUID) (bool, error) { return true, nil }); err != nil {
		t.Fatal(err)
	}
}

func (ts *timers) idOf(name string) string {
	if t := ts.named[timerKey{workerUID{"w", "u"}, "k"}][name]; t != nil {
		return t.ID
	}
	return ""
}

// TestReplayOfReusedPlaces checks that a timer which is set again at another place keeps its
// name when what the server has and the log are replayed: the server may have it already.
func TestReplayOfReusedPlaces(t *testing.T) {
	ts, put, gone := timersIn()
	for name, writes := range map[string][]stateWrite{
		"set again before the old place is free": {put("1", "1-1", "a"), put("0", "1-2", "a"), gone("1")},
		"the server has the new one already":     {put("0", "1-2", "a"), put("1", "1-1", "a"), gone("1"), put("0", "1-2", "a")},
		"and the old place comes last":           {put("0", "1-2", "a"), put("1", "1-1", "a"), put("0", "1-2", "a"), gone("1")},
	} {
		t.Run(name, func(t *testing.T) {
			ts, _, _ = timersIn()
			restore(t, ts, writes...)
			if got := ts.idOf("a"); got != "1-2" || len(ts.all) != 1 || ts.count[workerUID{"w", "u"}] != 1 {
				t.Errorf("the timer is %q; %d timers, %d counted", got, len(ts.all), ts.count[workerUID{"w", "u"}])
			}
			// A failed attempt is noted at its place, and then it is gone.
			ts.apply([]stateWrite{put("0", "1-2", "a")})
			ts.apply([]stateWrite{gone("0")})
			if got := ts.idOf("a"); got != "" || len(ts.all) != 0 {
				t.Errorf("the timer is %q; %d timers", got, len(ts.all))
			}
		})
	}
}

// TestPlaces checks that timers get the lowest places that are free, also several at once, and
// that a timer which is set again keeps its place.
func TestPlaces(t *testing.T) {
	ts, put, gone := timersIn()
	restore(t, ts, put("1", "1-1", "a"), put("3", "1-2", "b"))
	set := func(names ...string) (places []string) {
		var writes []stateWrite
		for _, name := range names {
			writes = append(writes, put("", "2-"+name, name))
		}
		ts.assignPlaces(writes)
		ts.apply(writes)
		for _, w := range writes {
			places = append(places, w.Key)
		}
		return places
	}
	got := append(set("c", "d", "e"), set("a", "b")...)
	ts.apply([]stateWrite{gone("2"), gone("0")})
	got = append(got, set("f", "g", "h")...)
	if want := []string{"0", "2", "4", "1", "3", "0", "2", "5"}; !slices.Equal(got, want) {
		t.Errorf("the places %q, want %q", got, want)
	}
}
