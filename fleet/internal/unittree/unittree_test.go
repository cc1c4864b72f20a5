package unittree

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Units below the depth are left out, and the given tree stays as it is.
func TestCut(t *testing.T) {
	list := []worker.State{{Name: "a", Children: []worker.State{{Name: "b", Children: []worker.State{{Name: "c"}}}}}, {Name: "d"}}
	for depth, want := range []struct {
		units int
		cut   bool
	}{{0, true}, {2, true}, {3, true}, {4, false}, {4, false}} {
		out, cut := Cut(list, depth)
		if n := count(out); n != want.units || cut != want.cut {
			t.Errorf("at depth %d there are %d units, cut: %v", depth, n, cut)
		}
		if count(list) != 4 {
			t.Fatal("the given tree has changed")
		}
	}
}

func count(list []worker.State) (n int) {
	for _, u := range list {
		n += 1 + count(u.Children)
	}
	return n
}
