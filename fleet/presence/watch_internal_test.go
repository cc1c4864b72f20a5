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
