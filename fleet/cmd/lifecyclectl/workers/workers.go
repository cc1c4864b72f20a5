// Package workers has the commands about hosted workers: look at them, create and change
// them from flags or from the files of apply, run their code here or against a sample
// message, and read what they print and store.
//
// Each command asks an operator server through package cli, except sign and dev, which need
// none; begin at [Command]. specfile.go reads the files of apply, diff, sign and dev.
package workers

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
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
		list(), get(), describe(), create(), update(), apply(), diff(), logs(), state(), timers(), cancelTimer(),
		test(), develop(), sign(), promote(), rollback(), history(), remove(), recoverAll(), start(), stop(),
	)
}

// one makes cmd a command that does something with one worker and shows it.
func one(use, short string, do func(c *cli.Call, id string) (*operatorv1.Worker, error)) *cobra.Command {
	return cli.Command(&cobra.Command{
		Use:               use,
		Short:             short,
		Args:              cli.Words("ID"),
		ValidArgsFunction: cli.CompleteWorkers,
	}, cli.OfWorker, func(c *cli.Call) error {
		w, err := do(c, c.Args[0])
		if err != nil {
			return err
		}
		return show(c, w)
	})
}

func get() *cobra.Command {
	return one("get ID", "Show one hosted worker", func(c *cli.Call, id string) (*operatorv1.Worker, error) {
		return c.Workers.GetWorker(c.Context(), &operatorv1.GetWorkerRequest{Id: id})
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

func show(c *cli.Call, w *operatorv1.Worker) error {
	return c.Write(w, func(t *output.Table) {
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
