package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func doctorCommand() *cobra.Command {
	var (
		r       remote
		o       output
		req     operatorv1.DiagnoseRequest
		statusz string
		rules   bool
		follow  bool
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what is wrong with the fleet, or with one process, and what to change",
		Long: `Say what is wrong with the fleet, the worst first: the cause, since when, how
many, which number to change, and the next command. The front page of the dashboard
uses the same rules.

With --statusz it asks no operator server: it reads the status of one process from its
health address, or from a file; - is standard input.

Exit status: 0 when nothing is wrong and everything could be looked at, 1 otherwise.`,
		Example: `  lifecyclectl doctor
  lifecyclectl doctor --service web
  lifecyclectl doctor --statusz http://10.1.2.3:8081/statusz`,
		Args: words(),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case rules:
				t := &table{colours: colourful(cmd.OutOrStdout())}
				t.head("RULE", "MEANS")
				for _, rule := range diagnosis.Rules {
					t.row(rule.Name, rule.Means)
				}
				return send(cmd.OutOrStdout(), t.text())
			case statusz != "":
				if err := o.check(); err != nil {
					return err
				}
				answer, err := ofStatusz(cmd.Context(), statusz, cmd.InOrStdin())
				if err != nil {
					return err
				}
				return verdict(cmd, &o, answer)
			}
			return asks(&r, &o, noSubject, func(a *api, cmd *cobra.Command, _ []string) error {
				if follow {
					return watchFindings(a, cmd, &o, &req)
				}
				answer, err := a.Processes.Diagnose(cmd.Context(), &req)
				if err != nil {
					return err
				}
				return verdict(cmd, &o, answer)
			})(cmd, args)
		},
	}
	cmd.Flags().StringVar(&req.Service, "service", "", "only this `service`")
	cmd.Flags().StringVar(&req.Process, "process", "", "only the process with this `id`")
	cmd.Flags().StringVar(&statusz, "statusz", "", "the `URL` of a process's /statusz, or a file with its JSON")
	cmd.Flags().BoolVar(&rules, "rules", false, "list the rules")
	watchFlag(cmd, &follow)
	o.register(cmd)
	r.register(cmd)
	return cmd
}

// watchFindings shows what is wrong, and then what becomes wrong and what is well again.
func watchFindings(a *api, cmd *cobra.Command, o *output, req *operatorv1.DiagnoseRequest) error {
	return polled[*operatorv1.Finding]{
		head: []string{"SUBJECT", "RULE", "CAUSE", "NEXT"}, widths: []int{28, 18, 60},
		look: func(ctx context.Context) ([]*operatorv1.Finding, error) {
			answer, err := a.Processes.Diagnose(ctx, req)
			return answer.GetFindings(), err
		},
		key:  func(f *operatorv1.Finding) string { return f.GetSubject() + " " + f.GetRule() },
		same: func(_, _ *operatorv1.Finding) bool { return true }, // counts and times grow
		cells: func(f *operatorv1.Finding) []any {
			colour := wait
			if f.GetSeverity() == diagnosis.Error {
				colour = bad
			}
			return []any{f.GetSubject(), cell{f.GetRule(), colour}, f.GetCause(), f.GetNext()}
		},
	}.watch(a, cmd, o)
}

// verdict writes a diagnosis. It returns an error when something is wrong.
func verdict(cmd *cobra.Command, o *output, answer *operatorv1.DiagnoseResponse) error {
	err := o.write(cmd.OutOrStdout(), answer, func(t *table) {
		if len(answer.GetFindings()) > 0 {
			findingTable(t, answer.GetFindings())
		}
		looked := "looked at " + strings.Join(answer.GetLookedAt(), ", ")
		if len(answer.GetFindings()) == 0 && len(answer.GetNotLookedAt()) == 0 {
			looked = "nothing is wrong: " + looked
		}
		t.row(cell{looked, faint})
		for _, not := range answer.GetNotLookedAt() {
			t.row(cell{"not looked at: " + not, bad})
		}
	})
	switch n := len(answer.GetFindings()); {
	case err != nil:
		return err
	case n > 0:
		return exitStatus(exitFindings)
	case len(answer.GetNotLookedAt()) > 0:
		return exitStatus(exitFindings)
	}
	return nil
}

// Limits of reading a /statusz.
const (
	statuszTime = 10 * time.Second
	maxStatusz  = 16 << 20
)

// ofStatusz diagnoses one process by its own status.
func ofStatusz(ctx context.Context, from string, stdin io.Reader) (*operatorv1.DiagnoseResponse, error) {
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
	return &operatorv1.DiagnoseResponse{Findings: diagnosis.Sort(diagnosis.Process(p, s.At)), LookedAt: []string{"1 process"}}, nil
}

func readStatusz(ctx context.Context, from string, stdin io.Reader) ([]byte, error) {
	switch {
	case from == "-":
		return io.ReadAll(io.LimitReader(stdin, maxStatusz))
	case !strings.Contains(from, "://"):
		text, err := os.ReadFile(from)
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
		return nil, &failure{status: exitUnreachable, err: fmt.Errorf("--statusz: %w", err)}
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxStatusz))
	switch {
	case err != nil:
		return nil, &failure{status: exitUnreachable, err: fmt.Errorf("--statusz: %w", err)}
	case resp.StatusCode != http.StatusOK:
		return nil, errors.New("--statusz: the process answers " + resp.Status)
	}
	return text, nil
}
