package diagram

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var survey = []State{
	{Name: "planning", Next: []string{"flying", "aborted"}}, {Name: "flying", Next: []string{"capturing", "landing", "aborted"}}, {Name: "capturing", Next: []string{"flying"}},
	{Name: "landing", Next: []string{"completed", "failed"}}, {Name: "completed", Next: nil}, {Name: "failed", Next: nil}, {Name: "aborted", Next: nil},
}

// ring returns a table of n states in a circle; each also leads to itself.
func ring(n int) (states []State) {
	for i := range n {
		states = append(states, State{Name: fmt.Sprint("s", i), Next: []string{fmt.Sprint("s", (i+1)%n), fmt.Sprint("s", i)}})
	}
	return states
}

// dense returns a table in which every state may follow every other.
func dense(n int) (states []State) {
	for i := range n {
		s := State{Name: fmt.Sprint("s", i)}
		for j := range n {
			if i != j {
				s.Next = append(s.Next, fmt.Sprint("s", j))
			}
		}
		states = append(states, s)
	}
	return states
}

// crossings counts the edges that cross.
func (l *layout) crossings() (count int) {
	for _, layer := range l.layers {
		type line struct{ a, b int }
		var lines []line
		for _, n := range layer {
			for _, m := range l.nodes[n].out {
				lines = append(lines, line{l.nodes[n].row, l.nodes[m].row})
			}
		}
		for i, p := range lines {
			for _, q := range lines[i+1:] {
				if (p.a-q.a)*(p.b-q.b) < 0 {
					count++
				}
			}
		}
	}
	return count
}

func TestStatesDoNotOverlapAndEdgesLeadOn(t *testing.T) {
	for name, states := range map[string][]State{
		"survey": survey,
		"ring":   ring(9),
		"dense":  dense(8),
		"one":    {{Name: "only", Next: []string{"only"}}},
		"none":   nil,
		"apart":  {{Name: "a", Next: nil}, {Name: "b", Next: nil}},
	} {
		l := arrange(states)
		for i, a := range l.nodes {
			if a.state < 0 {
				continue
			}
			if a.x-a.w/2 < 0 || a.x+a.w/2 > l.width || a.y-nodeHeight/2 < 0 || a.y+nodeHeight/2 > l.height {
				t.Errorf("%s: %s sticks out of the picture", name, states[a.state].Name)
			}
			for _, b := range l.nodes[i+1:] {
				if b.state >= 0 && a.x-a.w/2 < b.x+b.w/2 && b.x-b.w/2 < a.x+a.w/2 && a.y-nodeHeight/2 < b.y+nodeHeight/2-1 && b.y-nodeHeight/2 < a.y+nodeHeight/2-1 {
					t.Errorf("%s: %s and %s overlap", name, states[a.state].Name, states[b.state].Name)
				}
			}
		}
		edges := 0
		for _, s := range states {
			edges += len(s.Next)
		}
		if len(l.edges) != edges {
			t.Errorf("%s: %d edges are drawn of %d", name, len(l.edges), edges)
		}
		for _, e := range l.edges {
			for i := 1; i < len(e.path); i++ {
				if l.nodes[e.path[i]].layer != l.nodes[e.path[i-1]].layer+1 {
					t.Errorf("%s: an edge jumps", name)
				}
			}
		}
	}
	if c := arrange(survey).crossings(); c > 1 {
		t.Errorf("the survey has %d crossings", c)
	}
}

func TestPictureIsWellFormedWithHostileNames(t *testing.T) {
	evil := `<script>alert(1)</script>"'&` + "\n"
	states := []State{{Name: evil, Next: []string{evil, "a name that is much too long for its box"}}, {Name: "a name that is much too long for its box"}}
	drawing := Drawing{
		Title:   evil,
		Initial: evil,
		Current: evil,
		Been:    map[Edge]int{{From: evil, To: evil}: 2},
		Counts:  map[string]int64{evil: 3},
		Link:    func(s string) string { return "/?" + s },
	}
	picture := string(SVG(states, drawing))
	if strings.Contains(picture, "<script") {
		t.Error("a name became markup")
	}
	wellFormed(t, picture)
	for _, want := range []string{"class=\"state been now some\"", "a name that is much t…", "<title>a name that is much too long for its box</title>", "marker-end=\"url(#tipbeen)\""} {
		if !strings.Contains(picture, want) {
			t.Errorf("%q is missing in\n%s", want, picture)
		}
	}
	if again := string(SVG(states, drawing)); again != picture {
		t.Error("the same table makes two pictures")
	}
}

func wellFormed(t *testing.T, picture string) {
	t.Helper()
	dec := xml.NewDecoder(strings.NewReader(picture))
	for {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, picture)
		}
	}
}

// TestFileIsAPictureOfItsOwn checks that a file has its namespace and its style.
func TestFileIsAPictureOfItsOwn(t *testing.T) {
	evil := `"><script>`
	picture := File([]State{{Name: "planning", Next: []string{evil}}, {Name: evil}}, Drawing{Title: evil, Current: "planning"})
	wellFormed(t, picture)
	for _, want := range []string{
		`<svg xmlns="http://www.w3.org/2000/svg" class="diagram"`, "<style>", ">planning</text>", `class="state been now"`, `class="state terminal"`,
	} {
		if !strings.Contains(picture, want) {
			t.Errorf("%q is missing in\n%s", want, picture)
		}
	}
	if strings.Contains(picture, "<script") {
		t.Error("a name became markup")
	}
}

func FuzzSVG(f *testing.F) {
	f.Add("a>b,b>c,c>a")
	f.Add("a>a")
	f.Add("")
	f.Fuzz(func(t *testing.T, table string) {
		if len(table) > 200 {
			return
		}
		next := map[string][]string{}
		var order []string
		for edge := range strings.SplitSeq(table, ",") {
			from, to, _ := strings.Cut(edge, ">")
			for _, s := range []string{from, to} {
				if _, ok := next[s]; !ok {
					next[s] = nil
					order = append(order, s)
				}
			}
			next[from] = append(next[from], to)
		}
		var states []State
		for _, s := range order {
			states = append(states, State{Name: s, Next: next[s]})
		}
		if !strings.HasSuffix(string(SVG(states, Drawing{})), "</svg>") {
			t.Error("no picture")
		}
	})
}

func BenchmarkSVG(b *testing.B) {
	for b.Loop() {
		SVG(survey, Drawing{})
	}
}
