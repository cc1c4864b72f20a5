package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"
)

// style colours the classes, for light and dark. The picture has its own background
// card, so that it is readable on any page, also one with another
// colour scheme than the reader's system.
const style = `
text { font-family: ui-sans-serif, system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
.card { fill: #ffffff; stroke: #d1d9e0; }
.stripe { fill: #f6f8fa; }
.title { font-size: 19px; font-weight: 600; }
.note, .after, .sub, .key { fill: #59636e; }
.note, .after, .key { font-size: 12px; }
.sub { font-size: 10.5px; }
.lane { font-size: 13px; font-weight: 600; }
.when { font-size: 13px; font-weight: 600; }
.moment { stroke: #8b949e; stroke-width: 1; stroke-dasharray: 3 3; }
.phase { fill: #eaeef2; }
.phase.draining { fill: #fbe3b0; }
.phase.stopping { fill: #cfe0f7; }
.phasename { font-size: 12px; font-weight: 600; }
.serving { fill: #2c8a5b; }
.goodbye { fill: #b9770e; }
.work { fill: #4169a8; }
.atmost { fill: #c3d4ec; stroke: #4169a8; stroke-width: 1; stroke-dasharray: 4 2; }
.refused { fill: #b5483f; }
.mark { stroke: #ffffff; stroke-width: 1.5; }
.onserving, .ongoodbye, .onwork, .onrefused { font-size: 12px; fill: #ffffff; }
.onatmost { font-size: 12px; fill: #1d3c6b; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.card { fill: #0d1117; stroke: #3d444d; }
.stripe { fill: #151b23; }
.note, .after, .sub, .key { fill: #9198a1; }
.moment { stroke: #656c76; }
.phase { fill: #262c36; }
.phase.draining { fill: #5a4310; }
.phase.stopping { fill: #1f3a63; }
.serving { fill: #26794f; }
.goodbye { fill: #96610c; }
.work { fill: #3c629e; }
.atmost { fill: #1b2d49; stroke: #6c93d0; }
.refused { fill: #9c3d35; }
.mark { stroke: #0d1117; }
.onatmost { fill: #b9d0f2; }
}
`

// canvas writes an SVG, element by element.
type canvas struct{ b bytes.Buffer }

// open begins the picture. A screen reader reads title and desc.
func (c *canvas) open(w, h float64, title, desc string) {
	fmt.Fprintf(&c.b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" width="%s" height="%s" role="img" aria-labelledby="title desc">`+"\n", num(w), num(h), num(w), num(h))
	c.b.WriteString("<!-- Drawn by tools/docgen from the code. Do not edit: run \"make docs\". -->\n")
	fmt.Fprintf(&c.b, "<title id=\"title\">%s</title>\n<desc id=\"desc\">%s</desc>\n", escape(title), escape(desc))
	fmt.Fprintf(&c.b, "<style>%s</style>\n", style)
}

func (c *canvas) close() []byte {
	c.b.WriteString("</svg>\n")
	return c.b.Bytes()
}

func (c *canvas) rect(x, y, w, h, r float64, class string) {
	fmt.Fprintf(&c.b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s" rx="%s"/>`+"\n", class, num(x), num(y), num(w), num(h), num(r))
}

func (c *canvas) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(&c.b, `<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`+"\n", class, num(x1), num(y1), num(x2), num(y2))
}

func (c *canvas) diamond(x, y, r float64, class string) {
	fmt.Fprintf(&c.b, `<path class="%s" d="M%s %sL%s %sL%s %sL%s %sZ"/>`+"\n", class,
		num(x), num(y-r), num(x+r), num(y), num(x), num(y+r), num(x-r), num(y))
}

func (c *canvas) text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(&c.b, `<text class="%s" x="%s" y="%s" text-anchor="%s">%s</text>`+"\n", class, num(x), num(y), anchor, escape(text))
}

// legend explains the colours, in one row.
func (c *canvas) legend(x, y float64) {
	for _, key := range []struct {
		tone tone
		text string
		step float64
	}{
		{serving, "as ever", 92},
		{goodbye, "served, and asked to go elsewhere", 232},
		{work, "teardown at work", 142},
		{atMost, "ends when done, at the latest here", 242},
		{refused, "answers 503", 0},
	} {
		c.rect(x, y-11, 22, 13, 3, "bar "+string(key.tone))
		c.text(x+29, y, "start", "key", key.text)
		x += key.step
	}
}

// num writes a length with at most one decimal.
func num(v float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}

func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // writing to b does not fail
	return b.String()
}
