package dashboard

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/internal/httpcode"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Limits of a dead letter on a page, in bytes.
const (
	maxShown  = 256 << 10 // of its message; a download has the whole
	maxDumped = 16 << 10  // of its message in hexadecimal
	maxForm   = 64 << 10  // of a message that a form can edit
)

// letters shows the dead letters of a worker, grouped by reason, or all with one reason.
func (d *Dashboard) letters(r *http.Request, v *view) error {
	id, q := r.PathValue("id"), r.URL.Query()
	groups, err := d.cfg.Workers.ListDeadLetterGroups(r.Context(), &operatorv1.ListDeadLetterGroupsRequest{WorkerId: id})
	if err != nil {
		return err
	}
	list, err := d.cfg.Workers.ListDeadLetters(r.Context(), &operatorv1.ListDeadLettersRequest{
		WorkerId:  id,
		Group:     q.Get("group"),
		PageSize:  100,
		PageToken: q.Get("page"),
	})
	if err != nil {
		return err
	}
	type row struct {
		*operatorv1.DeadLetterGroup
		Share int
	}
	var rows []row
	total := groups.GetOthers()
	for _, g := range groups.GetGroups() {
		total += g.GetCount()
	}
	for _, g := range groups.GetGroups() {
		rows = append(rows, row{g, share(g.GetCount(), total)})
	}
	v.Page, v.Section, v.Title = "letters", "workers", "Dead letters of "+id
	v.Operator = d.may(r, "redrive", id)
	v.Data = data{
		"ID":      id,
		"Group":   q.Get("group"),
		"Total":   total,
		"Others":  groups.GetOthers(),
		"Groups":  rows,
		"Letters": list.GetDeadLetters(),
		"Pager":   pagerOf(r, list.GetNextPageToken(), "Next page"),
	}
	return nil
}

// lettersPath is the page of the dead letters of a worker, or of one group of them.
func lettersPath(id, group string) string {
	path := "/ui/workers/" + url.PathEscape(id) + "/deadletters"
	if group != "" {
		path += "?" + url.Values{"group": {group}}.Encode()
	}
	return path
}

func letterPath(worker, id string) string {
	return lettersPath(worker, "") + "/" + url.PathEscape(id)
}

// letter shows one dead letter. Each look is in the audit, so the page does not look
// again by itself.
func (d *Dashboard) letter(r *http.Request, v *view) error {
	worker := r.PathValue("id")
	m, err := d.cfg.Workers.ReadDeadLetter(r.Context(), &operatorv1.ReadDeadLetterRequest{
		WorkerId: worker,
		Id:       r.PathValue("letter"),
		Limit:    maxShown,
	})
	if err != nil {
		return err
	}
	as, shown := shownAs(m.GetData(), m.GetSize(), r.URL.Query().Get("as"))
	v.Page, v.Section, v.Title = "letter", "workers", "Dead letter "+m.GetId()+" of "+worker
	v.Operator = d.may(r, "edit", worker)
	v.Data = data{
		"Worker":   worker,
		"Letter":   m,
		"As":       as,
		"Shown":    shown,
		"Path":     letterPath(worker, m.GetId()),
		"Cut":      int64(len(m.GetData())) < m.GetSize() || as == "hex" && len(m.GetData()) > maxDumped,
		"Editable": m.GetSize() <= maxForm && !strings.Contains(worker, "/"), // a hook's letter has no message
	}
	return nil
}

// shownAs returns a message as text, as JSON or in hexadecimal. Without a wish it
// chooses the first of JSON, text and hexadecimal that it is.
func shownAs(data []byte, size int64, wish string) (as, shown string) {
	whole := int64(len(data)) >= size
	var pretty bytes.Buffer
	isJSON := whole && len(data) > 0 && strings.ContainsAny(string(data[:1]), "{[ \n\t\r") &&
		json.Indent(&pretty, data, "", "  ") == nil
	body := data
	for n := 0; !whole && n < utf8.UTFMax && !utf8.Valid(body) && len(body) > 0; n++ {
		body = body[:len(body)-1] // a character was cut in two
	}
	switch {
	case wish == "json" && isJSON, wish == "" && isJSON:
		return "json", visible(pretty.Bytes())
	case wish == "text", wish == "" && utf8.Valid(body) && !bytes.ContainsRune(body, 0):
		return "text", visible(body)
	}
	return "hex", hex.Dump(data[:min(len(data), maxDumped)])
}

// visible returns text with a sign in place of each control character, and of each that
// changes the direction of the text around it.
func visible(text []byte) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\t':
			return c
		case c < ' ':
			return 0x2400 + c // the pictures of control characters
		case c == 0x7f || unicode.IsControl(c) || unicode.Is(unicode.Bidi_Control, c):
			return utf8.RuneError
		}
		return c
	}, strings.ToValidUTF8(string(text), "\uFFFD"))
}

// download sends the whole message of a dead letter as a file.
func (d *Dashboard) download(w http.ResponseWriter, r *http.Request) {
	req := &operatorv1.ReadDeadLetterRequest{WorkerId: r.PathValue("id"), Id: r.PathValue("letter"), Limit: 4 << 20}
	for {
		part, err := d.cfg.Workers.ReadDeadLetter(r.Context(), req)
		if err != nil && req.GetOffset() == 0 {
			v := d.view()
			v.fail(httpcode.Of(connect.CodeOf(err)), client.Message(err))
			d.render(w, v)
			return
		}
		if err != nil { // the letter has just gone; the length tells the browser
			return
		}
		if req.GetOffset() == 0 {
			h := w.Header()
			h.Set("Content-Type", "application/octet-stream")
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
			h.Set("Content-Disposition", `attachment; filename="dead-letter-`+part.GetId()+`.bin"`)
			h.Set("Content-Length", strconv.FormatInt(part.GetSize(), 10))
			h.Set("Cache-Control", "no-store")
		}
		if _, err := w.Write(part.GetData()); err != nil { // the caller has gone
			return
		}
		if req.Offset += int64(len(part.GetData())); len(part.GetData()) == 0 || req.GetOffset() >= part.GetSize() {
			return
		}
	}
}

// asText reports whether a form can edit data as text: a browser sends each line of a
// form with a carriage return, and no control characters.
func asText(data []byte) bool {
	return utf8.Valid(data) && !bytes.ContainsFunc(data, func(c rune) bool {
		return c < ' ' && c != '\n' && c != '\t' || c == 0x7f
	})
}

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
