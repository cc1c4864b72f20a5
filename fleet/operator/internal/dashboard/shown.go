package dashboard

import (
	"slices"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// eachRule is how many findings of each rule the front page shows before it shows more of
// any.
const eachRule = 3

// shown chooses at most n findings, in their order. A thousand processes that fail in one
// way leave room for what is wrong in another way.
func shown(list []*operatorv1.Finding, n int) []*operatorv1.Finding {
	if len(list) <= n {
		return list
	}
	chosen, of := make([]bool, len(list)), map[string]int{}
	for i, f := range list {
		if of[f.GetRule()]++; of[f.GetRule()] <= eachRule && n > 0 {
			chosen[i] = true
			n--
		}
	}
	var page []*operatorv1.Finding
	for i, f := range list {
		if !chosen[i] && n > 0 {
			chosen[i] = true
			n--
		}
		if chosen[i] {
			page = append(page, f)
		}
	}
	return slices.Clip(page)
}
