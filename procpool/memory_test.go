package procpool

import (
	"errors"
	"strconv"
	"testing"
	"time"
)

var errDied = errors.New("it died")

func TestMemoryOfDeathsIsBoundedAndEnds(t *testing.T) {
	now := time.Now()
	m := newMemory(Poison{Remember: 10, For: time.Minute}.withDefaults())
	for i := range 5 {
		m.died("refused"+strconv.Itoa(i), "", true, errDied, now)
	}
	for i := range 1000 {
		m.died(strconv.Itoa(i), "", false, errDied, now.Add(time.Second))
	}
	list := m.list(now)
	if len(m.prints) != 10 || len(list) != 10 {
		t.Errorf("it remembers %d", len(m.prints))
	}
	for i, known := range list {
		if known.Refused != (i < 5) {
			t.Errorf("%d is %+v: those with one death have to go first", i, known)
		}
	}
	m.clear("refused1")
	m.clear("999")
	if m.about("refused1", now) == nil || m.about("999", now) != nil {
		t.Error("clear has to forget what one death is known of, and nothing else")
	}
	m.sweep(now.Add(time.Minute))
	if len(m.prints) != 4 || m.about("refused1", now.Add(time.Minute)) != nil {
		t.Errorf("after a minute it remembers %d", len(m.prints))
	}
	m.sweep(now.Add(2 * time.Minute))
	if len(m.prints) != 0 {
		t.Errorf("at the end it remembers %d", len(m.prints))
	}
}

func TestBudgetOfDeathsComesBack(t *testing.T) {
	now := time.Now()
	m := newMemory(Poison{Remember: 3, Deaths: 4, Window: time.Minute}.withDefaults())
	for range 3 {
		m.charge("c", 1, now)
	}
	if m.spent("c", now) != 0 {
		t.Error("it is spent after 3 of 4")
	}
	m.charge("c", 1, now)
	if wait := m.spent("c", now); wait != 15*time.Second || m.spent("other", now) != 0 || m.spent("", now) != 0 {
		t.Errorf("after 4 of 4 the wait is %v", wait)
	}
	if m.spent("c", now.Add(15*time.Second)) != 0 {
		t.Error("the first has not come back")
	}
	m.charge("c", 100, now.Add(15*time.Second))
	if wait := m.spent("c", now.Add(15*time.Second)); wait != 75*time.Second {
		t.Errorf("after many the wait is %v", wait)
	}
	m.charge("c", -100, now.Add(15*time.Second))
	if m.spent("c", now.Add(15*time.Second)) != 0 {
		t.Error("deaths that were cleared count")
	}
	for i := range 100 {
		m.charge("a caller "+strconv.Itoa(i), 2, now)
	}
	if len(m.callers) > 3 {
		t.Errorf("it remembers %d callers", len(m.callers))
	}
	m.sweep(now.Add(time.Hour))
	if len(m.callers) != 0 {
		t.Errorf("%d callers have spent something after an hour", len(m.callers))
	}
	off := newMemory(Poison{Deaths: Off}.withDefaults())
	off.charge("c", 1000, now)
	if off.spent("c", now) != 0 {
		t.Error("Off is a limit")
	}
}
