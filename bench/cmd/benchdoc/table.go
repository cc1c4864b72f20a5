package main

import (
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/pages"
)

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
