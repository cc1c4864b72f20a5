package workers

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func promote() *cobra.Command {
	return one("promote ID", "Give every message to the canary of a worker", func(c *cli.Call, id string) (*operatorv1.Worker, error) {
		return c.Workers.PromoteWorker(c.Context(), &operatorv1.PromoteWorkerRequest{Id: id})
	})
}

// percent returns the share of a canary, "" without one.
func percent(c *operatorv1.Canary) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%d%%", c.GetPercent())
}

// canary says which version gets which share, until when.
func canary(c *operatorv1.Canary) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%d%% to %s since %s, at least until %s",
		c.GetPercent(), short(c.GetDigest()), output.Moment(c.GetSince()), output.Moment(c.GetUntil()))
}

func rollback() *cobra.Command {
	var to string
	cmd := one("rollback ID", "Give a worker the code that it had before, or end its canary", func(c *cli.Call, id string) (*operatorv1.Worker, error) {
		if to == "" {
			w, err := c.Workers.GetWorker(c.Context(), &operatorv1.GetWorkerRequest{Id: id})
			if err != nil {
				return nil, err
			}
			if w.GetCanary() != nil {
				to = w.GetDigest()
			}
		}
		if to == "" {
			h, err := c.Workers.GetWorkerHistory(c.Context(), &operatorv1.GetWorkerHistoryRequest{Id: id})
			if err != nil {
				return nil, err
			}
			if to = codeBefore(h.GetVersions()); to == "" {
				return nil, cli.Fail(cli.ExitFindings, "%s has no earlier code", id)
			}
		}
		return c.Workers.Rollback(c.Context(), &operatorv1.RollbackRequest{Id: id, Digest: to})
	})
	cmd.Flags().StringVar(&to, "to", "",
		"the `digest` of the code; default: the current code when there is a canary, which ends it, and otherwise the code before it")
	return cmd
}

// codeBefore returns the digest of the code before the current one, "" when
// there is none. Versions are oldest first.
func codeBefore(versions []*operatorv1.CodeVersion) (digest string) {
	for i, v := range versions {
		if !v.GetCurrent() {
			continue
		}
		for _, earlier := range versions[:i] {
			if earlier.GetDigest() != v.GetDigest() {
				digest = earlier.GetDigest()
			}
		}
	}
	return digest
}
