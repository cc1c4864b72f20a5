package statusz

import (
	"fmt"
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/text"
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

// maxPicture bounds how many workers are drawn.
const maxPicture = 300

// The measures of the picture, in pixels.
const (
	boxWidth, boxHeight = 190, 40
	boxRight, boxDown   = 40, 10 // from one to the next
	boxText             = 24     // characters that fit
)

// picture draws the tree as SVG from left to right, each worker beside its first
// child. The page loads no script that could draw it.
func (p *page) picture(root worker.State) {
	n, deepest := 0, 0
	var count func(w worker.State, depth int)
	count = func(w worker.State, depth int) {
		n, deepest = n+1, max(deepest, depth)
		for _, c := range w.Children {
			if n <= maxPicture {
				count(c, depth+1)
			}
		}
	}
	if count(root, 0); n < 2 {
		return
	}
	p.put("<h2>Tree</h2>\n<p class=\"dim\"><a href=\"?format=mermaid\">Mermaid</a> · <a href=\"?format=dot\">DOT</a></p>\n")
	if n > maxPicture {
		p.put("<p class=\"dim\">More than %v workers: too many for a picture.</p>\n", maxPicture)
		return
	}
	var nodes page
	row := 0
	var draw func(w worker.State, depth int) (y int)
	draw = func(w worker.State, depth int) int {
		x, y := depth*(boxWidth+boxRight), row*(boxHeight+boxDown)
		for i, c := range w.Children {
			if i > 0 {
				row++
			}
			to := draw(c, depth+1)
			fmt.Fprintf(&nodes, "<path d=\"M%d %dH%dV%dH%d\"/>\n", x+boxWidth, y+boxHeight/2, x+boxWidth+boxRight/2, to+boxHeight/2, x+boxWidth+boxRight)
		}
		fmt.Fprintf(&nodes, "<g class=\"%s\" transform=\"translate(%d %d)\"><rect width=\"%d\" height=\"%d\" rx=\"6\"/>", workerClass(w), x, y, boxWidth, boxHeight)
		nodes.put("<title>%v</title><text x=\"8\" y=\"16\">%v</text><text x=\"8\" y=\"32\" class=\"said\">%v</text></g>\n",
			strings.Join(filled(w.Name, w.Kind, w.Reason, w.Error), ", "), text.Column(w.Name, boxText), text.Column(said(w), boxText+2))
		return y
	}
	draw(root, 0)
	width, height := (deepest+1)*(boxWidth+boxRight)-boxRight, (row+1)*(boxHeight+boxDown)-boxDown
	fmt.Fprintf(p, "<div class=\"scroll\"><svg class=\"tree\" role=\"img\" aria-label=\"the tree of workers\" width=\"%d\" height=\"%d\" viewBox=\"-1 -1 %d %d\">\n", width, height, width+2, height+2)
	p.WriteString(nodes.String())
	p.WriteString("</svg></div>\n")
}

// said returns the line below a worker's name. It includes what the colour shows.
func said(w worker.State) string {
	text := string(w.Status)
	if w.Health != worker.HealthUnknown && !w.Status.Terminal() {
		text += ", " + string(w.Health)
	}
	if w.Restarts > 0 {
		text += fmt.Sprintf(", %d restarts", w.Restarts)
	}
	return text
}
