package diagram

import (
	"cmp"
	"math"
	"slices"
	"unicode/utf8"
)

// State is one state, with the states that may follow it.
type State struct {
	Name string
	Next []string
}

// Measures of a drawing, in its own units, which are CSS pixels at full size.
const (
	nodeHeight = 46.0
	rowGap     = 26.0
	layerGap   = 64.0
	margin     = 26.0
	maxLabel   = 22 // characters; a longer name is cut, and its title has the whole text
)

// node is a state, or a bend of an edge that spans several layers.
type node struct {
	state    int // -1 for a bend
	layer    int
	row      int
	w        float64
	x, y     float64 // of its centre
	ins, out []int   // neighbours in the layers before and behind
}

// edge is an allowed transition. It has the nodes that its line passes, from left to
// right, and whether the transition goes from right to left.
type edge struct {
	from, to int
	path     []int
	back     bool
}

// layout places every state and every edge.
type layout struct {
	states        []State
	nodes         []node
	edges         []edge
	layers        [][]int
	width, height float64
}

func arrange(states []State) *layout {
	l := &layout{states: states}
	index := map[string]int{}
	for i, s := range states {
		index[s.Name] = i
	}
	for from, s := range states {
		for _, next := range s.Next {
			if to, ok := index[next]; ok {
				l.edges = append(l.edges, edge{from: from, to: to})
			}
		}
	}
	l.turnCycles()
	l.layer()
	l.bend()
	l.order()
	l.place()
	return l
}

// turnCycles marks the edges that lead back to an earlier state, so that all others
// lead from left to right.
func (l *layout) turnCycles() {
	const (
		fresh = iota
		open
		done
	)
	seen := make([]int, len(l.states))
	var visit func(int)
	visit = func(s int) {
		seen[s] = open
		for i := range l.edges {
			if e := &l.edges[i]; e.from == s && e.to != s {
				switch seen[e.to] {
				case open:
					e.back = true
				case fresh:
					visit(e.to)
				}
			}
		}
		seen[s] = done
	}
	for s := range l.states {
		if seen[s] == fresh {
			visit(s)
		}
	}
}

// ends returns the edge's left and right state.
func (e edge) ends() (left, right int) {
	if e.back {
		return e.to, e.from
	}
	return e.from, e.to
}

// layer puts each state one layer to the right of the last state that leads to it.
func (l *layout) layer() {
	for i, s := range l.states {
		chars := min(utf8.RuneCountInString(s.Name), maxLabel)
		l.nodes = append(l.nodes, node{state: i, w: math.Max(84, 7.7*float64(chars)+34)})
	}
	for range l.states { // no path is longer than the number of states
		moved := false
		for _, e := range l.edges {
			left, right := e.ends()
			if left != right && l.nodes[right].layer <= l.nodes[left].layer {
				l.nodes[right].layer = l.nodes[left].layer + 1
				moved = true
			}
		}
		if !moved {
			break
		}
	}
}

// bend gives a long edge a node in each layer that it passes.
func (l *layout) bend() {
	last := 0
	for i := range l.edges {
		e := &l.edges[i]
		left, right := e.ends()
		if left == right {
			continue
		}
		e.path = []int{left}
		for layer := l.nodes[left].layer + 1; layer < l.nodes[right].layer; layer++ {
			l.nodes = append(l.nodes, node{state: -1, layer: layer})
			e.path = append(e.path, len(l.nodes)-1)
		}
		e.path = append(e.path, right)
		for j := 1; j < len(e.path); j++ {
			a, b := e.path[j-1], e.path[j]
			l.nodes[a].out = append(l.nodes[a].out, b)
			l.nodes[b].ins = append(l.nodes[b].ins, a)
		}
	}
	for i := range l.nodes {
		last = max(last, l.nodes[i].layer)
	}
	l.layers = make([][]int, last+1)
	for i := range l.nodes {
		l.layers[l.nodes[i].layer] = append(l.layers[l.nodes[i].layer], i)
	}
}

// order sorts each layer by the mean row of its neighbours, in passes to the right and
// to the left.
func (l *layout) order() {
	l.number()
	for sweep := range 12 {
		for i := range l.layers {
			layer := i
			if sweep%2 == 1 {
				layer = len(l.layers) - 1 - i
			}
			mean := map[int]float64{}
			for _, n := range l.layers[layer] {
				near := l.nodes[n].ins
				if sweep%2 == 1 {
					near = l.nodes[n].out
				}
				mean[n] = float64(l.nodes[n].row)
				if len(near) > 0 {
					sum := 0.0
					for _, m := range near {
						sum += float64(l.nodes[m].row)
					}
					mean[n] = sum / float64(len(near))
				}
			}
			slices.SortStableFunc(l.layers[layer], func(a, b int) int { return cmp.Compare(mean[a], mean[b]) })
			l.number()
		}
	}
}

func (l *layout) number() {
	for _, layer := range l.layers {
		for row, n := range layer {
			l.nodes[n].row = row
		}
	}
}

// place gives coordinates: each node near the mean of its neighbours, in the
// order of its layer and without overlap.
func (l *layout) place() {
	x := margin + 22 // room for the mark of the initial state
	for _, layer := range l.layers {
		w := 0.0
		for _, n := range layer {
			w = math.Max(w, l.nodes[n].w)
		}
		y := 0.0
		for _, n := range layer {
			l.nodes[n].x = x + w/2
			l.nodes[n].y = y
			y += nodeHeight + rowGap
		}
		x += w + layerGap
	}
	l.width = x - layerGap + margin
	for sweep := range 24 {
		for i := range l.layers {
			layer := l.layers[i]
			if sweep%2 == 1 {
				layer = l.layers[len(l.layers)-1-i]
			}
			l.relax(layer)
		}
	}
	top, bottom := math.Inf(1), math.Inf(-1)
	for _, n := range l.nodes {
		top, bottom = math.Min(top, n.y), math.Max(bottom, n.y)
	}
	for i := range l.nodes {
		l.nodes[i].y += margin + 16 + nodeHeight/2 - top // room for loops above
	}
	l.height = bottom - top + nodeHeight + 2*margin + 16
	if len(l.nodes) == 0 {
		l.width, l.height = 2*margin, 2*margin
	}
}

// relax moves each node of one layer to the mean of its neighbours, and then moves the
// nodes apart without moving the middle of the layer.
func (l *layout) relax(layer []int) {
	if len(layer) == 0 {
		return
	}
	want := make([]float64, len(layer))
	for i, n := range layer {
		near := slices.Concat(l.nodes[n].ins, l.nodes[n].out)
		want[i] = l.nodes[n].y
		if len(near) > 0 {
			sum := 0.0
			for _, m := range near {
				sum += l.nodes[m].y
			}
			want[i] = sum / float64(len(near))
		}
	}
	down, up := slices.Clone(want), slices.Clone(want)
	for i := 1; i < len(layer); i++ {
		down[i] = math.Max(down[i], down[i-1]+l.apart(layer[i-1], layer[i]))
	}
	for i := len(layer) - 2; i >= 0; i-- {
		up[i] = math.Min(up[i], up[i+1]-l.apart(layer[i], layer[i+1]))
	}
	for i, n := range layer {
		l.nodes[n].y = (down[i] + up[i]) / 2
	}
}

// apart returns the least distance between the centres of two neighbours. A bend needs
// less room than a state.
func (l *layout) apart(a, b int) float64 {
	half := func(n int) float64 {
		if l.nodes[n].state < 0 {
			return 9
		}
		return nodeHeight / 2
	}
	return half(a) + half(b) + rowGap
}
