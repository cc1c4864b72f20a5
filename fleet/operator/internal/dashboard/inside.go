package dashboard

import (
	"net/http"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// inside is the data of a page that looks into a process.
type inside struct {
	ID, What, Text, Command string
	At                      *timestamppb.Timestamp
}

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
	v.Page, v.Section, v.Title = "inside", "processes", "Log of "+id
	v.Data = inside{ID: id, What: "The end of the log", Text: strings.Join(lines, "\n"), Command: diagnosis.Command("logs %s --follow", id), At: timestamppb.New(v.Now)}
	return nil
}

// stacks shows the stacks of a process's goroutines.
func (d *Dashboard) stacks(r *http.Request, v *view) error {
	id := r.PathValue("id")
	answer, err := d.cfg.Processes.GetStacks(r.Context(), &operatorv1.GetStacksRequest{Id: id})
	if err != nil {
		return err
	}
	v.Page, v.Section, v.Title = "inside", "processes", "Stacks of "+id
	v.Data = inside{ID: id, What: "The stacks of all goroutines", Text: answer.GetText(), Command: diagnosis.Command("stacks %s", id), At: timestamppb.New(v.Now)}
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
		return given && s.GetSource() == "default" || !strings.Contains(s.GetKey(), contains) && !strings.Contains(s.GetSource(), contains)
	})
	last := map[string]*operatorv1.Step{} // by the name of the reload
	for _, s := range answer.GetReloads() {
		last[s.GetName()] = s
	}
	var refused []*operatorv1.Step
	for _, s := range answer.GetReloads() {
		if last[s.GetName()] == s && s.GetError() != "" {
			refused = append(refused, s)
		}
	}
	v.Page, v.Section, v.Title = "config", "processes", "Configuration of "+id
	v.Data = struct {
		ID, Contains, Command string
		Given, Truncated      bool
		Settings              []*operatorv1.Setting
		Reloads, Refused      []*operatorv1.Step
		At                    *timestamppb.Timestamp
	}{id, contains, diagnosis.Command("processes config %s", id), given, answer.GetTruncated(), settings, answer.GetReloads(), refused, timestamppb.New(v.Now)}
	return nil
}
