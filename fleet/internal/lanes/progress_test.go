package lanes_test

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/internal/lanes"
)

// TestProgress compares a Progress with a set, for messages that end in any order.
func TestProgress(t *testing.T) {
	for range 200 {
		const n = 60
		p := lanes.From(5)
		done := map[uint64]bool{}
		for m := range uint64(6) {
			done[m] = true
		}
		for range rand.IntN(80) {
			first := rand.Uint64N(n)
			last := first
			if rand.IntN(5) == 0 {
				last = first + rand.Uint64N(6)
			}
			p.Skip(first, last)
			for m := first; m <= last; m++ {
				done[m] = true
			}
			text, err := json.Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			var read lanes.Progress
			if err := json.Unmarshal(text, &read); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			gaps := 0
			floor := uint64(0)
			for floor+1 < 2*n && done[floor+1] {
				floor++
			}
			for m := range uint64(2 * n) {
				if p.Has(m) != done[m] || read.Has(m) != done[m] {
					t.Fatalf("%d: %v and %v, want %v: %s", m, p.Has(m), read.Has(m), done[m], text)
				}
				if m > floor && done[m] && !done[m-1] {
					gaps++
				}
			}
			if p.Floor() != floor || p.Gaps() != gaps || read.Floor() != floor || read.Gaps() != gaps {
				t.Fatalf("floor %d and %d gaps, want %d and %d: %s", p.Floor(), p.Gaps(), floor, gaps, text)
			}
		}
	}
}

// FuzzProgress checks that a Progress that can be read is written as it was read.
func FuzzProgress(f *testing.F) {
	for _, seed := range []string{"[0]", "[7,2,1]", "[7,1,1]", "[7,2]", "[]", "null", "[1,18446744073709551615,18446744073709551615]", `{"a":1}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var p, again lanes.Progress
		if json.Unmarshal([]byte(text), &p) != nil {
			return
		}
		data, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(data, &again); err != nil || again.Floor() != p.Floor() || again.Gaps() != p.Gaps() {
			t.Fatalf("%s became %s: %v", text, data, err)
		}
	})
}
