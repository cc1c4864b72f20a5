package dashboard

import (
	"net/url"
	"strings"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// unitView is a unit in the tree of a process's page.
type unitView struct {
	*operatorv1.Unit
	Again string // where its restart is asked for, "" when it may not be restarted
	Below []unitView
}

// treeOf returns units of a process, whose paths begin with above.
func treeOf(process, above string, units []*operatorv1.Unit, operator bool) (tree []unitView) {
	for _, u := range units {
		x := unitView{Unit: u, Below: treeOf(process, above+u.GetName()+"/", u.GetChildren(), operator)}
		if operator && u.GetRestartable() {
			x.Again = "/ui/act/restart-unit?" + url.Values{"id": {process}, "unit": {above + u.GetName()}}.Encode()
		}
		tree = append(tree, x)
	}
	return tree
}

// unitAt returns the unit at a path, nil for none.
func unitAt(units []*operatorv1.Unit, path string) *operatorv1.Unit {
	for _, u := range units {
		if u.GetName() == path {
			return u
		}
		if below, ok := strings.CutPrefix(path, u.GetName()+"/"); ok {
			if found := unitAt(u.GetChildren(), below); found != nil {
				return found
			}
		}
	}
	return nil
}
