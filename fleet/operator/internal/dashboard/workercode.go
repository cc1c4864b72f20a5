package dashboard

import (
	"cmp"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// diffLine is a line of a diff, with its colour class.
type diffLine struct{ Class, Text string }

// maxChanged is how many changed lines of a diff a page shows.
const maxChanged = 2000

// diffLines returns the lines of a diff in the unified format, without the two that
// name the texts, up to the last changed line that a page shows. left is how many changed
// lines come after it.
func diffLines(diff string) (list []diffLine, left int) {
	rows := strings.Split(strings.TrimSuffix(diff, "\n"), "\n")
	changed := 0
	for _, row := range rows[min(2, len(rows)):] {
		if strings.HasPrefix(row, "+") || strings.HasPrefix(row, "-") {
			changed++
		}
		if changed > maxChanged {
			continue
		}
		class := ""
		switch {
		case strings.HasPrefix(row, "+"):
			class = "add"
		case strings.HasPrefix(row, "-"):
			class = "del"
		case strings.HasPrefix(row, "@@"), strings.HasPrefix(row, `\`):
			class = "muted"
		}
		list = append(list, diffLine{class, visible([]byte(row))})
	}
	return list, max(0, changed-maxChanged)
}

// code shows how two versions of a worker differ. Each look is in the audit, so the page
// does not look again by itself.
func (d *Dashboard) code(r *http.Request, v *view) error {
	id, q := r.PathValue("id"), r.URL.Query()
	history, err := d.cfg.Workers.GetWorker(r.Context(), &operatorv1.GetWorkerRequest{Id: id})
	if err != nil {
		return err
	}
	v.Page, v.Section, v.Title = "code", "workers", "Code of "+id
	diff, err := d.cfg.Workers.DiffWorkerCode(r.Context(), &operatorv1.DiffWorkerCodeRequest{
		Id:   id,
		From: q.Get("from"),
		To:   q.Get("to"),
	})
	if code := connect.CodeOf(err); err != nil && (code == connect.CodeNotFound || code == connect.CodeInvalidArgument) {
		v.problem(err) // beside the versions
		err = nil
	}
	lines, left := diffLines(diff.GetDiff())
	v.Data = data{
		"ID":       id,
		"Versions": history.GetVersions(),
		"Diff":     diff,
		"Lines":    lines,
		"Left":     int64(left),
		"From":     cmp.Or(q.Get("from"), diff.GetFrom()),
		"To":       cmp.Or(q.Get("to"), diff.GetTo()),
	}
	return err
}

// activity is what a page shows of a worker's last minutes.
type activity struct {
	*operatorv1.WorkerActivity
	Handled, Failed string // a second
}

// activityOf asks what a worker does. A page without an answer says that it is not known.
func (d *Dashboard) activityOf(r *http.Request, w *operatorv1.Worker) *activity {
	if strings.EqualFold(w.GetState(), "stopped") {
		return nil
	}
	a, err := d.cfg.Workers.GetWorkerActivity(r.Context(), &operatorv1.GetWorkerActivityRequest{Id: w.GetId()})
	if err != nil || a.GetHost() == "" {
		return nil
	}
	seconds := max(1, a.GetWindow().AsDuration().Seconds())
	return &activity{a, perSecond(float64(a.GetSucceeded()) / seconds), perSecond(float64(a.GetFailed()) / seconds)}
}

// versionsOf returns the versions of a worker, with the results that the host that runs it
// has counted. Of several versions with one code the host's answer does not say which.
func versionsOf(w *operatorv1.Worker, a *activity) (list []*operatorv1.CodeVersion) {
	times := map[string]int{}
	for _, v := range w.GetVersions() {
		times[v.GetDigest()]++
	}
	for _, v := range w.GetVersions() {
		for _, x := range a.versions() {
			if x.GetDigest() == v.GetDigest() && times[v.GetDigest()] == 1 && !v.GetCounted() {
				v = proto.CloneOf(v)
				v.Counted, v.Succeeded, v.Failed = true, x.GetSucceeded(), x.GetFailed()
				break
			}
		}
		list = append(list, v)
	}
	return list
}

func (a *activity) versions() []*operatorv1.VersionActivity {
	if a == nil {
		return nil
	}
	return a.GetVersions()
}

// trial is a worker's canary as a page shows it.
type trial struct {
	*operatorv1.Canary
	Own      string // the digest of the worker's own version
	Versions []trialVersion
}

type trialVersion struct {
	What, Digest string
	*operatorv1.VersionActivity
	FailedShare int // percent
}

// trialOf returns the canary of a worker with the counts of both versions, nil when there
// is none.
func trialOf(w *operatorv1.Worker, a *activity) *trial {
	if w.GetCanary() == nil {
		return nil
	}
	t := &trial{Canary: w.GetCanary(), Own: w.GetDigest()}
	for _, v := range []trialVersion{
		{What: "canary", Digest: w.GetCanary().GetDigest()},
		{What: "own version", Digest: w.GetDigest()},
	} {
		for _, x := range a.versions() { // the newest of a digest
			if x.GetDigest() == v.Digest {
				v.VersionActivity, v.FailedShare = x, share(x.GetFailed(), x.GetFailed()+x.GetSucceeded())
				break
			}
		}
		t.Versions = append(t.Versions, v)
	}
	return t
}
