package main

import (
	"slices"
	"strings"

	"golang.org/x/perf/benchmath"

	"github.com/pleme-io/lifecycle-go/internal/pages"
)

// target is a limit for a measurement, or for its ratio to the best of some peers.
type target struct {
	Target string
	// IDs are the benchmarks, with braces as in a shell. * stands for Of, and for each of
	// Peers.
	IDs []string
	Of  string // "lifecycle-go" without it
	// Peers are whom it is compared with. Without them the limit is for the value itself.
	Peers []string
	Units []string // "unit sum" is the sum of all passes
	// Most is the limit from above: for the ratio, how much more than the best peer.
	Most *float64
	// Least is the limit from below. A ratio is one of speed then: the peer's time divided
	// by ours, or our rate by the peer's.
	Least *float64
	// More makes Most a limit for the difference to the peer, in the unit itself.
	More bool
	// Why is printed when the target is missed.
	Why string
}

const (
	holds = "holds"
	fails = "**missed**"
	// noise is added where the limit is inside the interval of the measurement.
	noise = ", within the noise"
)

// targets writes a table of verdicts, and the reasons for those that are missed.
func (r *results) targets(all []target) string {
	var rows [][]string
	var reasons strings.Builder
	for _, t := range all {
		measured, verdict := r.judge(t)
		rows = append(rows, []string{t.Target, measured, verdict})
		if strings.HasPrefix(verdict, fails) && t.Why != "" {
			reasons.WriteString("- " + t.Target + ": " + strings.Join(strings.Fields(t.Why), " ") + "\n")
		}
	}
	page := pages.Table([]string{"target", "measured", ""}, rows)
	if reasons.Len() > 0 {
		page += "\nWhy targets are missed:\n\n" + reasons.String()
	}
	return page
}

// judge compares each measurement of a target with its limit; the worst decides.
func (r *results) judge(t target) (measured, verdict string) {
	var values []string
	verdict = holds
	for _, pattern := range t.IDs {
		for _, id := range expand(pattern) {
			for _, unit := range t.Units {
				s, text, ok := r.compare(t, id, unit)
				if !ok {
					return "not measured", none
				}
				values = append(values, text)
				if one := t.verdict(s); rank(one) > rank(verdict) {
					verdict = one
				}
			}
		}
	}
	return strings.Join(slices.Compact(values), ", "), verdict
}

// compare returns the value that the limit is for, with its interval.
func (r *results) compare(t target, id, unit string) (value benchmath.Summary, text string, ok bool) {
	of := t.Of
	if of == "" {
		of = "lifecycle-go"
	}
	name := strings.ReplaceAll(id, "*", of)
	unit, sum := strings.CutSuffix(unit, " sum")
	if sum {
		total, ok := r.total(name, unit)
		return benchmath.Summary{Center: total, Lo: total, Hi: total}, digits(total), ok
	}
	ours, ok := r.median(name, unit)
	if !ok || len(t.Peers) == 0 {
		return ours, quantity(ours.Center, unit), ok
	}
	isRate := strings.HasSuffix(unit, "/s")
	var best benchmath.Summary
	var peer string
	for _, p := range t.Peers {
		theirs, ok := r.median(strings.ReplaceAll(id, "*", p), unit)
		isBetter := theirs.Center < best.Center != isRate
		if ok && (peer == "" || isBetter) {
			best, peer = theirs, p
		}
	}
	if peer == "" {
		return ours, "", false
	}
	if t.More {
		more := benchmath.Summary{Center: ours.Center - best.Center, Lo: ours.Lo - best.Hi, Hi: ours.Hi - best.Lo}
		return more, quantity(more.Center, unit), true
	}
	over, under := ours, best
	if t.Least != nil && !isRate {
		over, under = best, ours
	}
	ratio := benchmath.Summary{Center: over.Center / under.Center, Lo: over.Lo / under.Hi, Hi: over.Hi / under.Lo}
	text = digits(ratio.Center) + "×"
	if len(t.Peers) > 1 {
		text += " of " + peer
	}
	return ratio, text, true
}

func (t target) verdict(s benchmath.Summary) string {
	verdict, limit := holds, 0.0
	switch {
	case t.Most != nil:
		limit = *t.Most
		if s.Center > limit {
			verdict = fails
		}
	case t.Least != nil:
		limit = *t.Least
		if s.Center < limit {
			verdict = fails
		}
	}
	if s.Lo < limit && limit < s.Hi {
		verdict += noise
	}
	return verdict
}

// rank orders verdicts: a miss beyond the noise is the worst.
func rank(verdict string) int {
	for i, one := range []string{holds, holds + noise, fails + noise, fails} {
		if one == verdict {
			return i
		}
	}
	return 0
}
