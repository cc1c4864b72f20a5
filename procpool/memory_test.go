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
		m.recordDeath("refused"+strconv.Itoa(i), "", true, errDied, now)
	}
	for i := range 1000 {
		m.recordDeath(strconv.Itoa(i), "", false, errDied, now.Add(time.Second))
		m.runNextAlone(strconv.Itoa(i), now.Add(time.Duration(i)))
	}
	list := m.list(now)
	if len(m.prints) != 10 || len(list) != 10 || len(m.nextAlone) != 10 {
		t.Errorf("it remembers %d and %d", len(m.prints), len(m.nextAlone))
	}
	for i, known := range list {
		if known.Refused != (i < 5) {
			t.Errorf("%d is %+v: those with one death have to go first", i, known)
		}
	}
	if _, newest := m.nextAlone["999"]; !newest {
		t.Errorf("it has forgotten the newest name, not the oldest: %v", m.nextAlone)
	}
	m.sweep(now.Add(time.Minute))
	if len(m.prints) != 5 || len(m.nextAlone) != 10 || m.about("refused1", now.Add(time.Minute)) != nil {
		t.Errorf("after a minute it remembers %d and %d", len(m.prints), len(m.nextAlone))
	}
	m.sweep(now.Add(2 * time.Minute))
	if len(m.prints) != 0 || len(m.nextAlone) != 0 {
		t.Errorf("at the end it remembers %d and %d", len(m.prints), len(m.nextAlone))
	}
}

func TestBudgetOfDeathsComesBack(t *testing.T) {
	now := time.Now()
	m := newMemory(Poison{Remember: 3, Deaths: 4, Window: time.Minute}.withDefaults())
	for i := range 3 {
		m.countDeath("c", now.Add(time.Duration(i)*time.Second))
	}
	if m.waitAfterDeaths("c", now.Add(3*time.Second)) != 0 {
		t.Error("it is spent after 3 of 4")
	}
	m.countDeath("c", now.Add(3*time.Second))
	if wait := m.waitAfterDeaths("c", now.Add(3*time.Second)); wait != 57*time.Second || m.waitAfterDeaths("other", now) != 0 || m.waitAfterDeaths("", now) != 0 {
		t.Errorf("after 4 of 4 the wait is %v", wait)
	}
	if m.waitAfterDeaths("c", now.Add(time.Minute)) != 0 {
		t.Error("the first has not come back")
	}
	for range 3 {
		m.countDeath("c", now.Add(time.Minute))
	}
	if wait := m.waitAfterDeaths("c", now.Add(time.Minute)); wait != 3*time.Second {
		t.Errorf("after 6 of 4 the wait is %v", wait)
	}
	m.takeBackDeaths("c", 3, now.Add(time.Minute))
	if m.waitAfterDeaths("c", now.Add(time.Minute)) != 0 {
		t.Error("deaths that were cleared count")
	}
	m.takeBackDeaths("c", 100, now.Add(time.Minute))
	m.countDeath("", now)
	if len(m.deaths["c"]) != 0 || m.waitAfterDeaths("", now) != 0 {
		t.Errorf("it remembers %v", m.deaths)
	}
	for i := range 100 {
		m.countDeath("a caller "+strconv.Itoa(i), now.Add(time.Duration(i)))
	}
	if len(m.deaths) > 3 {
		t.Errorf("it remembers %d callers", len(m.deaths))
	}
	m.sweep(now.Add(time.Hour))
	if len(m.deaths) != 0 {
		t.Errorf("%d callers have spent something after an hour", len(m.deaths))
	}
	off := newMemory(Poison{Deaths: Off}.withDefaults())
	off.countDeath("c", now)
	if off.waitAfterDeaths("c", now) != 0 {
		t.Error("Off is a limit")
	}
}
