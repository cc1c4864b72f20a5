package main

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// colour is the colour of a word on a terminal, as an escape sequence
// of ECMA-48. "" is none.
type colour string

const (
	good   colour = "\x1b[32m"
	bad    colour = "\x1b[31m"
	wait   colour = "\x1b[33m"
	faint  colour = "\x1b[2m"
	strong colour = "\x1b[1m"
	normal string = "\x1b[0m"
)

// cell is a text in its colour.
type cell struct {
	text string
	colour
}

// table is rows of cells, written in aligned columns. A row of one
// cell is a line that does not affect the widths.
type table struct {
	colours bool
	wide    bool // with more columns
	rows    [][]cell
	least   []int // minimum widths of columns, for rows that come one by one
}

// extra is a cell that only a wide table has.
type extra string

// row adds a row of strings, cells and extras.
func (t *table) row(cells ...any) {
	row := make([]cell, 0, len(cells))
	for _, c := range cells {
		var one cell
		switch c := c.(type) {
		case cell:
			one = c
		case string:
			one = cell{text: c}
		case extra:
			if !t.wide {
				continue
			}
			one = cell{text: string(c)}
		}
		one.text = printable(one.text)
		row = append(row, one)
	}
	t.rows = append(t.rows, row)
}

// head adds a row of column names. Names after "|" are those of a wide table.
func (t *table) head(names ...string) {
	var cells []any
	for _, n := range names {
		if n == "|" {
			if !t.wide {
				break
			}
			continue
		}
		cells = append(cells, cell{n, faint})
	}
	t.row(cells...)
}

// line adds a name and its value, unless that is empty.
func (t *table) line(name, value string) {
	if value != "" {
		t.row(cell{name, faint}, value)
	}
}

// gap adds an empty line, after which other columns begin.
func (t *table) gap() { t.row("") }

func (t *table) text() []byte {
	var b bytes.Buffer
	for first := 0; first < len(t.rows); {
		end := first + 1
		for end < len(t.rows) && !blank(t.rows[end]) {
			end++
		}
		t.write(&b, t.rows[first:end])
		first = end
	}
	return b.Bytes()
}

func blank(row []cell) bool { return len(row) == 1 && row[0].text == "" }

func (t *table) write(b *bytes.Buffer, rows [][]cell) {
	widths := slices.Clone(t.least)
	for _, row := range rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			if len(row) > 1 {
				widths[i] = max(widths[i], ansi.StringWidth(c.text))
			}
		}
	}
	for _, row := range rows {
		for i, c := range row {
			if t.colours && c.colour != "" && c.text != "" {
				b.WriteString(string(c.colour) + c.text + normal)
			} else {
				b.WriteString(c.text)
			}
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", max(0, widths[i]-ansi.StringWidth(c.text))+2))
			}
		}
		b.Truncate(len(bytes.TrimRight(b.Bytes(), " ")))
		b.WriteByte('\n')
	}
}

// stateColour returns the colour of a state's name: green is well, red needs
// attention.
func stateColour(state string) colour {
	switch strings.ToLower(state) {
	case "ready", "running", "completed", "up", "healthy", "serving":
		return good
	case "failed", "aborted", "down", "unhealthy", "degraded", "crashed", "stuck":
		return bad
	case "starting", "draining", "stopping", "pending", "deploying", "suspended", "unknown":
		return wait
	}
	return ""
}

func state(name string) cell { return cell{name, stateColour(name)} }

// moment formats a time for a table, "" for none.
func moment(t *timestamppb.Timestamp) string {
	if t == nil || t.AsTime().Unix() <= 0 {
		return ""
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}

// age returns how long ago a time was, in the largest unit that fits twice.
func age(t *timestamppb.Timestamp, now time.Time) string {
	if t == nil || t.AsTime().Unix() <= 0 {
		return ""
	}
	d := now.Sub(t.AsTime())
	for _, u := range []struct {
		name string
		size time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}} {
		if d >= 2*u.size {
			return strconv.FormatInt(int64(d/u.size), 10) + u.name
		}
	}
	return strconv.FormatInt(int64(max(d, 0)/time.Second), 10) + "s"
}
