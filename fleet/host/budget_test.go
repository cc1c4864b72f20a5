package host

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// counter is what a test of a budget looks at.
type counter struct {
	t      *testing.T
	budget *budget
	ctx    context.Context

	mu sync.Mutex // guards in
	in map[string]int
}

func newCounter(t *testing.T, places int, memory, message int64) *counter {
	b := &budget{places: places, memory: memory, floor: 2 * message, tenants: make(map[string]*tenantBudget)}
	return &counter{t: t, budget: b, ctx: t.Context(), in: make(map[string]int)}
}

// enter has a message of an account wait for w, and then keep what it has for a time. It enters
// again when that is over.
func (c *counter) enter(a *account, w waiter, again int, keep time.Duration) {
	go func() {
		for range again {
			leave, err := a.enter(c.ctx, w)
			if err != nil {
				return
			}
			c.mu.Lock()
			c.in[a.name]++
			c.mu.Unlock()
			time.Sleep(keep)
			leave()
		}
	}()
	synctest.Wait()
}

// was returns how many messages of an account have entered.
func (c *counter) was(name string) int {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.in[name]
}

var (
	quick   = waiter{place: true}
	sleeper = waiter{place: true, slow: true}
)

// Messages of one tenant that sleep do not make another tenant's message wait, and neither do those
// of workers without a history make a quick one of their own tenant wait.
func TestPlacesAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, 8, 1<<30, 1)
		quiet := c.budget.open("quiet", "quiet", Grant{})
		own := c.budget.open("loud", "own", Grant{})
		for range 30 {
			c.enter(c.budget.open("loud", "sleeper", Grant{}), sleeper, 1, 8*time.Second)
		}
		if c.was("sleeper") != 4 {
			t.Errorf("%d sleepers have a place, want half of them", c.was("sleeper"))
		}
		c.enter(quiet, sleeper, 1, time.Minute)
		c.enter(own, quick, 1, time.Minute)
		if c.was("quiet") != 1 || c.was("own") != 1 {
			t.Errorf("in are %v, want the quiet tenant and the quick worker", c.in)
		}
		time.Sleep(time.Hour)
		if c.was("sleeper") != 30 || c.budget.taken != 0 || c.budget.slow != 0 {
			t.Errorf("in were %v, and %d places are taken", c.in, c.budget.taken)
		}
	})
}

// Tenants that wait take turns, whatever the number of their workers, and so do the workers of each.
func TestPlacesGoRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, 2, 1<<30, 1)
		few := c.budget.open("few", "few", Grant{})
		for range 10 {
			c.enter(c.budget.open("many", "many", Grant{}), quick, 1000, time.Second)
		}
		c.enter(few, quick, 1000, time.Second)
		fewBefore, manyBefore := c.was("few"), c.was("many")
		time.Sleep(100 * time.Second)
		if c.was("few")-fewBefore < 95 || c.was("many")-manyBefore < 95 {
			t.Errorf("in were %v, want as many of each tenant", c.in)
		}
		time.Sleep(20000 * time.Second)
	})
}

// A message waits until there is memory for what it may produce. What a tenant has produced, and the
// server does not have yet, makes that tenant wait, and no other.
func TestMemoryIsABudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, 100, 100, 10)
		loud := c.budget.open("loud", "loud", Grant{})
		other := c.budget.open("other", "other", Grant{})
		for range 20 {
			c.enter(loud, waiter{place: true, memory: 10}, 1, time.Second)
		}
		if now := c.budget.now(); c.was("loud") != 5 || now.UsedMemory != 50 || now.ForMemory != 1 {
			t.Errorf("in are %v: %+v, want half of the memory", c.in, now)
		}
		c.enter(other, waiter{place: true, memory: 10}, 1, time.Second)
		if c.was("other") != 1 {
			t.Error("another tenant waits")
		}
		time.Sleep(time.Hour)
		if c.was("loud") != 20 {
			t.Errorf("in were %v", c.in)
		}
		loud.add(60) // outputs that the server does not take
		c.enter(loud, waiter{place: true, memory: 10}, 1, time.Second)
		c.enter(other, waiter{place: true, memory: 10}, 1, time.Second)
		if c.was("loud") != 20 || c.was("other") != 2 || !loud.tenant.over.Load() {
			t.Errorf("in were %v, want only the other one again", c.in)
		}
		loud.add(-60)
		synctest.Wait()
		if c.was("loud") != 21 {
			t.Error("it waits for memory that was given back")
		}
		time.Sleep(time.Minute)
		loud.add(7)
		loud.close()
		loud.add(7)
		other.close()
		if b := c.budget; b.used != 0 || b.taken != 0 || len(b.tenants) != 0 {
			t.Errorf("left are %d bytes, %d places and %d tenants", b.used, b.taken, len(b.tenants))
		}
	})
}

