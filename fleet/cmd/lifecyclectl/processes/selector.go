package processes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// selectorKeys are the keys of a selector of processes.
var selectorKeys = map[string]func(*operatorv1.Process) string{
	"id":        (*operatorv1.Process).GetId,
	"service":   (*operatorv1.Process).GetService,
	"version":   (*operatorv1.Process).GetVersion,
	"host":      (*operatorv1.Process).GetHost,
	"phase":     (*operatorv1.Process).GetPhase,
	"ready":     func(p *operatorv1.Process) string { return strconv.FormatBool(p.GetReady()) },
	"suspended": func(p *operatorv1.Process) string { return strconv.FormatBool(p.GetSuspended() != "") },
	"problems":  func(p *operatorv1.Process) string { return strconv.FormatBool(len(p.GetFindings()) > 0) },
}

// selector is the flag --selector of commands about processes.
type selector struct {
	text  string
	terms []cli.Term
}

func (s *selector) register(cmd *cobra.Command) {
	keys := strings.Join(slices.Sorted(maps.Keys(selectorKeys)), ", ")
	cmd.Flags().StringVarP(&s.text, "selector", "l", "",
		"only processes for which `terms` hold: KEY=VALUE or KEY!=VALUE, with commas; keys are "+keys)
}

func (s *selector) parse() (err error) {
	if s.terms, err = cli.ParseSelector(s.text); err != nil {
		return err
	}
	for _, t := range s.terms {
		if selectorKeys[t.Key] != nil {
			continue
		}
		names := slices.Sorted(maps.Keys(selectorKeys))
		if meant := suggest.Nearest(t.Key, names); meant != "" {
			return fmt.Errorf("--selector: processes have no %q; did you mean %s?", t.Key, meant)
		}
		return fmt.Errorf("--selector: processes have no %q: want one of %s", t.Key, strings.Join(names, ", "))
	}
	return nil
}

func (s *selector) matches(p *operatorv1.Process) bool {
	for _, t := range s.terms {
		if (selectorKeys[t.Key](p) == t.Value) == t.Not {
			return false
		}
	}
	return true
}

// processes returns the processes of a request that match, at most limit of them unless it
// is 0.
func (s *selector) processes(
	ctx context.Context, c *cli.Call, req *operatorv1.ListProcessesRequest, limit int,
) (*operatorv1.ListProcessesResponse, error) {
	answer := new(operatorv1.ListProcessesResponse)
	var err error
	answer.Processes, err = cli.Pages(limit, func(size int32, token string) ([]*operatorv1.Process, string, error) {
		req.PageSize, req.PageToken = size, token
		page, err := c.Processes.ListProcesses(ctx, req)
		answer.Totals = page.GetTotals()
		matching := slices.DeleteFunc(page.GetProcesses(), func(p *operatorv1.Process) bool { return !s.matches(p) })
		return matching, page.GetNextPageToken(), err
	})
	return answer, err
}
