package dashboard

import (
	"slices"
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Many findings of one rule hide none of another.
func TestFrontPageShowsEachRule(t *testing.T) {
	var list []*operatorv1.Finding
	add := func(n int, rule string) {
		for range n {
			list = append(list, &operatorv1.Finding{Rule: rule})
		}
	}
	add(1000, "process-lost")
	add(1, "out-of-memory")
	add(10, "dead-letters")
	page := shown(list, maxFindings)
	of := map[string]int{}
	for _, f := range page {
		of[f.GetRule()]++
	}
	if len(page) != maxFindings || of["process-lost"] != maxFindings-1-eachRule || of["out-of-memory"] != 1 || of["dead-letters"] != eachRule {
		t.Errorf("of %d findings the page shows %v", len(list), of)
	}
	if !slices.IsSortedFunc(page, func(a, b *operatorv1.Finding) int { return slices.Index(list, a) - slices.Index(list, b) }) {
		t.Error("they are not in their order")
	}
	if got := shown(list[:7], maxFindings); len(got) != 7 {
		t.Errorf("of 7 findings the page shows %d", len(got))
	}
	if got := shown(list, 2); len(got) != 2 {
		t.Errorf("for a page of 2 there are %d", len(got))
	}
}
