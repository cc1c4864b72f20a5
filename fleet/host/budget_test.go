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
	budget *budget
	ctx    context.Context

	mu sync.Mutex // guards in
	in map[string]int
}

// newCounter returns one of a budget with so many places, the one of each tenant's own included.
func newCounter(t *testing.T, places int) *counter {
	b := newBudget(&Config{MaxHandlers: places, MemoryBudget: 1 << 40})
	return &counter{budget: b, ctx: t.Context(), in: make(map[string]int)}
}

// enter has messages of a tenant wait for a place, one after the other, and keep it for a time.
func (c *counter) enter(of *tenant, name string, slow bool, messages int, keep time.Duration) {
	go func() {
		for range messages {
			leave, err := of.enter(c.ctx, slow)
			if err != nil {
				return
			}
			c.mu.Lock()
			c.in[name]++
			c.mu.Unlock()
			time.Sleep(keep)
			leave()
		}
	}()
	synctest.Wait()
}

// was returns how many messages have entered.
func (c *counter) was(name string) int {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.in[name]
}

// Messages of one tenant that sleep do not make another tenant's message wait, and neither do those
// of workers without a history make a quick one of their own tenant wait.
func TestPlacesAreFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, 9)
		quiet, loud := c.budget.tenant("quiet", Grant{}), c.budget.tenant("loud", Grant{})
		for range 30 {
			c.enter(loud, "sleeper", true, 1, 8*time.Second)
		}
		if c.was("sleeper") != 5 {
			t.Errorf("%d sleepers have a place, want half of them and the one of their own", c.was("sleeper"))
		}
		c.enter(quiet, "quiet", true, 1, time.Minute)
		c.enter(loud, "own", false, 1, time.Minute)
		if c.was("quiet") != 1 || c.was("own") != 1 {
			t.Errorf("in are %v, want the quiet tenant and the quick worker", c.in)
		}
		time.Sleep(time.Hour)
		if c.was("sleeper") != 30 || len(c.budget.places)+len(c.budget.slow)+len(loud.own)+len(quiet.own) != 0 {
			t.Errorf("in were %v, and places are still taken", c.in)
		}
	})
}

// A tenant handles one message after the other in the place of its own, also when other tenants have
// many more workers. A message that waits takes it too.
func TestEachTenantHasAPlaceOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, 2)
		few, many := c.budget.tenant("few", Grant{}), c.budget.tenant("many", Grant{})
		for range 10 {
			c.enter(many, "many", false, 1000, time.Second)
		}
		c.enter(few, "few", false, 100, time.Second)
		c.enter(few, "few", false, 100, time.Second)
		before := c.was("few")
		time.Sleep(100 * time.Second)
		if c.was("few")-before < 95 {
			t.Errorf("in were %v, want one of the few each second", c.in)
		}
		time.Sleep(20000 * time.Second)
	})
}

// A grant bounds the places of a tenant, also when it is alone; a grant of memory does it too, and one of
// less than a message has still one.
func TestGrantsBoundPlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, 100)
		for name, granted := range map[string]Grant{
			"places": {Handlers: 2},
			"memory": {Memory: 3 * c.budget.message},
			"small":  {Memory: 1},
		} {
			for range 10 {
				c.enter(c.budget.tenant(name, granted), name, false, 1, time.Second)
			}
		}
		if c.was("places") != 2 || c.was("memory") != 3 || c.was("small") != 1 {
			t.Errorf("in are %v, want 2, 3 and 1", c.in)
		}
		time.Sleep(time.Hour)
		if c.was("places") != 10 || c.was("memory") != 10 || c.was("small") != 10 {
			t.Errorf("in were %v", c.in)
		}
	})
}

// There are no more places than messages for which there is memory.
func TestMemoryBoundsPlaces(t *testing.T) {
	cfg := Config{MaxHandlers: 100}
	cfg.MemoryBudget = 10 * cfg.memoryOfMessage()
	if b := newBudget(&cfg); cap(b.places) != 9 {
		t.Errorf("%d places beside the one of a tenant, want 9", cap(b.places))
	}
}

// A slot that has produced too much waits until the server has it, and while the host holds too much
// every slot that has produced something does. What a slot had is given back with it.
func TestWhatIsProducedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newCounter(t, 2).budget
		b.memory = 4 * maxProduced
		loud, other := b.open(), b.open()
		waits := func(a *account) bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return a.await(ctx, a.hasRoom) != nil
		}
		loud.stage(maxProduced)
		other.stage(1)
		if !waits(loud) || !b.isFull() || !waits(other) {
			t.Error("it has no bound, or the other one takes more although the host is full")
		}
		loud.stage(-1)
		if b.isFull() || waits(other) {
			t.Error("the other one waits although there is room")
		}
		loud.stage(2)
		go func() { time.Sleep(time.Second); loud.stage(-maxProduced) }()
		if loud.await(t.Context(), loud.hasRoom) != nil || b.isFull() {
			t.Error("it waits for what was given back")
		}
		// What other slots give back lets in one that waits, and a slot whose output waits goes on alone.
		loud.stage(maxProduced)
		go func() { time.Sleep(time.Second); loud.close() }()
		if other.await(t.Context(), other.hasRoom) != nil || !other.isEmpty() && b.isFull() {
			t.Error("it waits although there is room")
		}
		loud = b.open()
		loud.add(2 * maxProduced)
		other.stage(-1)
		other.send(700)
		if !b.isFull() || waits(other) {
			t.Error("an output that cannot be sent holds up its slot while the host is full")
		}
		other.store(maxCache)
		if !waits(other) {
			t.Error("values that cannot be stored have no bound")
		}
		other.store(-maxCache)
		other.send(-700)
		loud.close()
		loud.close()
		other.add(7)
		other.close()
		other.add(7)
		if b.held.Load() != 0 || b.slots.Load() != 0 {
			t.Errorf("left are %d bytes of %d slots", b.held.Load(), b.slots.Load())
		}
	})
}

// A message whose host stops gives up its turn.
func TestWaitersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, 2)
		a := c.budget.tenant("a", Grant{Handlers: 2})
		c.enter(a, "a", false, 1, time.Minute)
		c.enter(a, "a", true, 1, time.Minute)
		ctx, cancel := context.WithCancel(t.Context())
		c.ctx = ctx
		for range 5 {
			c.enter(a, "a", true, 1, time.Minute)
		}
		if now, all := c.budget.forPlace.now.Load(), c.budget.forPlace.all.Load(); now != 5 || all != 5 {
			t.Errorf("%d wait of %d, want that five wait for a place", now, all)
		}
		cancel()
		synctest.Wait()
		if now := c.budget.forPlace.now.Load(); now != 0 || len(c.budget.places) != 1 {
			t.Errorf("%d wait, and %d places are taken", now, len(c.budget.places))
		}
		time.Sleep(time.Hour)
		if len(c.budget.places)+len(c.budget.slow)+len(a.granted)+len(a.own) != 0 {
			t.Error("places are still taken")
		}
	})
}
