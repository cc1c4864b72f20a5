package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// diffVersions shows how two versions of a worker differ. The exit status is 1 when they
// do.
func diffVersions(a *api, cmd *cobra.Command, o *output, id, from, to string) error {
	req := &operatorv1.DiffWorkerCodeRequest{Id: id}
	if from != "" || to != "" {
		h, err := a.Workers.GetWorkerHistory(cmd.Context(), &operatorv1.GetWorkerHistoryRequest{Id: id})
		if err != nil {
			return err
		}
		if req.From, err = wholeDigest(h.GetVersions(), from); err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		if req.To, err = wholeDigest(h.GetVersions(), to); err != nil {
			return fmt.Errorf("--to: %w", err)
		}
	}
	d, err := a.Workers.DiffWorkerCode(cmd.Context(), req)
	if err != nil {
		return err
	}
	err = o.write(cmd.OutOrStdout(), d, func(t *table) {
		t.line("from", d.GetFrom())
		t.line("to", d.GetTo())
		if !d.GetSettingsKnown() {
			t.line("settings", "not known any more")
		}
		for _, c := range d.GetChanges() {
			t.row(cell{c.GetField(), wait}, fmt.Sprintf("%q -> %q", c.GetFrom(), c.GetTo()))
		}
		if d.GetNotCompared() != "" {
			t.line("code", fmt.Sprintf("%s: %d bytes became %d", d.GetNotCompared(), d.GetFromBytes(), d.GetToBytes()))
		}
	})
	if err == nil && o.tabular() && d.GetDiff() != "" {
		if !terminal(cmd.OutOrStdout()) {
			return cmp.Or(send(cmd.OutOrStdout(), []byte(d.GetDiff())), versionsDiffer(id))
		}
		t := &table{colours: colourful(cmd.OutOrStdout())}
		for line := range strings.SplitSeq(strings.TrimSuffix(d.GetDiff(), "\n"), "\n") {
			var tone colour
			switch {
			case strings.HasPrefix(line, "+"):
				tone = good
			case strings.HasPrefix(line, "-"):
				tone = bad
			}
			t.row(cell{strings.ReplaceAll(line, "\t", "    "), tone})
		}
		err = send(cmd.OutOrStdout(), t.text())
	}
	if err != nil {
		return err
	}
	if d.GetDiff() != "" || d.GetNotCompared() != "" || len(d.GetChanges()) > 0 {
		return versionsDiffer(id)
	}
	return nil
}

func versionsDiffer(id string) error {
	return &failure{status: exitFindings, err: fmt.Errorf("the versions of %s differ", id)}
}

// wholeDigest returns the one digest of the versions that begins so, "" for "".
func wholeDigest(versions []*operatorv1.CodeVersion, begin string) (found string, err error) {
	if begin == "" {
		return "", nil
	}
	for _, v := range versions {
		if !strings.HasPrefix(strings.TrimPrefix(v.GetDigest(), "sha256:"), strings.TrimPrefix(begin, "sha256:")) {
			continue
		}
		if found != "" && found != v.GetDigest() {
			return "", fmt.Errorf("more than one version begins with %s", begin)
		}
		found = v.GetDigest()
	}
	if found == "" {
		return "", fmt.Errorf("there is no version %s; lifecyclectl workers history has them", begin)
	}
	return found, nil
}

func workerDescribeCommand(r *remote) *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "describe ID",
		Short: "Show one hosted worker: what it does now, its canary, and why its messages fail",
		Long: `Show one hosted worker: where it runs, how many messages it handled in the last
minutes and how long that took, both versions of a canary, and its dead letters by reason.
With -o json or another format it shows what the worker does.`,
		Args: words("ID"),
		RunE: asks(r, &o, ofWorker, func(a *api, cmd *cobra.Command, args []string) error {
			w, err := a.Workers.GetWorker(cmd.Context(), &operatorv1.GetWorkerRequest{Id: args[0]})
			if err != nil {
				return err
			}
			does, err := a.Workers.GetWorkerActivity(cmd.Context(), &operatorv1.GetWorkerActivityRequest{Id: args[0]})
			if err != nil {
				return err
			}
			if !o.tabular() {
				return o.write(cmd.OutOrStdout(), does, nil)
			}
			if err := showWorker(cmd, &o, w); err != nil {
				return err
			}
			if err := o.write(cmd.OutOrStdout(), does, func(t *table) { activityTable(t, w, does) }); err != nil || w.GetDeadLetters() == 0 {
				return err
			}
			if err := send(cmd.OutOrStdout(), []byte("\nDead letters\n")); err != nil {
				return err
			}
			return showGroups(a, cmd, &o, args[0])
		}),
		ValidArgsFunction: completeWorkers(r),
	}
	o.register(cmd)
	return cmd
}

// activityTable shows what a worker does.
func activityTable(t *table, w *operatorv1.Worker, does *operatorv1.WorkerActivity) {
	if does.GetHost() == "" {
		t.line("runs on", "no host has answered")
		return
	}
	window := does.GetWindow().AsDuration()
	perSecond := func(n int64) string {
		return fmt.Sprintf("%.2f a second (%d in %s)", float64(n)/max(1, window.Seconds()), n, window.Round(1e9))
	}
	t.line("runs on", does.GetHost())
	t.line("handled", perSecond(does.GetSucceeded()))
	t.line("failed", perSecond(does.GetFailed()))
	if does.GetLongest() != nil {
		t.line("time to handle", fmt.Sprintf("half %s, 95 %% %s, longest %s", does.GetP50().AsDuration(), does.GetP95().AsDuration(), does.GetLongest().AsDuration()))
	}
	for _, v := range does.GetVersions() {
		name := short(v.GetDigest())
		switch v.GetDigest() {
		case w.GetCanary().GetDigest():
			name += ", the canary"
		case w.GetDigest():
			name += ", its own"
		}
		t.row(cell{"version", faint}, fmt.Sprintf("%s: %d succeeded, %d failed, %d dead letters", name, v.GetSucceeded(), v.GetFailed(), v.GetDeadLettered()))
	}
}
