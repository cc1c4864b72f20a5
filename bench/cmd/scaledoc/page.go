package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	lifecycle "github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/bench/rollout"
)

// page is a page in Markdown.
type page struct{ strings.Builder }

func (p *page) text(paragraphs ...string) {
	for _, one := range paragraphs {
		p.WriteString(one + "\n\n")
	}
}

func (p *page) list(items ...string) {
	for _, one := range items {
		p.WriteString("- " + one + "\n")
	}
	p.WriteString("\n")
}

func (p *page) table(head []string, rows ...[]string) {
	p.row(head)
	p.row(strings.Split(strings.Repeat("---,", len(head)-1)+"---", ","))
	for _, r := range rows {
		p.row(r)
	}
	p.WriteString("\n")
}

func (p *page) row(cells []string) { p.WriteString("| " + strings.Join(cells, " | ") + " |\n") }

func (rs results) page() []byte {
	var p page
	p.text("<!-- Written by bench/cmd/scaledoc from scale.json. Do not edit: run \"make scale\". -->", "# Scale")
	p.text(fmt.Sprintf("A rollout of %s pods over %s nodes has not been measured. This page simulates it, with how fast endpoint changes spread as measured on one node and as others have published. It answers which drain window and linger lose less than one request in a million, and what each second of them costs. The simulation is bench/rollout. It agrees with the measurements that there are, with the exceptions under [Checked against measurements](#checked-against-measurements).",
		number(pods), number(nodes)))
	rs.answers(&p)
	rs.windows(&p)
	rs.lingers(&p)
	rs.stops(&p)
	rs.costs(&p)
	rs.follow(&p)
	rs.checked(&p)
	model(&p)
	return []byte(strings.TrimRight(p.String(), "\n") + "\n")
}

func (rs results) needed(spread, budget string) time.Duration {
	return rs["needed/"+spread+"/"+budget].Window
}

func (rs results) answers(p *page) {
	p.text("## What to set")
	var enough []string
	for _, s := range spreads() {
		if rs.needed(s.key, "each") <= drain().Window {
			enough = append(enough, s.name)
		}
	}
	ratio := func(budget string) (low, high float64) {
		low = math.Inf(1)
		for key, p99 := range published {
			r := rs.needed(key, budget).Seconds() / p99.Seconds()
			low, high = min(low, r), max(high, r)
		}
		return low, high
	}
	eachLow, eachHigh := ratio("each")
	hundredthLow, hundredthHigh := ratio("hundredth")
	p.list(
		fmt.Sprintf("**DrainInterval**: %.1f to %.1f times the P99 in which kube-proxy learns of a stop, where each request opens a connection; %.1f to %.1f times, where one of a hundred does. The P99 itself is not enough: one node in a hundred is still behind then.", eachLow, eachHigh, hundredthLow, hundredthHigh),
		fmt.Sprintf("The default of %s suffices for: %s.", span(drain().Window), strings.Join(enough, "; ")),
		fmt.Sprintf("Behind a load balancer that polls, DrainInterval is its interval times its number of failed checks, and what it needs to act: %s for an AWS Application Load Balancer with its defaults.", span(rs.needed("lb-alb", "each"))),
		fmt.Sprintf("**Linger**: DrainInterval and Linger together cover the longest idle gap of clients that send without a look. With the defaults (%s and %s) clients that are idle for up to 9 s lose nothing. For clients that notice a close the default is enough.", span(drain().Window), span(drain().Linger)),
		fmt.Sprintf("A longer window costs a Deployment no time, as long as the cluster has room for the terminating pods. Each second of it keeps %s pods for a second longer. Where there is no room, the rollout takes longer; the [table](#what-a-second-costs) says by how much.", number(pods)),
		fmt.Sprintf("terminationGracePeriodSeconds has to hold DrainInterval, ShutdownGrace and %s: %s where the P99 is %s and each request opens a connection.", span(lifecycle.Margin), span(rs.needed("aws-5000", "each")+lifecycle.Config{}.WithDefaults().ShutdownGrace+lifecycle.Margin), span(published["aws-5000"])),
		"One kube-proxy that is minutes behind cannot be covered by a window. Alert on it.",
	)
}

