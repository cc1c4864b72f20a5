package dashboard

import (
	"net/http"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

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
	v.Data = inside{ID: id, What: "The end of the log", Text: strings.Join(lines, "\n"), Command: "lifecyclectl logs " + id + " --follow", At: timestamppb.New(v.Now)}
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
	v.Data = inside{ID: id, What: "The stacks of all goroutines", Text: answer.GetText(), Command: "lifecyclectl stacks " + id, At: timestamppb.New(v.Now)}
	return nil
}
