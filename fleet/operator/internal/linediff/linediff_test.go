package linediff

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// apply makes the second text of the first one and a diff, as patch(1) does.
func apply(t *testing.T, from, diff string) string {
	t.Helper()
	lines, at := split(from), 0
	var out strings.Builder
	rows := strings.SplitAfter(diff, "\n")[2:]
	for i, row := range rows {
		if row == "" || row[0] == '\\' {
			continue
		}
		text := row[1:]
		if i+1 < len(rows) && strings.HasPrefix(rows[i+1], `\`) {
			text = strings.TrimSuffix(text, "\n")
		}
		switch row[0] {
		case '@':
			var begin, n int
			old := strings.Fields(row)[1]
			if _, err := fmt.Sscanf(old, "-%d,%d", &begin, &n); err != nil {
				n = 1
				fmt.Sscanf(old, "-%d", &begin)
			}
			if n > 0 {
				begin--
			}
			for ; at < begin; at++ {
				out.WriteString(lines[at])
			}
		case ' ', '-':
			if lines[at] != text {
				t.Fatalf("line %d is %q and not %q in\n%s", at, lines[at], text, diff)
			}
			if row[0] == ' ' {
				out.WriteString(text)
			}
			at++
		case '+':
			out.WriteString(text)
		}
	}
	return out.String() + strings.Join(lines[at:], "")
}

func TestUnified(t *testing.T) {
	got := Texts("old", "new", "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\n", "a\nb\nc\nd\nE\nf\ng\nh\ni\nj\nk")
	want := `--- old
+++ new
@@ -2,10 +2,10 @@
 b
 c
 d
-e
+E
 f
 g
 h
 i
 j
-k
+k
\ No newline at end of file
`
	if got.Unified != want || got.Added != 2 || got.Removed != 2 {
		t.Errorf("+%d -%d\n%s", got.Added, got.Removed, got.Unified)
	}
	if r := Texts("a", "b", "same\n", "same\n"); r != (Result{}) {
		t.Errorf("equal texts: %+v", r)
	}
	if r := Texts("a", "b", "", "x\n"); !strings.Contains(r.Unified, "@@ -0,0 +1 @@\n+x\n") {
		t.Errorf("a new text: %s", r.Unified)
	}
}

// A diff makes the second text of the first one, and has no more edits than those with
// which the second was made.
func TestDiffsApply(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	line := func() string { return fmt.Sprint(random.IntN(6), "\n") }
	for range 3000 {
		var a, b []string
		for range random.IntN(30) {
			a = append(a, line())
		}
		edits := 0
		for _, l := range a {
			switch random.IntN(6) {
			case 0:
				edits++
				continue
			case 1:
				edits++
				b = append(b, line())
			}
			b = append(b, l)
		}
		from, to := strings.Join(a, ""), strings.Join(b, "")
		if random.IntN(3) == 0 {
			to = strings.TrimSuffix(to, "\n")
			edits += 2
		}
		r := Texts("a", "b", from, to)
		if from == to {
			if r.Unified != "" {
				t.Fatalf("%q", r.Unified)
			}
			continue
		}
		if got := apply(t, from, r.Unified); got != to {
			t.Fatalf("%q becomes %q, want %q, by\n%s", from, got, to, r.Unified)
		}
		if r.Added+r.Removed > edits {
			t.Fatalf("%d edits, but %d were made:\n%s", r.Added+r.Removed, edits, r.Unified)
		}
	}
}

// Texts without a common line are compared in bounded memory.
func TestTextsThatDifferWholly(t *testing.T) {
	var a, b strings.Builder
	for i := range 20_000 {
		fmt.Fprintln(&a, "a", i)
		fmt.Fprintln(&b, "b", i)
	}
	r := Texts("a", "b", "same\n"+a.String(), "same\n"+b.String())
	if r.Added != 20_000 || r.Removed != 20_000 || apply(t, "same\n"+a.String(), r.Unified) != "same\n"+b.String() {
		t.Errorf("+%d -%d", r.Added, r.Removed)
	}
}
