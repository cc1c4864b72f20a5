package main

import (
	"fmt"
	"time"
)

// The picture's measures, in its own units: a README shows it about 900 wide.
const (
	width     = 960.0
	pad       = 20.0
	laneLeft  = 158.0 // where the lanes' names end and time begins
	laneRight = width - pad
	laneTop   = 132.0
	laneStep  = 33.0
	barHeight = 21.0

	lead = 3 * time.Second         // normal operation before T0
	tail = 1500 * time.Millisecond // empty space after the watchdog
)

// tone is the meaning of a bar; the style sheet sets its colour.
type tone string

const (
	serving tone = "serving" // as before the stop
	goodbye tone = "goodbye" // still served, and asked to reconnect elsewhere
	work    tone = "work"    // teardown runs
	atMost  tone = "atmost"  // ends when it is done, at the latest here
	refused tone = "refused" // 503
)

// bar is one stretch of a lane.
type bar struct {
	from, to time.Duration
	tone     tone
	text     string
}

// mark is one moment in a lane.
type mark struct {
	at   time.Duration
	tone tone
	text string
}

// lane is one row: its subject, its bars, its moments, and the text
// after the last bar.
type lane struct {
	name, sub string
	bars      []bar
	marks     []mark
	after     string
}

// lanes returns the choreography, row by row.
func lanes(t timeline) []lane {
	return []lane{
		{name: "readiness", sub: "/readyz", bars: []bar{
			{-lead, 0, serving, "200"},
			{0, t.graceEnd(), refused, "503 at once: load balancers take the pod out of rotation during the window"},
		}},
		{name: "liveness", sub: "/livez", bars: []bar{
			{-lead, t.graceEnd(), serving, "200 to the end, even when a check fails: no restart in the middle of a stop"},
		}},
		{name: "listeners", sub: "new connections", bars: []bar{
			{-lead, t.Drain, serving, "accept as before"},
			{t.Drain, t.Drain + t.AcceptQuiet, atMost, ""},
		}, after: fmt.Sprintf("close after %s without a new connection", seconds(t.AcceptQuiet))},
		{name: "open connections", sub: "requests", bars: []bar{
			{-lead, 0, serving, ""},
			{0, t.Drain, goodbye, ""},
			{t.Drain, t.Drain + t.Linger, goodbye, "linger"},
			{t.Drain + t.Linger, t.serveEnd(), atMost, "requests in flight"},
		}, marks: []mark{{t.GoAwayAfter, goodbye, "GOAWAY"}}, after: "then cut, and counted"},
		{name: "streams", sub: "SSE, websockets", bars: []bar{
			{-lead, 0, serving, ""},
			{0, t.Drain, goodbye, "say goodbye"},
		}, after: "their contexts are cancelled"},
		{name: "drainers", sub: "OnDrain", bars: []bar{
			{0, t.Drain, work, "all at once"},
		}, after: "the App abandons and names one that ignores its deadline"},
		{name: "units", sub: "Go, Actor, Supervise", bars: []bar{
			{-lead, t.serveEnd(), serving, "continue: the signal does not cut work short"},
			{t.serveEnd(), t.unitEnd(), atMost, "cancelled, awaited"},
		}},
		{name: "hooks", sub: "OnShutdown", bars: []bar{
			{t.unitEnd(), t.graceEnd(), atMost, "last in, first out"},
		}},
		{name: "health server", sub: "and /metrics", bars: []bar{
			{-lead, t.graceEnd(), serving, "answers until everything else has stopped"},
		}},
		{name: "watchdog", sub: "counts from T0", bars: []bar{
			{0, t.watchdog(), work, "if something still blocks: dumps every stack and exits, before the kubelet's SIGKILL"},
		}, marks: []mark{{t.watchdog(), refused, ""}}},
	}
}

