// Package workers has the commands about hosted workers: look at them, create and change
// them from flags or from the files of apply, run their code here or against a sample
// message, and read what they print and store.
//
// Each command asks an operator server through package cli, except sign, bus and dev, which need
// none; begin at [Command]. specfile.go reads the files of apply, diff, sign and dev.
package workers

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/deadletters"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Command returns the command workers.
func Command() *cobra.Command {
	return cli.Group(&cobra.Command{
		Use:     "workers",
		Aliases: []string{"worker"},
		Short:   "Hosted workers: code that is loaded at run time and fed by topics",
	},
		list(), get(), explain(), describe(), create(), update(), apply(), diff(), logs(), state(), timers(), cancelTimer(),
		test(), develop(), sign(), bus(), promote(), rollback(), history(), remove(), recoverAll(), start(), stop(),
	)
}

// one makes cmd a command that does something with one worker and shows it.
func one(use, short string, do func(c *cli.Call, id string) (*operatorv1.Worker, error)) *cobra.Command {
	return cli.Command(&cobra.Command{
		Use:   use,
		Short: short,
	}, cli.OfWorker, func(c *cli.Call) error {
		w, err := do(c, c.Args[0])
		return show(c, w, err)
	})
}

func get() *cobra.Command {
	return one("get ID", "Show one hosted worker", func(c *cli.Call, id string) (*operatorv1.Worker, error) {
		return c.Workers.GetWorker(c.Context(), &operatorv1.GetWorkerRequest{Id: id})
	})
}

func explain() *cobra.Command {
	return cli.Command(&cobra.Command{
		Use:   "explain ID",
		Short: "Show what a worker may have, and which grant of the hosts' configuration allows it",
		Long: `Show each name that the worker's spec asks for and each bound of its tenant, with the
grant that allows it. A name without a grant is allowed to every tenant. What the hosts'
configuration does not grant is in the last column, and the status is 1.`,
	}, cli.OfWorker, func(c *cli.Call) error {
		w, err := c.Workers.GetWorker(c.Context(), &operatorv1.GetWorkerRequest{Id: c.Args[0]})
		if err != nil {
			return err
		}
		missing := 0
		for _, m := range w.GetMeans() {
			if m.GetMissing() != "" {
				missing++
			}
		}
		err = c.Write(&operatorv1.Worker{Id: w.GetId(), Means: w.GetMeans()}, func(t *output.Table) {
			t.Head("WHAT", "NAME", "GRANT", "MISSING")
			for _, m := range w.GetMeans() {
				t.Row(m.GetWhat(), m.GetName(), m.GetGrant(), output.Bad(m.GetMissing()))
			}
		})
		if err == nil && missing > 0 {
			err = cli.Fail(cli.ExitFindings, "%d of the names of %s are not granted", missing, w.GetId())
		}
		return err
	})
}

func start() *cobra.Command {
	return one("start ID", "Feed a stopped worker again, from where it stopped", func(c *cli.Call, id string) (*operatorv1.Worker, error) {
		return c.Workers.StartWorker(c.Context(), &operatorv1.StartWorkerRequest{Id: id})
	})
}

func stop() *cobra.Command {
	return one("stop ID", "Stop feeding a worker; its messages wait", func(c *cli.Call, id string) (*operatorv1.Worker, error) {
		return c.Workers.StopWorker(c.Context(), &operatorv1.StopWorkerRequest{Id: id})
	})
}

// show shows a worker, or returns the error of the call for it.
func show(c *cli.Call, w *operatorv1.Worker, err error) error {
	return c.Answer(w, err, func(t *output.Table) {
		t.Line("id", w.GetId())
		t.Row(output.Faint("state"), output.State(w.GetState()))
		t.Line("desired", w.GetDesired())
		if w.GetError() != "" {
			t.Row(output.Faint("error"), output.Bad(w.GetError()))
		}
		t.Line("type", w.GetMimeType())
		t.Line("topics", strings.Join(w.GetTopics(), ", "))
		t.Line("group", w.GetGroup())
		t.Line("output topic", w.GetOutputTopic())
		t.Line("limits", limits(w.GetLimits()))
		t.Line("rate", rate(w.GetSpec().GetRate()))
		t.Line("tenant", w.GetSpec().GetTenant())
		t.Line("key", w.GetSpec().GetKey())
		t.Line("env", strings.Join(w.GetSpec().GetEnv(), ", "))
		t.Line("secrets", strings.Join(w.GetSpec().GetSecrets(), ", "))
		t.Line("http", strings.Join(w.GetSpec().GetHttp().GetAllow(), ", "))
		t.Line("http secrets", strings.Join(w.GetSpec().GetHttp().GetSecrets(), ", "))
		t.Line("host", w.GetHost())
		t.Line("digest", w.GetDigest())
		t.Line("canary", canary(w.GetCanary()))
		t.Line("backlog", fmt.Sprint(w.GetBacklog()))
		t.Line("dead letters", fmt.Sprint(w.GetDeadLetters()))
		t.Line("created", output.Moment(w.GetCreatedAt()))
		t.Line("updated", output.Moment(w.GetUpdatedAt()))
	})
}

