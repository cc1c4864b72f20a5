package output

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"golang.org/x/term"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
)

// Colour is the colour of a word on a terminal, as an escape sequence
// of ECMA-48. "" is none.
type Colour string

// The colours.
const (
	Green  Colour = "\x1b[32m" // is well
	Red    Colour = "\x1b[31m" // needs attention
	Yellow Colour = "\x1b[33m" // changes, or may need attention
	grey   Colour = "\x1b[2m"
	normal        = "\x1b[0m"
)

// Cell is a text in its colour.
type Cell struct {
	text   string
	colour Colour
}

// In returns a text in a colour.
func In(colour Colour, text string) Cell { return Cell{text, colour} }

// Good returns the text of something that is well.
func Good(text string) Cell { return Cell{text, Green} }

// Bad returns the text of something that needs attention.
func Bad(text string) Cell { return Cell{text, Red} }

// Wait returns the text of something that changes.
func Wait(text string) Cell { return Cell{text, Yellow} }

// Faint returns a text that only helps to read the others.
func Faint(text string) Cell { return Cell{text, grey} }

// Table is rows of cells, written in aligned columns. A row of one
// cell is a line that does not affect the widths.
type Table struct {
	colours bool
	wide    bool // with more columns
	rows    [][]Cell
	least   []int // minimum widths of columns, for rows that come one by one
}

// NewTable returns a table in the colours that w supports.
func NewTable(w io.Writer) *Table { return &Table{colours: IsColourful(w)} }

// Extra is a cell that only a wide table has.
type Extra string

// Row adds a row of strings, Cells and Extras.
func (t *Table) Row(cells ...any) {
	row := make([]Cell, 0, len(cells))
	for _, c := range cells {
		var one Cell
		switch c := c.(type) {
		case Cell:
			one = c
		case string:
			one = Cell{text: c}
		case Extra:
			if !t.wide {
				continue
			}
			one = Cell{text: string(c)}
		}
		one.text = Printable(one.text)
		row = append(row, one)
	}
	t.rows = append(t.rows, row)
}

// Head adds a row of column names. A wide table also has the names after "|".
func (t *Table) Head(names ...string) {
	var cells []any
	for _, n := range names {
		if n == "|" {
			if !t.wide {
				break
			}
			continue
		}
		cells = append(cells, Faint(n))
	}
	t.Row(cells...)
}

// Line adds a name and its value, unless that is empty.
func (t *Table) Line(name, value string) {
	if value != "" {
		t.Row(Faint(name), value)
	}
}

// Gap adds an empty line, after which other columns begin.
func (t *Table) Gap() { t.Row("") }

// Text returns the table as it is written.
func (t *Table) Text() []byte {
	var b bytes.Buffer
	for first := 0; first < len(t.rows); {
		end := first + 1
		for end < len(t.rows) && !isGap(t.rows[end]) {
			end++
		}
		t.writeBlock(&b, t.rows[first:end])
		first = end
	}
	return b.Bytes()
}

func isGap(row []Cell) bool { return len(row) == 1 && row[0].text == "" }

func (t *Table) writeBlock(b *bytes.Buffer, rows [][]Cell) {
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

// tones has the colours of states.
var tones = map[string]Colour{"good": Green, "bad": Red, "wait": Yellow}

// State returns the name of a state in its colour.
func State(name string) Cell { return Cell{name, tones[diagnosis.Tone(name)]} }

// Moment formats a time for a table, "" for none.
func Moment(t *timestamppb.Timestamp) string {
	if t == nil || t.AsTime().Unix() <= 0 {
		return ""
	}
	return t.AsTime().UTC().Format(time.RFC3339)
}

// Age returns how long ago a time was, in the largest unit that fits twice.
func Age(t *timestamppb.Timestamp, now time.Time) string {
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

// unprintable reports characters that do not belong on a terminal: controls
// (C0, C1, delete), those that change the direction of text, and those that YAML
// treats as line ends or does not accept.
func unprintable(r rune) bool {
	isControl := r < ' ' || r >= 0x7f && r <= 0x9f
	changesDirection := r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
	isRefusedByYAML := r == 0x2028 || r == 0x2029 || r == 0xfeff || r == 0xfffe || r == 0xffff
	return isControl || changesDirection || isRefusedByYAML
}

// Printable makes foreign text safe for a terminal: it shows control characters
// as escapes.
func Printable(text string) string { return escape(text, "") }

// PrintableLines is Printable for a text of several lines.
func PrintableLines(text string) string { return escape(text, "\n") }

// PrintableText is Printable for a text with lines and tabs.
func PrintableText(text string) string { return escape(text, "\n\t") }

// escape escapes unprintable characters as JSON and YAML do, except those to keep.
func escape(text, keep string) string {
	if !strings.ContainsFunc(text, unprintable) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if unprintable(r) && !strings.ContainsRune(keep, r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// IsTerminal reports whether w, a writer or a reader, is a terminal.
func IsTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// IsColourful reports whether to write to w in colours: to a terminal that
// supports them, unless NO_COLOR is set (no-color.org).
func IsColourful(w any) bool {
	return IsTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
