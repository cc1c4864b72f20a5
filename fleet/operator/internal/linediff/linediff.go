// Package linediff compares two texts line by line.
package linediff

import (
	"fmt"
	"slices"
	"strings"
)

// Result is how a text became another one.
type Result struct {
	Unified        string // in the unified format; "" for equal texts
	Added, Removed int    // lines
}

// maxEdits is how many lines may have been added and removed for the shortest diff. Of
// texts that differ more, the lines between their equal begins and ends are shown as
// replaced. It bounds the memory to 2 MB.
const maxEdits = 1000

// context is how many equal lines stand around a difference.
const context = 3

// Texts compares two texts, which have these names in the result. The algorithm is that
// of Myers, "An O(ND) Difference Algorithm and Its Variations" (1986).
func Texts(fromName, toName, from, to string) Result {
	if from == to {
		return Result{}
	}
	a, b := split(from), split(to)
	edits := compare(a, b)
	var r Result
	var out strings.Builder
	fmt.Fprintf(&out, "--- %s\n+++ %s\n", fromName, toName)
	for begin := 0; begin < len(edits); {
		if edits[begin].op == ' ' {
			begin++
			continue
		}
		// A hunk ends before more equal lines than two contexts have.
		end, equal := begin, 0
		for i := begin; i < len(edits) && equal <= 2*context; i++ {
			if edits[i].op == ' ' {
				equal++
				continue
			}
			end, equal = i+1, 0
		}
		hunk := edits[max(0, begin-context):min(len(edits), end+context)]
		r.Added += count(hunk, '+')
		r.Removed += count(hunk, '-')
		write(&out, hunk, a, b)
		begin = end
	}
	r.Unified = out.String()
	return r
}

// edit is a line of a diff: ' ' for one that both texts have at a and b, '-' for one of
// the first text at a, '+' for one of the second text at b. The other number is where
// the line would be.
type edit struct {
	op   byte
	a, b int
}

func count(edits []edit, op byte) (n int) {
	for _, e := range edits {
		if e.op == op {
			n++
		}
	}
	return n
}

// split returns the lines of a text, each with its line feed.
func split(text string) []string {
	lines := strings.SplitAfter(text, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// write writes a hunk.
func write(out *strings.Builder, hunk []edit, a, b []string) {
	olds, news := len(hunk)-count(hunk, '+'), len(hunk)-count(hunk, '-')
	fmt.Fprintf(out, "@@ -%s +%s @@\n", place(hunk[0].a, olds), place(hunk[0].b, news))
	for _, e := range hunk {
		lines, i := a, e.a
		if e.op == '+' {
			lines, i = b, e.b
		}
		line := lines[i]
		out.WriteByte(e.op)
		out.WriteString(line)
		if !strings.HasSuffix(line, "\n") {
			out.WriteString("\n\\ No newline at end of file\n")
		}
	}
}

// place is the place of n lines from index on, as a hunk's header has it.
func place(index, n int) string {
	switch n {
	case 0:
		return fmt.Sprintf("%d,0", index)
	case 1:
		return fmt.Sprint(index + 1)
	}
	return fmt.Sprintf("%d,%d", index+1, n)
}

// compare returns the edits that make b of a, with the equal lines.
func compare(a, b []string) []edit {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	edits := make([]edit, 0, len(a)+len(b)-head-tail)
	for i := range head {
		edits = append(edits, edit{' ', i, i})
	}
	edits = append(edits, middle(a[head:len(a)-tail], b[head:len(b)-tail], head)...)
	for i := range tail {
		edits = append(edits, edit{' ', len(a) - tail + i, len(b) - tail + i})
	}
	return edits
}

// middle compares what lies between the equal begins and ends, which are offset lines
// into the texts.
func middle(a, b []string, offset int) []edit {
	// reach[d][k] is how far into a the furthest path with d edits on the diagonal
	// 2k-d gets.
	var reach [][]int32
	for d := 0; d <= min(len(a)+len(b), maxEdits); d++ {
		row := make([]int32, d+1)
		for k := range row {
			x := from(reach, d, k)
			y := int(x) - (2*k - d)
			for int(x) < len(a) && y < len(b) && a[x] == b[y] {
				x, y = x+1, y+1
			}
			row[k] = x
			if int(x) >= len(a) && y >= len(b) {
				return trace(append(reach, row), k, len(a), len(b), offset)
			}
		}
		reach = append(reach, row)
	}
	edits := make([]edit, 0, len(a)+len(b))
	for i := range a {
		edits = append(edits, edit{'-', offset + i, offset})
	}
	for i := range b {
		edits = append(edits, edit{'+', offset + len(a), offset + i})
	}
	return edits
}

// from returns where a path with d edits on the diagonal 2k-d begins its equal lines.
func from(reach [][]int32, d, k int) int32 {
	if d == 0 {
		return 0
	}
	before := reach[d-1]
	if down(before, d, k) {
		return before[k]
	}
	return before[k-1] + 1
}

// down reports whether the last edit of such a path adds a line, and does not remove one.
func down(before []int32, d, k int) bool {
	return k == 0 || k < d && before[k-1]+1 <= before[k]
}

// trace walks the shortest path back from its end.
func trace(reach [][]int32, k, x, y, offset int) []edit {
	var edits []edit
	for d := len(reach) - 1; ; d-- {
		start := int(from(reach, d, k))
		for x > start {
			x, y = x-1, y-1
			edits = append(edits, edit{' ', offset + x, offset + y})
		}
		if d == 0 {
			slices.Reverse(edits)
			return edits
		}
		if down(reach[d-1], d, k) {
			y--
			edits = append(edits, edit{'+', offset + x, offset + y})
		} else {
			k--
			x--
			edits = append(edits, edit{'-', offset + x, offset + y})
		}
	}
}
