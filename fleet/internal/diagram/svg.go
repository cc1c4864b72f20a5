package diagram

import (
	"fmt"
	"html"
	"html/template"
	"strings"
	"unicode/utf8"

	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Edge is one transition, with the names of its states.
type Edge = fsm.Edge[string]

// Drawing says what a picture shows in addition to the table.
type Drawing struct {
	Title   string           // the subject of the picture, for screen readers
	Initial string           // the state in which lives begin; "" marks none
	Current string           // the state to highlight
	Been    map[Edge]int     // how often an entity took an edge
	Counts  map[string]int64 // how many entities are in a state; nil shows no counts
	// Link returns the URL for a click on a state; nil or "" makes no link.
	Link func(state string) string
}

// SVG draws the states. Names may be any text.
func SVG(states []State, d Drawing) template.HTML {
	l := arrange(states)
	var b strings.Builder
	// The label describes the picture, because screen readers do not read its parts.
	fmt.Fprintf(&b, `<svg class="diagram" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f"`,
		l.width, l.height, l.width, l.height)
	fmt.Fprintf(&b, ` role="group" aria-label="%s">`, html.EscapeString(d.say(states)))
	b.WriteString(`<defs>`)
	arrowhead(&b, "tip", "tip", 7)
	arrowhead(&b, "tipbeen", "tip been", 6)
	b.WriteString(`</defs>`)
	been := map[string]bool{d.Current: d.Current != ""}
	for e := range d.Been {
		been[e.From], been[e.To] = true, true
	}
	for _, pass := range []bool{false, true} { // draw the edges that were taken last, on top
		for _, e := range l.edges {
			times := d.Been[Edge{From: states[e.from].Name, To: states[e.to].Name}]
			if (times > 0) == pass {
				l.line(&b, e, times)
			}
		}
	}
	for i, s := range states {
		n := l.nodes[i]
		if s.Name == d.Initial {
			left := n.x - n.w/2
			fmt.Fprintf(&b, `<circle class="begin" cx="%.1f" cy="%.1f" r="5"/>`, left-24, n.y)
			fmt.Fprintf(&b, `<path class="edge" d="M%.1f %.1fH%.1f" marker-end="url(#tip)"/>`, left-19, n.y, left-2)
		}
		l.state(&b, n, s, d, been[s.Name])
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String()) // every text in it was escaped
}

// arrowhead writes the end of an edge, which edges refer to by its id.
func arrowhead(b *strings.Builder, id, class string, size int) {
	fmt.Fprintf(b, `<marker id="%s" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="%d" markerHeight="%d"`, id, size, size)
	fmt.Fprintf(b, ` orient="auto-start-reverse"><path class="%s" d="M0 .6 7.4 4 0 7.4z"/></marker>`, class)
}

// say describes the picture in words.
func (d Drawing) say(states []State) string {
	text := fmt.Sprintf("%s: %d phases", d.Title, len(states))
	if d.Current != "" {
		text += ", now in " + d.Current
	}
	return text
}

func (l *layout) state(b *strings.Builder, n node, s State, d Drawing, been bool) {
	class := "state"
	if len(s.Next) == 0 {
		class += " terminal"
	}
	if been {
		class += " been"
	}
	if s.Name == d.Current {
		class += " now"
	}
	name := html.EscapeString(s.Name)
	link := ""
	if d.Link != nil {
		link = d.Link(s.Name)
	}
	if d.Counts[s.Name] > 0 {
		class += " some"
	}
	if link != "" {
		fmt.Fprintf(b, `<a href="%s">`, html.EscapeString(link))
	}
	x, y := n.x-n.w/2, n.y-nodeHeight/2
	title := "<title>" + name + "</title>"
	if link != "" && utf8.RuneCountInString(s.Name) <= maxLabel {
		title = "" // the text of the link is its name
	}
	fmt.Fprintf(b, `<g class="%s">%s`, class, title)
	fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="9"/>`, x, y, n.w, nodeHeight)
	if len(s.Next) == 0 {
		fmt.Fprintf(b, `<rect class="inner" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="6"/>`,
			x+3.5, y+3.5, n.w-7, nodeHeight-7)
	}
	if d.Counts == nil {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f">%s</text>`, n.x, n.y+4.5, short(s.Name))
	} else {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f">%s</text>`, n.x, n.y-2.5, short(s.Name))
		fmt.Fprintf(b, `<text class="count" x="%.1f" y="%.1f">%d</text>`, n.x, n.y+14, d.Counts[s.Name])
	}
	b.WriteString(`</g>`)
	if link != "" {
		b.WriteString(`</a>`)
	}
}

func short(name string) string { return html.EscapeString(text.Column(name, maxLabel)) }

// line draws one edge: a curve through its bends. The curve is a little above the middle
// when it goes to the right and a little below when it goes back, so that the two edges
// of a pair do not cover each other.
func (l *layout) line(b *strings.Builder, e edge, times int) {
	class, tip, title := "edge", "tip", ""
	if times > 0 {
		class, tip = "edge been", "tipbeen"
		from, to := html.EscapeString(l.states[e.from].Name), html.EscapeString(l.states[e.to].Name)
		title = fmt.Sprintf("<title>%s to %s, %d×</title>", from, to, times)
	}
	if e.from == e.to {
		n := l.nodes[e.from]
		top := n.y - nodeHeight/2
		fmt.Fprintf(b, `<path class="%s" d="M%.1f %.1fc-10 -26 34 -26 24 -2" marker-end="url(#%s)">%s</path>`,
			class, n.x-12, top, tip, title)
		return
	}
	shift := -7.0
	mark := "marker-end"
	if e.back {
		class += " back"
		shift, mark = 7, "marker-start"
	}
	first := l.nodes[e.path[0]]
	x, y := first.x+first.w/2+2, first.y+shift
	fmt.Fprintf(b, `<path class="%s" d="M%.1f %.1f`, class, x, y)
	for _, id := range e.path[1:] {
		n := l.nodes[id]
		nx, ny := n.x, n.y+shift
		if n.state >= 0 {
			nx = n.x - n.w/2 - 2
		}
		bend := (nx - x) * 0.45
		fmt.Fprintf(b, "C%.1f %.1f %.1f %.1f %.1f %.1f", x+bend, y, nx-bend, ny, nx, ny)
		x, y = nx, ny
	}
	fmt.Fprintf(b, `" %s="url(#%s)">%s</path>`, mark, tip, title)
}
