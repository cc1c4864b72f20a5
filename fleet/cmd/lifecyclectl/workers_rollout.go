package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func workerPromoteCommand(r *remote) *cobra.Command {
	return workerVerb(r, "promote ID", "Give every message to the canary of a worker", func(a *api, cmd *cobra.Command, id string) (*operatorv1.Worker, error) {
		return a.Workers.PromoteWorker(cmd.Context(), &operatorv1.PromoteWorkerRequest{Id: id})
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
	return fmt.Sprintf("%d%% to %s since %s, at least until %s", c.GetPercent(), short(c.GetDigest()), moment(c.GetSince()), moment(c.GetUntil()))
}

func workerRollbackCommand(r *remote) *cobra.Command {
	var to string
	cmd := workerVerb(r, "rollback ID", "Give a worker the code that it had before, or end its canary", func(a *api, cmd *cobra.Command, id string) (*operatorv1.Worker, error) {
		if to == "" {
			w, err := a.Workers.GetWorker(cmd.Context(), &operatorv1.GetWorkerRequest{Id: id})
			if err != nil {
				return nil, err
			}
			if w.GetCanary() != nil {
				to = w.GetDigest()
			}
		}
		if to == "" {
			h, err := a.Workers.GetWorkerHistory(cmd.Context(), &operatorv1.GetWorkerHistoryRequest{Id: id})
			if err != nil {
				return nil, err
			}
			if to = before(h.GetVersions()); to == "" {
				return nil, &failure{status: exitFindings, err: fmt.Errorf("%s has no earlier code", id)}
			}
		}
		return a.Workers.Rollback(cmd.Context(), &operatorv1.RollbackRequest{Id: id, Digest: to})
	})
	cmd.Flags().StringVar(&to, "to", "", "the `digest` of the code; default: the current code when there is a canary, which ends it, and otherwise the code before it")
	return cmd
}

// before returns the digest of the code before the current one, "" when
// there is none. Versions are oldest first.
func before(versions []*operatorv1.CodeVersion) (digest string) {
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
