// Package unittree cuts trees of units at a depth.
//
// An announcement and a message of the API have a bounded size. Begin with [Cut].
package unittree

import (
	"slices"

	"github.com/pleme-io/lifecycle-go/worker"
)

// Cut returns the units down to depth, and whether there are deeper ones. It
// does not change list.
func Cut(list []worker.State, depth int) (out []worker.State, cut bool) {
	if depth == 0 {
		return nil, len(list) > 0
	}
	out = list
	for i := range list {
		children, below := Cut(list[i].Children, depth-1)
		if !below {
			continue
		}
		if !cut {
			out, cut = slices.Clone(list), true
		}
		out[i].Children = children
	}
	return out, cut
}
