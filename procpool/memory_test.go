package procpool

import (
	"errors"
	"testing"
	"time"
)

var errDied = errors.New("it died")

func forgetful(cfg Poison) *Pool {
	return &Pool{
		cfg:       Config{Poison: cfg}.WithDefaults(),
		poisoned:  make(map[string]*Poisoned),
		blamed:    make(map[string][]time.Time),
		nextAlone: make(map[string]time.Time),
	}
}

func TestMemoryOfDeathsEnds(t *testing.T) {
	now := time.Now()
	p := forgetful(Poison{For: time.Minute})
	p.recordDeathLocked(&Query{print: "first"}, true, errDied, now)
	p.recordDeathLocked(&Query{print: "second"}, false, errDied, now.Add(time.Second))
	p.nextAlone["first"] = now
	p.forgetLocked(now.Add(time.Minute - 1))
	if len(p.poisoned) != 2 || len(p.nextAlone) != 1 {
		t.Errorf("before the end it remembers %d and %d", len(p.poisoned), len(p.nextAlone))
	}
	if list := p.Poisoned(); len(list) != 2 || !list[0].Refused || list[1].Refused {
		t.Errorf("the list is %+v", list)
	}
	p.forgetLocked(now.Add(time.Minute))
	if len(p.poisoned) != 1 || len(p.nextAlone) != 0 || p.knownLocked("first", now.Add(time.Minute)) != nil {
		t.Errorf("after a minute it remembers %d and %d", len(p.poisoned), len(p.nextAlone))
	}
}

func TestBudgetOfDeathsComesBack(t *testing.T) {
	now := time.Now()
	p := forgetful(Poison{Deaths: 4, Window: time.Minute})
	die := func(at time.Time) { p.blamed["c"] = append(p.deathsLocked("c", at), at) }
	for i := range 3 {
		die(now.Add(time.Duration(i) * time.Second))
	}
	if p.waitAfterDeathsLocked("c", now.Add(3*time.Second)) != 0 {
		t.Error("it is spent after 3 of 4")
	}
	die(now.Add(3 * time.Second))
	if wait := p.waitAfterDeathsLocked("c", now.Add(3*time.Second)); wait != 57*time.Second || p.waitAfterDeathsLocked("other", now) != 0 {
		t.Errorf("after 4 of 4 the wait is %v", wait)
	}
	if p.waitAfterDeathsLocked("c", now.Add(time.Minute)) != 0 {
		t.Error("the first has not come back")
	}
	for range 3 {
		die(now.Add(time.Minute))
	}
	if wait := p.waitAfterDeathsLocked("c", now.Add(time.Minute)); wait != 3*time.Second {
		t.Errorf("after 6 of 4 the wait is %v", wait)
	}
	p.forgetLocked(now.Add(time.Hour))
	if len(p.blamed) != 0 {
		t.Errorf("%d callers have spent something after an hour", len(p.blamed))
	}
	off := forgetful(Poison{Deaths: Off})
	off.blamed["c"] = []time.Time{now}
	if off.waitAfterDeathsLocked("c", now) != 0 {
		t.Error("Off is a limit")
	}
}
