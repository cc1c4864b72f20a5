package presence

import (
	"testing"
	"testing/synctest"
	"time"
)

// A watch that stood still for longer than the TTL, with its process or on a busy machine, has not
// read the announcements of that time. It reports no process as dead that announces itself, and still
// reports one that does not.
func TestAWatchThatStoodStillBuriesNoProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 12 * time.Second
		k := newTracker(ttl)
		k.announced(&Process{ID: "lives"})
		k.announced(&Process{ID: "is dead"})
		time.Sleep(time.Minute)
		if died := k.expired(); len(died) > 0 {
			t.Errorf("%s counts as dead before its announcements are read", died[0].last.ID)
		}
		begun := time.Now()
		for {
			k.announced(&Process{ID: "lives"})
			time.Sleep(ttl / 12)
			died := k.expired()
			if len(died) > 1 || len(died) == 1 && died[0].last.ID != "is dead" {
				t.Fatalf("%d processes count as dead, the first is %s", len(died), died[0].last.ID)
			}
			if len(died) == 1 {
				break
			}
			if time.Since(begun) > ttl+ttl/3+time.Second {
				t.Fatal("the process that has ended is not reported")
			}
		}
	})
}

// Of two processes with one id none has ended while both announce themselves, also when the later one has
// left meanwhile. Of an id that has another life each time, only the newest lives are remembered.
func TestLivesThatAnotherOneReplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newTracker(time.Minute)
		life := func(n int) *Process { return &Process{ID: "s.x", StartedAt: time.Unix(int64(n), 0)} }
		k.announced(life(1))
		k.announced(life(2))
		if !k.left("s.x") {
			t.Error("the second is not known")
		}
		for range 20 { // every ten seconds
			time.Sleep(10 * time.Second)
			if k.announced(life(1)) || len(k.expired()) > 0 {
				t.Fatal("the first counts as dead")
			}
		}
		for n := range 1000 {
			k.announced(life(n + 3))
		}
		if n := len(k.replaced["s.x"]); n != maxOthers {
			t.Errorf("%d lives are remembered", n)
		}
		for range 15 {
			time.Sleep(10 * time.Second)
			k.announced(life(1002))
			k.expired()
		}
		if died := k.expired(); len(died) != maxOthers || !died[0].replaced {
			t.Errorf("%d have expired", len(died))
		}
	})
}
