package workers

import (
	"fmt"
	"strings"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// diffVersions shows how two versions of a worker differ. The exit status is 1 when they
// do.
func diffVersions(c *cli.Call, id, from, to string) error {
	req := &operatorv1.DiffWorkerCodeRequest{Id: id}
	if from != "" || to != "" {
		h, err := c.Workers.GetWorkerHistory(c.Context(), &operatorv1.GetWorkerHistoryRequest{Id: id})
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
	d, err := c.Workers.DiffWorkerCode(c.Context(), req)
	if err != nil {
		return err
	}
	err = c.Write(d, func(t *output.Table) {
		t.Line("from", d.GetFrom())
		t.Line("to", d.GetTo())
		if !d.GetSettingsKnown() {
			t.Line("settings", "not known any more")
		}
		for _, change := range d.GetChanges() {
			t.Row(output.Wait(change.GetField()), fmt.Sprintf("%q -> %q", change.GetFrom(), change.GetTo()))
		}
		if d.GetNotCompared() != "" {
			t.Line("code", fmt.Sprintf("%s: %d bytes became %d", d.GetNotCompared(), d.GetFromBytes(), d.GetToBytes()))
		}
	})
	if err != nil {
		return err
	}
	if c.Format.IsTable() && d.GetDiff() != "" {
		if err := showDiff(c, d.GetDiff()); err != nil {
			return err
		}
	}
	if d.GetDiff() != "" || d.GetNotCompared() != "" || len(d.GetChanges()) > 0 {
		return cli.Fail(cli.ExitFindings, "the versions of %s differ", id)
	}
	return nil
}

// showDiff shows a difference in the unified format: as it is in a pipe, in colours on a
// terminal.
func showDiff(c *cli.Call, diff string) error {
	if !output.IsTerminal(c.OutOrStdout()) {
		return c.Send([]byte(diff))
	}
	t := output.NewTable(c.OutOrStdout())
	for line := range strings.SplitSeq(strings.TrimSuffix(diff, "\n"), "\n") {
		text := strings.ReplaceAll(line, "\t", "    ")
		switch {
		case strings.HasPrefix(line, "+"):
			t.Row(output.Good(text))
		case strings.HasPrefix(line, "-"):
			t.Row(output.Bad(text))
		default:
			t.Row(text)
		}
	}
	return c.Send(t.Text())
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
