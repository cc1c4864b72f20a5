package main

import (
	_ "embed"
	"fmt"
	"math"
	"strings"
	"text/template"
	"time"

	"github.com/pleme-io/lifecycle-go"
)

// timeline has the moments and lengths of a stop, counted from T0, the first stop request.
type timeline struct {
	Begin, End                  time.Duration // of the picture
	T0                          time.Duration
	GoAway                      time.Duration // streams are told, one after the other
	Window                      time.Duration // the drain window ends, and HTTP/2 connections get GOAWAY
	AcceptEnd                   time.Duration // the listeners close, at the latest without new connections
	LingerEnd, ServeEnd         time.Duration // idle connections and requests in flight are cut
	UnitEnd, GraceEnd           time.Duration // units are abandoned, and everything has ended
	Watchdog                    time.Duration // the watchdog ends the process
	Grace, UnitSlice, HookSlice time.Duration // lengths
}

// defaultTimeline returns the timeline of an App with the default Config.
func defaultTimeline() timeline {
	c := lifecycle.Config{}.WithDefaults()
	grace := c.DrainInterval + c.ShutdownGrace
	return timeline{
		Begin:     -3 * time.Second,
		GoAway:    c.GoAwayAfter,
		Window:    c.DrainInterval,
		AcceptEnd: c.DrainInterval + c.AcceptMax,
		LingerEnd: c.DrainInterval + c.Linger,
		ServeEnd:  grace - c.HookSlice - c.UnitSlice,
		UnitEnd:   grace - c.HookSlice,
		GraceEnd:  grace,
		Watchdog:  grace + lifecycle.Margin,
		End:       grace + lifecycle.Margin + 1500*time.Millisecond,
		Grace:     c.ShutdownGrace,
		UnitSlice: c.UnitSlice,
		HookSlice: c.HookSlice,
	}
}

//go:embed choreography.svg.tmpl
var picture string

// Where the lanes begin and end, in the picture's own units.
const laneLeft, laneRight = 158, 940

// x returns where a moment is.
func (t timeline) x(d time.Duration) float64 {
	part := float64(d-t.Begin) / float64(t.End-t.Begin)
	return rounded(laneLeft + (laneRight-laneLeft)*part)
}

// bar is one stretch of a lane, with a text on it or after its beginning.
type bar struct {
	Tone, Text       string
	X, Width, Middle float64
}

// letter is the mean width of a letter of the texts on bars, on the wide side.
const letter = 6.1

// bar refuses an empty stretch and a text that does not fit: a changed default may need a
// shorter text.
func (t timeline) bar(tone string, from, to time.Duration, text string) (bar, error) {
	b := bar{Tone: tone, Text: text, X: t.x(from), Width: rounded(t.x(to) - t.x(from))}
	b.Middle = rounded(b.X + b.Width/2)
	if need := 8 + letter*float64(len(text)); b.Width <= 0 || text != "" && need > b.Width {
		return b, fmt.Errorf("%q needs %.0f, and its bar from %v to %v is %.0f wide", text, need, from, to, b.Width)
	}
	return b, nil
}

func rounded(x float64) float64 { return math.Round(10*x) / 10 }

// choreography draws a stop over time, to scale.
func choreography(t timeline) (string, error) {
	funcs := template.FuncMap{
		"x":       t.x,
		"bar":     t.bar,
		"add":     func(a, b float64) float64 { return rounded(a + b) },
		"seconds": func(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) },
	}
	parsed, err := template.New("choreography.svg").Funcs(funcs).Parse(picture)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = parsed.Execute(&b, t)
	return b.String(), err
}
