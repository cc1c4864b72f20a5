package statusz

import (
	"github.com/pleme-io/lifecycle-go/worker"
)

// tree returns the App and its units as one tree, no deeper than [maxTree] and with no
// more workers than [maxWorkers].
func (v View) tree() worker.State {
	status := worker.Status(v.Phase) // not a worker's status, but only shown
	left := maxWorkers
	return worker.State{Name: v.Name, Kind: "app", Status: status, Error: v.Error, Children: pruned(v.Units, maxTree, &left)}
}

// maxWorkers bounds how many workers the page lists. A longer page is useless,
// and a State that contains itself twice would never end. The JSON has all
// workers.
const maxWorkers = 20_000

func pruned(units []worker.State, depth int, left *int) []worker.State {
	units = units[:min(len(units), *left)]
	if depth == 0 || len(units) == 0 {
		return nil
	}
	*left -= len(units)
	out := make([]worker.State, len(units))
	for i, u := range units {
		u.Children = pruned(u.Children, depth-1, left)
		out[i] = u
	}
	return out
}

// sizeOf counts the workers of a tree, including its root.
func sizeOf(tree worker.State) int {
	n := 1
	for _, c := range tree.Children {
		n += sizeOf(c)
	}
	return n
}