func (rs results) windows(p *page) {
	p.text("## New connections: the window",
		fmt.Sprintf("Requests lost of a million, when each request opens a connection: 2 in a second to each pod, and one in 4 s behind a load balancer. Everything but DrainInterval is at its default. The last two columns are the shortest DrainInterval, in whole seconds, that loses less than one request in a million: when each request opens a connection, and when one of a hundred does. The rollout takes %s and sends %s requests.",
			span(rs["spread/aws-5000/window=5s"].Took.Round(second)), number(int(rs["spread/aws-5000/window=5s"].Crowds[0].Requests))))
	head := []string{"how the news of a stop spreads"}
	for _, w := range windows {
		head = append(head, span(w))
	}
	head = append(head, "needed, each", "needed, one of a hundred")
	var rows [][]string
	for _, s := range spreads() {
		row := []string{s.name}
		for _, w := range windows {
			row = append(row, lost(rs[fmt.Sprintf("spread/%s/window=%v", s.key, w)].Crowds[0]))
		}
		rows = append(rows, append(row, span(rs.needed(s.key, "each")), span(rs.needed(s.key, "hundredth"))))
	}
	p.table(head, rows...)
	p.text("AcceptQuiet adds a second to every window, and keeps the listener open while connections come. It does not replace a window: when one node in a hundred is behind, a pod that gets 2 connections in a second sees one every 50 s, and takes that for quiet.",
		"Where the published numbers have no more than a P99, the table takes an exponential distribution through it. A heavier tail needs a longer window. "+rs.rarity(),
		"A rule for your own numbers: the share of requests that is lost is the mean time by which sources know later than the listener closes, divided by the time of the rollout. Multiply it by the share of requests that open a connection. The listener closes AcceptQuiet after the window.")
}

// rarity says which of the slowest changes the needed windows leave out.
func (rs results) rarity() string {
	of := func(budget string) (low, high float64) {
		low = math.Inf(1)
		for key, p99 := range published {
			past := rs.needed(key, budget) + drain().AcceptQuiet
			one := math.Exp(past.Seconds() / p99.Seconds() * math.Log(100))
			low, high = min(low, one), max(high, one)
		}
		return low, high
	}
	digits := func(f float64) string {
		unit := math.Pow(10, math.Floor(math.Log10(f))-1)
		return number(int(math.Round(f/unit) * unit))
	}
	low, high := of("each")
	lowShare, highShare := of("hundredth")
	return fmt.Sprintf("What counts is the time after which one change of %s to %s has not arrived, or one of %s to %s where one request of a hundred opens a connection: measure that instead, where you can.",
		digits(low), digits(high), digits(lowShare), digits(highShare))
}

func (rs results) lingers(p *page) {
	p.text("## Idle connections: linger",
		fmt.Sprintf("Requests lost of a million, for clients that keep their connections, by Linger. DrainInterval is %s. All nodes know of the stop at once, so that new connections lose nothing. A careless client sends on a connection without a look whether the server has closed it. A careful one looks, and loses a request only when it and the close pass each other.", span(drain().Window)))
	head := []string{"clients"}
	for _, l := range lingers {
		head = append(head, span(l))
	}
	var rows [][]string
	for i, c := range idlers() {
		row := []string{c.Name}
		for _, l := range lingers {
			row = append(row, lost(rs[fmt.Sprintf("linger/%v", l)].Crowds[i]))
		}
		rows = append(rows, row)
	}
	p.table(head, rows...)
	t := rs["linger/0s"].Crowds[2]
	p.text(fmt.Sprintf("The rows are %s to %s requests each, so that 0 means less than %.1f in a million, with 95 %% confidence, in the smallest.",
		number(int(min(t.Requests, rs["linger/0s"].Crowds[3].Requests))), number(int(rs["linger/0s"].Crowds[0].Requests)), 3e6/min(t.Requests, rs["linger/0s"].Crowds[3].Requests)))
}

func (rs results) stops(p *page) {
	p.text("## Other ways to stop",
		"Requests lost of a million, and the time from T0 until a pod is gone. Every pod has 2 careful and one careless HTTP/1.1 connections and one HTTP/2 connection, and gets one connection for a single request in a second. No client sends a request twice.")
	head := []string{""}
	for _, c := range everyone() {
		head = append(head, c.Name)
	}
	head = append(head, "a pod stops in")
	for _, key := range []string{"kube-proxy", "aws-5000"} {
		var rows [][]string
		for _, st := range stoppings() {
			r := rs["stop/"+key+"/"+st.key]
			row := []string{st.name}
			for _, t := range r.Crowds {
				row = append(row, lost(t))
			}
			rows = append(rows, append(row, span(r.Terminating/pods)))
		}
		for _, s := range spreads() {
			if s.key == key {
				head[0] = s.name
			}
		}
		p.table(head, rows...)
	}
	p.text("With one GOAWAY, as net/http sends it, the requests that pass it on the way are lost: the slower the network, the more. The preStop hooks that sleep lose the HTTP/1.1 requests that pass the close, and one for each connection of a careless client.")
}

