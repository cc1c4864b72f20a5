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
	l.rememberEnd(victim)
	for i := range 2*maxEnded + 10 {
		l.rememberEnd(session{ID: fmt.Sprint(i), Who: &person{Issuer: "i", Name: "eve"}, Until: time.Now().Add(time.Hour + time.Duration(i))})
	}
	if !l.hasEnded(t.Context(), victim) || !l.hasEnded(t.Context(), session{ID: fmt.Sprint(2*maxEnded + 9)}) {
		t.Error("a session that has ended is good again")
	}
	if n := len(l.ended); n > maxEnded+2 {
		t.Errorf("%d ended sessions are remembered", n)
	}
	l.rememberEnd(session{ID: "old", Token: "t", Until: time.Now().Add(-time.Second)})
	l.rememberEnd(session{ID: "new", Token: "t", Until: time.Now().Add(time.Hour)})
	if _, kept := l.ended["old"]; kept {
		t.Error("one that has expired is remembered")
	}
}
