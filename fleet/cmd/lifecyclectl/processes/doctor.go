package processes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func doctor() *cobra.Command {
	var (
		req     operatorv1.DiagnoseRequest
		statusz string
		watch   bool
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "doctor",
		Short: "Say what is wrong with the fleet, or with one process, and what to change",
		Long: `Say what is wrong with the fleet, the worst first: the cause, since when, how
many, which number to change, and the next command. The front page of the dashboard
uses the same rules; lifecyclectl explain lists them.

With --statusz it asks no operator server: it reads the status of one process from its
health address, or from a file; - is standard input.

Exit status: 0 when nothing is wrong and everything could be looked at, 1 otherwise.`,
		Example: `  lifecyclectl doctor
  lifecyclectl doctor --service web
  lifecyclectl doctor --statusz http://10.1.2.3:8081/statusz`,
	}, cli.OfNothing, func(c *cli.Call) error {
		if watch {
			return watchFindings(c, &req)
		}
		answer, err := c.Processes.Diagnose(c.Context(), &req)
		if err != nil {
			return err
		}
		return verdict(c, answer)
	})
	askServer := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if statusz == "" {
			return askServer(cmd, args)
		}
		answer, err := diagnoseStatusz(cmd.Context(), statusz, cmd.InOrStdin())
		if err != nil {
			return err
		}
		return verdict(cli.LocalCall(cmd, args), answer)
	}
	cmd.Flags().StringVar(&req.Service, "service", "", "only this `service`")
	cmd.Flags().StringVar(&req.Process, "process", "", "only the process with this `id`; it may lack the service")
	cmd.Flags().StringVar(&statusz, "statusz", "", "the `URL` of a process's /statusz, or a file with its JSON")
	cli.WatchFlag(cmd, &watch)
	return cmd
}

// watchFindings shows what is wrong, and then what becomes wrong and what is well again.
func watchFindings(c *cli.Call, req *operatorv1.DiagnoseRequest) error {
	return cli.List[*operatorv1.Finding]{
		Head:   []string{"SUBJECT", "RULE", "CAUSE", "NEXT"},
		Widths: []int{28, 18, 60},
		Cells: func(f *operatorv1.Finding) []any {
			return []any{f.GetSubject(), ruleCell(f), f.GetCause(), f.GetNext()}
		},
		Look: func(ctx context.Context) (proto.Message, error) { return c.Processes.Diagnose(ctx, req) },
		Key:  func(f *operatorv1.Finding) string { return f.GetSubject() + " " + f.GetRule() },
		Same: func(_, _ *operatorv1.Finding) bool { return true }, // counts and times grow
	}.Show(c, true)
}

func ruleCell(f *operatorv1.Finding) output.Cell {
	if f.GetSeverity() == diagnosis.Error {
		return output.Bad(f.GetRule())
	}
	return output.Wait(f.GetRule())
}

func findingTable(t *output.Table, list []*operatorv1.Finding) {
	t.Head("RULE", "SUBJECT", "SINCE", "COUNT", "CAUSE", "CHANGE", "NEXT")
	now := time.Now()
	for _, f := range list {
		since := "-"
		if f.GetSince() != nil {
			since = output.Age(f.GetSince(), now)
		}
		t.Row(ruleCell(f), f.GetSubject(), since, fmt.Sprint(f.GetCount()), f.GetCause(), f.GetChange(), f.GetNext())
		below := f.GetExplains()
		below = below[:min(len(below), maxBelow)]
		for _, x := range below {
			t.Row(output.Faint("└ "+x.GetRule()), x.GetSubject(), output.Age(x.GetSince(), now), fmt.Sprint(x.GetCount()), x.GetCause(), "", x.GetNext())
		}
		if more := f.GetExplained() - int64(len(below)); more > 0 {
			t.Row(output.Faint(fmt.Sprintf("└ and %d more that %s explains", more, f.GetRule())))
		}
	}
}

// maxBelow is how many of the findings that another one explains are shown below it.
const maxBelow = 5

// verdict writes a diagnosis. It returns an error when something is wrong, or could not be
// looked at.
func verdict(c *cli.Call, answer *operatorv1.DiagnoseResponse) error {
	isWell := len(answer.GetFindings()) == 0 && len(answer.GetNotLookedAt()) == 0
	err := c.Write(answer, func(t *output.Table) {
		if len(answer.GetFindings()) > 0 {
			findingTable(t, answer.GetFindings())
		}
		looked := "looked at " + strings.Join(answer.GetLookedAt(), ", ")
		if isWell {
			looked = "nothing is wrong: " + looked
		}
		t.Row(output.Faint(looked))
		for _, not := range answer.GetNotLookedAt() {
			t.Row(output.Bad("not looked at: " + not))
		}
	})
	if err == nil && !isWell {
		return cli.Exit(cli.ExitFindings)
	}
	return err
}

// Limits of reading a /statusz.
const (
	statuszTime = 10 * time.Second
	maxStatusz  = 16 << 20
)

// diagnoseStatusz diagnoses one process by its own status.
func diagnoseStatusz(ctx context.Context, from string, stdin io.Reader) (*operatorv1.DiagnoseResponse, error) {
	text, err := readStatusz(ctx, from, stdin)
	if err != nil {
		return nil, err
	}
	var s lifecycle.Status
	if err := json.Unmarshal(text, &s); err != nil || s.Report.Phase == "" {
		return nil, fmt.Errorf("--statusz: %s is not the status of an App as JSON", from)
	}
	p := &operatorv1.Process{Id: s.Report.Name, Service: s.Report.Name}
	if by := s.Suspended; !by.Since.IsZero() {
		p.Suspended = by.Reason
	}
	diagnosis.Alone(p, s)
	return &operatorv1.DiagnoseResponse{
		Findings: diagnosis.Sort(diagnosis.Process(p, s.At)),
		LookedAt: []string{"1 process"},
	}, nil
}

func readStatusz(ctx context.Context, from string, stdin io.Reader) ([]byte, error) {
	if !strings.Contains(from, "://") {
		text, err := cli.ReadFile(ctx, from, stdin)
		if err != nil {
			return nil, fmt.Errorf("--statusz: %w", err)
		}
		return text, nil
	}
	ctx, cancel := context.WithTimeout(ctx, statuszTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, fmt.Errorf("--statusz: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, cli.Fail(cli.ExitUnreachable, "--statusz: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxStatusz))
	switch {
	case err != nil:
		return nil, cli.Fail(cli.ExitUnreachable, "--statusz: %w", err)
	case resp.StatusCode != http.StatusOK:
		return nil, errors.New("--statusz: the process answers " + resp.Status)
	}
	return text, nil
}
