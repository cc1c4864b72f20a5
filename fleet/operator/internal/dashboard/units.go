package dashboard

import (
	"context"
	"fmt"
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

func askRestartUnit(ctx context.Context, d *Dashboard, f url.Values) (*question, error) {
	p, err := d.cfg.Processes.GetProcess(ctx, &operatorv1.GetProcessRequest{Id: f.Get("id")})
	if err != nil {
		return nil, err
	}
	path := f.Get("unit")
	q := &question{
		Title: "Restart " + path, Of: p.GetId(), Button: "Restart this unit", Input: "reason", Label: "Reason", Back: processPath(p.GetId()),
		Does: []string{
			fmt.Sprintf("The present run of the unit %s is asked to end, and the next one begins when it has.", path),
			"The process goes on, and so do its other units. The restart does not count against the unit's restart budget.",
		},
	}
	switch u := unitAt(p.GetUnits(), path); {
	case u == nil:
		q.Refuse = "the process has no such unit."
	case !u.GetRestartable():
		q.Refuse = fmt.Sprintf("it is a %s, it is %s, and the process is %s. Only a supervised unit of a running process can be restarted, and not while it stops.", u.GetKind(), u.GetStatus(), p.GetPhase())
	}
	return q, nil
}

func doRestartUnit(ctx context.Context, d *Dashboard, f url.Values) (url.Values, error) {
	_, err := d.cfg.Processes.RestartUnit(ctx, &operatorv1.RestartUnitRequest{Id: f.Get("id"), Unit: f.Get("unit"), Reason: f.Get("reason")})
	return nil, err
}