func (rs results) costs(p *page) {
	p.text("## What a second costs",
		"The time of the rollout, by DrainInterval. A pod keeps one idle connection for minutes, so that each stop uses the whole window and Linger. A pod takes 10 to 20 s to become ready. The control plane creates and deletes at most 100 pods in a second, except for the StatefulSet.")
	head := []string{"strategy"}
	for _, w := range costWindows {
		head = append(head, span(w))
	}
	head = append(head, "for each second")
	var rows [][]string
	first, last := costWindows[0], costWindows[len(costWindows)-1]
	for _, pl := range placings() {
		row := []string{pl.name}
		at := func(w time.Duration) record { return rs[fmt.Sprintf("cost/%s/window=%v", pl.key, w)] }
		for _, w := range costWindows {
			row = append(row, span(at(w).Took.Round(second)))
		}
		slope := (at(last).Took - at(first).Took).Seconds() / (last - first).Seconds()
		rows = append(rows, append(row, fmt.Sprintf("%.1f s more", slope)))
	}
	p.table(head, rows...)
	free := func(w time.Duration) record { return rs[fmt.Sprintf("cost/free/window=%v", w)] }
	p.text(fmt.Sprintf("A Deployment does not wait for terminating pods. With room for them it has up to %s pods at once with a window of %s, and up to %s with %s. Each second of the window or of Linger costs %.1f pod-hours for a rollout, and nothing else.",
		number(free(first).Peak), span(first), number(free(last).Peak), span(last),
		(free(last).Terminating-free(first).Terminating).Hours()/(last-first).Seconds()))
}

func (rs results) follow(p *page) {
	p.text("## A window that follows the EndpointSlices",
		fmt.Sprintf("The window may end when the pod's EndpointSlice says that the pod stops, and a margin later. Here the control plane is behind: the P99 from T0 to the EndpointSlice is %s. The margin covers the nodes, and is as long as a fixed window for a control plane that is not behind.", span(slowSlices.Quantile(0.99))))
	var rows [][]string
	for _, key := range margins {
		r := rs["margin/"+key]
		for _, s := range spreads() {
			if s.key == key {
				rows = append(rows, []string{s.name, span(r.Window), span(r.Terminating / pods), span(rs.needed(key, "each"))})
			}
		}
	}
	p.table([]string{"the nodes", "margin needed", "a pod stops in, on average", "a fixed window, control plane not behind"}, rows...)
	p.text("So following the slices helps against a slow control plane, not against slow nodes: a margin of a second or two is sound only where kube-proxy keeps up.")
}

func (rs results) checked(p *page) {
	p.text("## Checked against measurements",
		"Each row is the mean of one run. Nothing in the simulation was fitted to these results: it has the clients' pauses, the network's delay and the time until new connections go elsewhere, as each measurement has them. A number agrees within 10 %, and within 25 % where it is from two runs on the cluster.")
	var rows [][]string
	for _, c := range checks() {
		r := rs["check/"+c.key]
		for _, row := range c.rows {
			got := row.simulated(r, float64(c.runs))
			rows = append(rows, []string{c.name, row.what, row.shown(), fmt.Sprintf("%.4g", got), row.verdict(got), c.where})
		}
	}
	p.table([]string{"stop", "", "measured", "simulated", "", "where"}, rows...)
	disagreements(p)
}

func (c comparison) shown() string {
	if c.measured == 0 {
		return "0"
	}
	return fmt.Sprintf("%.4g (%s)", c.measured, c.spread)
}

// agrees reports whether the simulated number is within the tolerance.
func (c comparison) agrees(got float64) bool {
	return math.Abs(got-c.measured) <= max(0, c.tolerance)*c.measured
}

func (c comparison) verdict(got float64) string {
	if c.measured == 0 && got == 0 {
		return "agrees"
	}
	off := fmt.Sprintf("%+.0f %%", 100*(got-c.measured)/c.measured)
	if c.agrees(got) {
		return "agrees, " + off
	}
	return "**differs**, " + off
}

// lost returns a cell of a table: the lost requests of a million.
func lost(t rollout.Tally) string {
	switch per := t.PerMillion(); {
	case t.Lost.All() == 0:
		return "0"
	case per < 10:
		return fmt.Sprintf("%.1f", per)
	default:
		return number(int(math.Round(per)))
	}
}

// span writes a time as people do: 5 s, 6.1 s, 2 min 16 s.
func span(d time.Duration) string {
	if d = d.Round(100 * ms); d <= minute {
		return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " s"
	}
	d = d.Round(second)
	text := fmt.Sprintf("%d min", d/minute)
	if rest := d % minute; rest > 0 {
		text += " " + span(rest)
	}
	return text
}

// number groups the digits.
func number(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