// A grant bounds the places and the memory of a tenant, also when it is alone. What needs more than
// there ever is enters alone.
func TestGrantsBoundPlacesAndMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, 100, 100, 10)
		places := c.budget.open("places", "places", Grant{Handlers: 2})
		memory := c.budget.open("memory", "memory", Grant{Memory: 30})
		for range 10 {
			c.enter(places, quick, 1, time.Second)
			c.enter(memory, waiter{memory: 10}, 1, time.Second)
		}
		if c.was("places") != 2 || c.was("memory") != 3 {
			t.Errorf("in are %v, want 2 and 3", c.in)
		}
		time.Sleep(time.Hour)
		c.enter(memory, waiter{memory: 1000}, 1, time.Second)
		c.enter(memory, waiter{memory: 1}, 1, time.Second)
		if c.was("memory") != 11 {
			t.Errorf("in were %v, want the large one alone", c.in)
		}
		time.Sleep(time.Hour)
		if c.was("memory") != 12 {
			t.Errorf("in were %v", c.in)
		}
	})
}

// Messages that wait count for at most a quarter of the memory, however many they are: they never
// keep all memory from those that are handled, from a load, and from a worker in this process.
func TestMessagesThatWaitStopNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, 100, 100, 10)
		a := c.budget.open("a", "a", Grant{})
		a.addUnread(60)
		c.enter(a, waiter{place: true, memory: 50}, 1, time.Second)
		c.enter(a, waiter{place: true, memory: 50}, 1, time.Second)
		if c.was("a") != 1 {
			t.Errorf("in are %v, want one: two and what waits are more than there is", c.in)
		}
		a.addUnread(1000)
		time.Sleep(time.Hour)
		c.enter(a, waiter{memory: 1000}, 1, time.Second)
		time.Sleep(time.Hour)
		if c.was("a") != 3 || a.tenant.over.Load() {
			t.Errorf("in were %v; over is %v", c.in, a.tenant.over.Load())
		}
		if now := c.budget.now(); now.UsedMemory != 1060 {
			t.Errorf("%+v, want what waits in the memory that is used", now)
		}
		a.addUnread(-1060)
		c.enter(a, waiter{memory: 50}, 1, time.Second)
		c.enter(a, waiter{memory: 50}, 1, time.Second)
		if now := c.budget.now(); c.was("a") != 5 || now.UsedMemory != 100 {
			t.Errorf("in were %v: %+v", c.in, now)
		}
		time.Sleep(time.Hour)
	})
}

// A tenant whose grant is less than two messages has the memory of two.
func TestSmallGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, 100, 100, 10)
		a := c.budget.open("a", "a", Grant{Memory: 1})
		a.addUnread(1000)
		for range 3 {
			c.enter(a, waiter{place: true, memory: 10}, 1, time.Second)
		}
		if c.was("a") != 2 {
			t.Errorf("in are %v, want 2", c.in)
		}
		time.Sleep(time.Hour)
	})
}

// A message whose host stops gives up its turn, and gives back what it was just given.
func TestWaitersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, 1, 100, 10)
		a := c.budget.open("a", "a", Grant{})
		c.enter(a, quick, 1, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		c.ctx = ctx
		for range 5 {
			c.enter(a, quick, 1, time.Minute)
		}
		if now := c.budget.now(); now.ForPlace != 5 || now.ForPlaces != 5 {
			t.Errorf("%+v, want that five wait for a place", now)
		}
		cancel()
		synctest.Wait()
		if now := c.budget.now(); now.ForPlace != 0 || now.TakenPlaces != 1 {
			t.Errorf("%+v, want that none waits", now)
		}
		time.Sleep(time.Hour)
		a.close()
	})
}