// choreography draws one shutdown over time, to scale.
func choreography(t timeline) ([]byte, error) {
	if err := t.validate(); err != nil {
		return nil, err
	}
	rows := lanes(t)
	bottom := laneTop + laneStep*float64(len(rows))
	height := bottom + 64

	x := func(d time.Duration) float64 {
		span := lead + t.watchdog() + tail
		return laneLeft + (laneRight-laneLeft)*float64(d+lead)/float64(span)
	}

	var c canvas
	c.open(width, height, "How an App stops",
		fmt.Sprintf("A timeline from the first stop request, T0. For the drain window of %s readiness answers 503 while listeners and open connections are still served, streams say goodbye and drainers run. Then, within a shutdown grace of %s: requests in flight end, units are cancelled and awaited for at most %s, hooks run last in first out for at most %s. Liveness answers 200 to the end. A watchdog ends the process %s after T0.",
			seconds(t.Drain), seconds(t.Grace), seconds(t.UnitSlice), seconds(t.HookSlice), seconds(t.watchdog())))
	c.rect(0.5, 0.5, width-1, height-1, 10, "card")
	c.text(pad, 34, "start", "title", "How an App stops")
	c.text(pad, 53, "start", "note", "the default budget, to scale")

	// The phases, as a band on top.
	for _, p := range []struct {
		from, to   time.Duration
		name, note string
	}{
		{-lead, 0, "running", ""},
		{0, t.Drain, "the window", seconds(t.Drain)},
		{t.Drain, t.graceEnd(), "the grace", "within " + seconds(t.Grace)},
	} {
		c.rect(x(p.from)+1, 80, x(p.to)-x(p.from)-2, 24, 4, "phase "+p.name)
		label := p.name
		if p.note != "" {
			label += ", " + p.note
		}
		c.text((x(p.from)+x(p.to))/2, 96, "middle", "phasename", label)
	}

	// The important moments, through every lane.
	for _, m := range []struct {
		at           time.Duration
		anchor, when string
		what         string
	}{
		{0, "middle", "T0", "signal, preStop, fault"},
		{t.Drain, "middle", "T0 + " + seconds(t.Drain), "window over"},
		{t.graceEnd(), "end", "T0 + " + seconds(t.graceEnd()), "grace over"},
		{t.watchdog(), "start", "T0 + " + seconds(t.watchdog()), "watchdog"},
	} {
		c.line(x(m.at), 74, x(m.at), bottom+4, "moment")
		lx := x(m.at)
		if m.anchor == "start" {
			lx -= 14
		}
		c.text(lx, 54, m.anchor, "when", m.when)
		c.text(lx, 68, m.anchor, "note", m.what)
	}

	for i, row := range rows {
		top := laneTop + laneStep*float64(i) - laneStep/2 + 4
		if i%2 == 0 {
			c.rect(8, top-(laneStep-barHeight)/2, width-16, laneStep, 4, "stripe")
		}
		c.text(pad, top+9, "start", "lane", row.name)
		c.text(pad, top+20.5, "start", "sub", row.sub)
		end := laneLeft
		for _, b := range row.bars {
			c.rect(x(b.from), top, x(b.to)-x(b.from), barHeight, 3, "bar "+string(b.tone))
			if b.text != "" {
				c.text(x(b.from)+8, top+14.5, "start", "on"+string(b.tone), b.text)
			}
			end = x(b.to)
		}
		for _, m := range row.marks {
			c.diamond(x(m.at), top+barHeight/2, 5.5, "mark "+string(m.tone))
			if m.text != "" {
				c.text(x(m.at)+10, top+14.5, "start", "on"+string(m.tone), m.text)
			}
		}
		if row.after != "" {
			c.text(end+9, top+14.5, "start", "after", row.after)
		}
	}

	c.legend(pad, bottom+25)
	c.text(pad, bottom+47, "start", "key", "These are the limits. After the window each step ends as soon as it is done: with nothing in flight an App is down a moment later.")
	return c.close(), nil
}
