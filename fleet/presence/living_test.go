package presence_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

func TestMemberIsAliveUntilItsTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := presence.NewLiving(3 * time.Second)
		is := func(alive, died []string) {
			t.Helper()
			if got := l.Alive(); !slices.Equal(got, alive) {
				t.Errorf("alive are %q, want %q", got, alive)
			}
			if got := l.Expire(); !slices.Equal(got, died) {
				t.Errorf("dead are %q, want %q", got, died)
			}
		}
		is(nil, nil)
		for _, id := range []string{"c", "b", "a"} {
			l.Heard(id)
		}
		time.Sleep(2 * time.Second)
		l.Heard("b")
		if !l.Left("c") || l.Left("c") || l.Left("unknown") {
			t.Error("Left reports whether the member was known")
		}
		is([]string{"a", "b"}, nil)
		time.Sleep(time.Second)
		is([]string{"b"}, []string{"a"})
		is([]string{"b"}, nil) // each death once
		l.Heard("a")
		is([]string{"a", "b"}, nil)
		time.Sleep(3 * time.Second)
		is(nil, []string{"a", "b"})
	})
}
