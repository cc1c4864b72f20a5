package operator

import (
	"fmt"
	"testing"
	"time"
)

// A person who signs in and out without end makes no ended session of another good again.
func TestEndedSessionsStayEnded(t *testing.T) {
	l, err := newSessions(Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	victim := session{ID: "victim", Who: &person{Issuer: "i", Name: "ada"}, Until: time.Now().Add(time.Hour)}
	l.forget(victim)
	for i := range 2*maxEnded + 10 {
		l.forget(session{ID: fmt.Sprint(i), Who: &person{Issuer: "i", Name: "eve"}, Until: time.Now().Add(time.Hour + time.Duration(i))})
	}
	if !l.over(t.Context(), victim) || !l.over(t.Context(), session{ID: fmt.Sprint(2*maxEnded + 9)}) {
		t.Error("a session that has ended is good again")
	}
	if n := len(l.ended); n > maxEnded+2 {
		t.Errorf("%d ended sessions are remembered", n)
	}
	l.forget(session{ID: "old", Token: "t", Until: time.Now().Add(-time.Second)})
	l.forget(session{ID: "new", Token: "t", Until: time.Now().Add(time.Hour)})
	if _, kept := l.ended["old"]; kept {
		t.Error("one that has expired is remembered")
	}
}
