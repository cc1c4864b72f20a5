package dashboard

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// logs shows the last lines of a process's log. Each look is in the audit, so the page
// does not look again by itself.
func (d *Dashboard) logs(r *http.Request, v *view) error {
	id := r.PathValue("id")
	answer, err := d.cfg.Processes.GetLogs(r.Context(), &operatorv1.GetLogsRequest{Id: id, Limit: 1000})
	if err != nil {
		return err
	}
	lines := make([]string, 0, len(answer.GetLines()))
	for _, l := range answer.GetLines() {
		lines = append(lines, l.GetText())
	}
	v.inside(id, "Log of "+id, "The end of the log", strings.Join(lines, "\n"), diagnosis.Command("logs %s --follow", id))
	return nil
}

// inside fills in the page that shows one text of a process.
func (v *view) inside(id, title, what, text, command string) {
	v.Page, v.Section, v.Title = "inside", "processes", title
	v.Data = data{"ID": id, "What": what, "Text": text, "Command": command, "At": timestamppb.New(v.Now)}
}

// stacks shows the stacks of a process's goroutines.
func (d *Dashboard) stacks(r *http.Request, v *view) error {
	id := r.PathValue("id")
	answer, err := d.cfg.Processes.GetStacks(r.Context(), &operatorv1.GetStacksRequest{Id: id})
	if err != nil {
		return err
	}
	v.inside(id, "Stacks of "+id, "The stacks of all goroutines", answer.GetText(), diagnosis.Command("stacks %s", id))
	return nil
}

// config shows the configuration of a process. As with the log, each look is in the audit.
func (d *Dashboard) config(r *http.Request, v *view) error {
	id := r.PathValue("id")
	answer, err := d.cfg.Processes.GetConfig(r.Context(), &operatorv1.GetConfigRequest{Id: id})
	if err != nil {
		return err
	}
	contains, given := r.URL.Query().Get("contains"), r.URL.Query().Get("given") != ""
	settings := slices.DeleteFunc(slices.Clone(answer.GetSettings()), func(s *operatorv1.Setting) bool {
		matches := strings.Contains(s.GetKey(), contains) || strings.Contains(s.GetSource(), contains)
		return !matches || given && s.GetSource() == "default"
	})
	refused := slices.DeleteFunc(diagnosis.LastReloads(answer.GetReloads()), func(s *operatorv1.Step) bool {
		return s.GetError() == ""
	})
	v.Page, v.Section, v.Title = "config", "processes", "Configuration of "+id
	v.Data = data{
		"ID":        id,
		"Contains":  contains,
		"Command":   diagnosis.Command("processes config %s", id),
		"Given":     given,
		"Truncated": answer.GetTruncated(),
		"Settings":  settings,
		"Reloads":   answer.GetReloads(),
		"Refused":   refused,
		"At":        timestamppb.New(v.Now),
	}
	return nil
}

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
