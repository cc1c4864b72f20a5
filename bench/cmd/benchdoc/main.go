// Command benchdoc writes the measurements of docs/reference/benchmarks.txt into the page beside it,
// docs/reference/benchmarks.md, which is written by hand around them. Each part of the page says in a
// comment, in YAML, what stands there: a table of medians, the targets with
// their verdicts, the machines, or a file. With -merge it first puts the
// results of another run into docs/reference/benchmarks.txt, in place of those of the same benchmarks.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/perf/benchmath"

	"github.com/pleme-io/lifecycle-go/internal/pages"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "benchdoc:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("benchdoc", flag.ContinueOnError)
	docs := flags.String("docs", "../docs/reference", "the folder of benchmarks.txt and benchmarks.md")
	other := flags.String("merge", "", "a file of results that replace those of the same benchmarks")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	results, page := filepath.Join(*docs, "benchmarks.txt"), filepath.Join(*docs, "benchmarks.md")
	if *other != "" {
		if err := merge(results, *other); err != nil {
			return fmt.Errorf("merge %s: %w", *other, err)
		}
	}
	text, err := render(results, page)
	if err != nil {
		return err
	}
	return os.WriteFile(page, []byte(text), 0o644)
}

// render returns the page with the measurements of a file of results.
func render(results, page string) (string, error) {
	r, err := readResults(results)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", results, err)
	}
	return pages.Fill(page, "bench", func(what string) (string, error) {
		return r.part(what, filepath.Dir(page))
	})
}

// part is what a part of the page shows: one of its fields.
type part struct {
	Table    *table
	Targets  []target
	Machines bool
	File     string // beside the page
}

func (r *results) part(what, dir string) (string, error) {
	var p part
	in := yaml.NewDecoder(strings.NewReader(what))
	in.KnownFields(true)
	if err := in.Decode(&p); err != nil {
		return "", err
	}
	switch {
	case p.Table != nil:
		return r.table(*p.Table), nil
	case p.Targets != nil:
		return r.targets(p.Targets), nil
	case p.Machines:
		return r.machineTable(), nil
	case p.File != "":
		text, err := os.ReadFile(filepath.Join(dir, p.File))
		return string(bytes.TrimSpace(text)), err
	}
	return "", errors.New("it needs table, targets, machines or file")
}

// table is a table of medians. In the names of benchmarks * stands for the key of the row.
// A cell without a measurement is a dash, and a row without any is left out.
type table struct {
	Corner  string
	Rows    []string // keys; "KEY as LABEL" where the label differs
	Columns []column
	Show    []string // what each cell shows, where its column does not say
}

// column is a column of a table.
type column struct {
	Head string
	ID   string // the benchmark
	// Base is the benchmark that ratios compare with; the one of the first row without it.
	Base string
	// Show are the values of a cell. A unit is its median, "unit ±" has the interval too,
	// "unit ×" is the ratio to the base, "unit -" the difference to it, and "unit sum" the
	// sum of all passes.
	Show []string
}

const none = "–"

func (r *results) table(t table) string {
	head := []string{t.Corner}
	for _, c := range t.Columns {
		head = append(head, c.Head)
	}
	first, _, _ := strings.Cut(t.Rows[0], " as ")
	var rows [][]string
	for _, one := range t.Rows {
		key, label, named := strings.Cut(one, " as ")
		if !named {
			label = key
		}
		cells, measured := []string{label}, false
		for _, c := range t.Columns {
			show, base := c.Show, strings.ReplaceAll(c.Base, "*", key)
			if show == nil {
				show = t.Show
			}
			if base == "" {
				base = strings.ReplaceAll(c.ID, "*", first)
			}
			text := r.cell(strings.ReplaceAll(c.ID, "*", key), base, show)
			cells, measured = append(cells, text), measured || text != none
		}
		if measured {
			rows = append(rows, cells)
		}
	}
	if len(rows) == 0 {
		return "Not measured yet."
	}
	return pages.Table(head, rows)
}

// cell writes the values of one benchmark.
func (r *results) cell(id, base string, show []string) string {
	var values []string
	for _, what := range show {
		unit, how, _ := strings.Cut(what, " ")
		s, ok := r.median(id, unit)
		b, hasBase := r.median(base, unit)
		switch how {
		case "":
			what = quantity(s.Center, unit)
		case "±":
			what = quantity(s.Center, unit) + " ± " + spread(s)
		case "×":
			what, ok = digits(s.Center/b.Center)+"×", ok && hasBase
		case "-":
			what, ok = quantity(s.Center-b.Center, unit), ok && hasBase
		case "sum":
			sum, _ := r.total(id, unit)
			what = digits(sum)
		}
		if !ok {
			return none
		}
		values = append(values, what)
	}
	return strings.Join(values, ", ")
}

// target is a limit for a measurement, or for its ratio to the best of some peers.
type target struct {
	Target string
	// IDs are the benchmarks, with braces as in a shell. * stands for Of, and for each of
	// Peers.
	IDs []string
	Of  string // "lifecycle-go" without it
	// Peers are the peers that it is compared with. Without them the limit is for the value itself.
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

// targets writes a table of verdicts, and the reasons for targets that are missed.
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