// rate returns a worker's rate for people, "" for none.
func rate(r *operatorv1.Rate) string {
	if r == nil {
		return ""
	}
	text := fmt.Sprintf("%d per ", r.GetMessages())
	if r.GetPer() == nil {
		text += "second"
	} else {
		text += r.GetPer().AsDuration().String()
	}
	if r.GetBurst() > 0 {
		text += fmt.Sprintf(", burst %d", r.GetBurst())
	}
	return text
}

// limits returns a worker's own limits in the form of the flags of create.
func limits(l *operatorv1.Limits) string {
	var all []string
	if l.GetTime() != nil {
		all = append(all, "time "+l.GetTime().AsDuration().String())
	}
	if l.GetLoad() != nil {
		all = append(all, "load "+l.GetLoad().AsDuration().String())
	}
	for _, n := range []struct {
		name  string
		value int64
	}{{"memory", l.GetMemory()}, {"output", l.GetOutput()}, {"outputs", int64(l.GetOutputs())}} {
		if n.value != 0 {
			all = append(all, n.name+" "+strconv.FormatInt(n.value, 10))
		}
	}
	return strings.Join(all, ", ")
}

func list() *cobra.Command {
	var (
		req   operatorv1.ListWorkersRequest
		watch bool
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "list",
		Short: "List the hosted workers",
	}, cli.OfWorker, func(c *cli.Call) error {
		return cli.List[*operatorv1.Worker]{
			Head:   []string{"ID", "STATE", "DESIRED", "TOPICS", "GROUP", "BACKLOG", "DEAD", "CANARY", "HOST", "AGE", "ERROR"},
			Widths: []int{20, 9, 9, 20, 8, 7, 4, 6, 16, 4},
			Cells: func(w *operatorv1.Worker) []any {
				return []any{
					w.GetId(), output.State(w.GetState()), w.GetDesired(), strings.Join(w.GetTopics(), ","), w.GetGroup(),
					fmt.Sprint(w.GetBacklog()), fmt.Sprint(w.GetDeadLetters()), percent(w.GetCanary()), w.GetHost(),
					output.Age(w.GetCreatedAt(), time.Now()), output.Bad(w.GetError()),
				}
			},
			Look: func(ctx context.Context) (proto.Message, error) {
				return cli.All(ctx, 0, &req, c.Workers.ListWorkers)
			},
			Key: (*operatorv1.Worker).GetId,
		}.Show(c, watch)
	})
	cmd.Flags().StringVar(&req.State, "state", "", "only those in this `state`")
	cmd.Flags().StringVar(&req.Group, "group", "", "only those of this `group`")
	cli.WatchFlag(cmd, &watch)
	return cmd
}

func history() *cobra.Command {
	var watch bool
	cmd := cli.Command(&cobra.Command{
		Use:   "history ID",
		Short: "Show the versions of a worker's code and their results",
	}, cli.OfWorker, func(c *cli.Call) error {
		return cli.List[*operatorv1.CodeVersion]{
			Head:   []string{"", "AT", "DIGEST", "SOURCE", "BY", "BYTES", "SUCCEEDED", "FAILED", "DEAD"},
			Widths: []int{1, 20, 16, 16, 8, 6, 9, 6},
			Cells:  versionCells,
			Look: func(ctx context.Context) (proto.Message, error) {
				return c.Workers.GetWorkerHistory(ctx, &operatorv1.GetWorkerHistoryRequest{Id: c.Args[0]})
			},
			Key: func(v *operatorv1.CodeVersion) string { return v.GetDigest() + " " + output.Moment(v.GetAt()) },
		}.Show(c, watch)
	})
	cli.WatchFlag(cmd, &watch)
	return cmd
}

func versionCells(v *operatorv1.CodeVersion) []any {
	now := v.GetRollout()
	if v.GetCurrent() {
		now = "*"
	}
	succeeded, failed := "-", "-" // only the host that runs it knows
	if v.GetCounted() {
		succeeded, failed = fmt.Sprint(v.GetSucceeded()), fmt.Sprint(v.GetFailed())
	}
	return []any{
		now, output.Moment(v.GetAt()), v.GetDigest(), v.GetSource(), v.GetWho(), fmt.Sprint(v.GetBytes()),
		succeeded, failed, fmt.Sprint(v.GetDeadLettered()),
	}
}

func describe() *cobra.Command {
	return cli.Command(&cobra.Command{
		Use:   "describe ID",
		Short: "Show one hosted worker: what it does now, its canary, and why its messages fail",
		Long: `Show one hosted worker: where it runs, how many messages it handled in the last
minutes and how long that took, both versions of a canary, and its dead letters by reason.
With -o json or another format it shows what the worker does.`,
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
		if err := show(c, w, nil); err != nil {
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
