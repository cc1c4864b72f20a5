package operator

import (
	"fmt"
	"testing"
	"time"
)

// However many sessions end, none of them is good again. One that has expired is forgotten.
func TestEndedSessionsStayEnded(t *testing.T) {
	l, err := newSessions(Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	victim := session{ID: "victim", Who: &person{Issuer: "i", Name: "ada"}, Until: time.Now().Add(time.Hour)}
	l.rememberEnd(victim)
	for i := range 1000 {
		l.rememberEnd(session{ID: fmt.Sprint(i), Who: &person{Issuer: "i", Name: "eve"}, Until: time.Now().Add(time.Hour + time.Duration(i))})
	}
	if !l.hasEnded(t.Context(), victim) || !l.hasEnded(t.Context(), session{ID: "999"}) {
		t.Error("a session that has ended is good again")
	}
	l.rememberEnd(session{ID: "old", Token: "t", Until: time.Now().Add(-time.Second)})
	l.rememberEnd(session{ID: "new", Token: "t", Until: time.Now().Add(time.Hour)})
	if _, kept := l.ended["old"]; kept {
		t.Error("one that has expired is remembered")
	}
}
