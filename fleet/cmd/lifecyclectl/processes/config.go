package processes

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func config() *cobra.Command {
	var (
		given    bool
		contains string
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "config ID",
		Short: "Show the configuration of a process, with the source of each value",
		Long: `Show the configuration of a process as the process itself reports it: each key, its
value, and where that was given: a line of a file, a variable of the environment, a flag,
or the default. It also shows reloads that were refused, and why. It needs the role
inspector. Secrets never leave the process.`,
		Example: `  lifecyclectl processes config web-7d4b9-x2x4z --given
  lifecyclectl processes config web-7d4b9-x2x4z --contains drain`,
		Args:              cli.Words("ID"),
		ValidArgsFunction: cli.CompleteProcesses,
	}, cli.OfProcess, func(c *cli.Call) error {
		answer, err := c.Processes.GetConfig(c.Context(), &operatorv1.GetConfigRequest{Id: c.Args[0]})
		if err != nil {
			return err
		}
		answer.Settings = slices.DeleteFunc(answer.GetSettings(), func(s *operatorv1.Setting) bool {
			isLeftOut := given && s.GetSource() == "default"
			hasText := strings.Contains(s.GetKey(), contains) || strings.Contains(s.GetSource(), contains)
			return isLeftOut || !hasText
		})
		return c.Write(answer, func(t *output.Table) { configTable(t, answer) })
	})
	cmd.Flags().BoolVar(&given, "given", false, "only keys that a file, the environment or a flag gives")
	cmd.Flags().StringVar(&contains, "contains", "", "only keys whose name or source contains this `text`")
	return cmd
}

// configTable lists settings, and the reloads that were refused.
func configTable(t *output.Table, answer *operatorv1.GetConfigResponse) {
	t.Head("KEY", "VALUE", "SOURCE", "IN PLACE OF")
	for _, s := range answer.GetSettings() {
		value := s.GetValue()
		if now := s.GetInForce(); now != "" {
			value += " (" + now + " until the next start)"
		}
		source := output.In("", s.GetSource())
		if s.GetSource() == "default" {
			source = output.Faint(s.GetSource())
		}
		t.Row(s.GetKey(), value, source, strings.Join(s.GetLost(), "; "))
	}
	if answer.GetTruncated() {
		t.Row("… the configuration is larger than an answer")
	}
	if len(answer.GetReloads()) > 0 {
		t.Gap()
		t.Head("RELOAD", "RESULT", "WHY")
		for _, s := range answer.GetReloads() {
			t.Row(s.GetName(), output.State(s.GetResult()), s.GetError())
		}
	}
}
