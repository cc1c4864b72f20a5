package workers

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/deadletters"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func describe() *cobra.Command {
	return cli.Command(&cobra.Command{
		Use:   "describe ID",
		Short: "Show one hosted worker: what it does now, its canary, and why its messages fail",
		Long: `Show one hosted worker: where it runs, how many messages it handled in the last
minutes and how long that took, both versions of a canary, and its dead letters by reason.
With -o json or another format it shows what the worker does.`,
		Args:              cli.Words("ID"),
		ValidArgsFunction: cli.CompleteWorkers,
	}, cli.OfWorker, func(c *cli.Call) error {
		w, err := c.Workers.GetWorker(c.Context(), &operatorv1.GetWorkerRequest{Id: c.Args[0]})
		if err != nil {
			return err
		}
		does, err := c.Workers.GetWorkerActivity(c.Context(), &operatorv1.GetWorkerActivityRequest{Id: c.Args[0]})
		if err != nil {
			return err
		}
		if !c.Format.IsTable() {
			return c.Write(does, nil)
		}
		if err := show(c, w); err != nil {
			return err
		}
		err = c.Write(does, func(t *output.Table) { activityTable(t, w, does) })
		if err != nil || w.GetDeadLetters() == 0 {
			return err
		}
		if err := c.Send([]byte("\nDead letters\n")); err != nil {
			return err
		}
		return deadletters.ShowGroups(c, c.Args[0])
	})
}

// activityTable shows what a worker does.
func activityTable(t *output.Table, w *operatorv1.Worker, does *operatorv1.WorkerActivity) {
	if does.GetHost() == "" {
		t.Line("runs on", "no host has answered")
		return
	}
	window := does.GetWindow().AsDuration()
	perSecond := func(n int64) string {
		return fmt.Sprintf("%.2f a second (%d in %s)", float64(n)/max(1, window.Seconds()), n, window.Round(1e9))
	}
	t.Line("runs on", does.GetHost())
	t.Line("handled", perSecond(does.GetSucceeded()))
	t.Line("failed", perSecond(does.GetFailed()))
	if does.GetLongest() != nil {
		t.Line("time to handle", fmt.Sprintf("half %s, 95 %% %s, longest %s",
			does.GetP50().AsDuration(), does.GetP95().AsDuration(), does.GetLongest().AsDuration()))
	}
	for _, v := range does.GetVersions() {
		name := short(v.GetDigest())
		switch v.GetDigest() {
		case w.GetCanary().GetDigest():
			name += ", the canary"
		case w.GetDigest():
			name += ", its own"
		}
		t.Row(output.Faint("version"), fmt.Sprintf("%s: %d succeeded, %d failed, %d dead letters",
			name, v.GetSucceeded(), v.GetFailed(), v.GetDeadLettered()))
	}
}
