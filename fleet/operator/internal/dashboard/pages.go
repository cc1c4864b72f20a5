package dashboard

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagram"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// tally is a number of things of one kind.
type tally struct {
	Name  string
	Count int64
	Tone  string
	Share int // of the whole, in percent
}

// data is what the template of a page gets.
type data = map[string]any

// pager leads to the first and the next page of a list.
type pager struct {
	First, Next, Label string
	Paged              bool // it is not the first page
}

// pagerOf returns the pager of a page whose list goes on at a token, "" for the last one.
func pagerOf(r *http.Request, token, label string) pager {
	q, first := r.URL.Query(), r.URL.EscapedPath()
	p := pager{Label: label, Paged: q.Get("page") != ""}
	q.Del("page")
	if p.First = first; len(q) > 0 {
		p.First += "?" + q.Encode()
	}
	if token != "" {
		q.Set("page", token)
		p.Next = first + "?" + q.Encode()
	}
	return p
}

// at returns a pager that leads to a place in a page.
func (p pager) at(place string) pager {
	p.First += place
	if p.Next != "" {
		p.Next += place
	}
	return p
}

func (d *Dashboard) home(r *http.Request, v *view) error {
	if !d.cfg.HasProcesses {
		v.redirect = "/ui/workflows"
		if !d.cfg.HasWorkflows {
			v.redirect = "/ui/workers"
		}
		return nil
	}
	v.Page, v.Section, v.Title, v.Live = "fleet", "processes", "Fleet", true
	q := r.URL.Query()
	req := &operatorv1.ListProcessesRequest{
		Service:   q.Get("service"),
		Phase:     q.Get("phase"),
		Contains:  strings.TrimSpace(q.Get("contains")),
		Problems:  q.Get("problems") != "",
		Sort:      cmp.Or(q.Get("sort"), "problems"),
		PageSize:  maxProcesses,
		PageToken: q.Get("page"),
	}
	list, err := d.cfg.Processes.ListProcesses(r.Context(), req)
	if connect.CodeOf(err) == connect.CodeInvalidArgument { // show an invalid filter beside the filters
		v.problem(err)
		list, err = &operatorv1.ListProcessesResponse{Totals: &operatorv1.ProcessTotals{}}, nil
	}
	if err != nil {
		return err
	}
	found, err := d.cfg.Processes.Diagnose(r.Context(), &operatorv1.DiagnoseRequest{})
	if err != nil {
		return err
	}
	services := list.GetTotals().GetServices()
	if req.GetService() != "" { // the links to the other services
		all, err := d.cfg.Processes.ListProcesses(r.Context(), &operatorv1.ListProcessesRequest{PageSize: 1})
		if err != nil {
			return err
		}
		services = all.GetTotals().GetServices()
	}
	links := tallies(services)
	slices.SortStableFunc(links, func(a, b tally) int { return cmp.Compare(b.Count, a.Count) })
	others := max(0, len(links)-maxServices)
	links = links[:len(links)-others]
	slices.SortFunc(links, func(a, b tally) int { return cmp.Compare(a.Name, b.Name) })
	wrong := len(found.GetFindings())
	v.Data = data{
		"Query":         req,
		"Services":      links,
		"Others":        others, // services without a link
		"Phases":        tallies(list.GetTotals().GetPhases()),
		"Totals":        list.GetTotals(),
		"Processes":     list.GetProcesses(),
		"Pager":         pagerOf(r, list.GetNextPageToken(), "Next page"),
		"Any":           len(services) > 0,
		"Found":         found,
		"Shown":         shown(found.GetFindings(), maxFindings),
		"Wrong":         wrong,
		"More":          max(0, wrong-maxFindings),
		"NothingLooked": len(found.GetLookedAt()) == 0,
	}
	return nil
}

// Limits of the front page.
const (
	maxProcesses = 100
	maxFindings  = 50
	maxServices  = 30 // links to a service each
)

func tallies(m map[string]int64) []tally {
	total := int64(0)
	for _, n := range m {
		total += n
	}
	var list []tally
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, tally{name, m[name], diagnosis.Tone(name), share(m[name], total)})
	}
	return list
}

func share(n, total int64) int {
	if total == 0 {
		return 0
	}
	return int(n * 100 / total)
}

func (d *Dashboard) process(r *http.Request, v *view) error {
	p, err := d.cfg.Processes.GetProcess(r.Context(), &operatorv1.GetProcessRequest{Id: r.PathValue("id")})
	if err != nil {
		return err
	}
	v.Page, v.Section, v.Title, v.Live = "process", "processes", p.GetId(), true
	v.Operator = d.may(r, "drain", p.GetId())
	v.Inspects = d.cfg.May(r.Context(), "ProcessService.GetLogs", p.GetId())
	past, err := d.cfg.Processes.ListEvents(r.Context(), &operatorv1.ListEventsRequest{Process: p.GetId(), PageSize: 30})
	unread := ""
	switch code := connect.CodeOf(err); {
	case err == nil, code == connect.CodeUnimplemented:
	case code == connect.CodeUnavailable, code == connect.CodeDeadlineExceeded: // only the journal is away
		unread = client.Message(err)
	default:
		return err
	}
	findings := p.GetFindings()
	if found, err := d.cfg.Processes.Diagnose(r.Context(), &operatorv1.DiagnoseRequest{Process: p.GetId()}); err == nil {
		findings = found.GetFindings() // with those that only the whole fleet shows
	}
	v.Data = struct {
		*operatorv1.Process
		Findings []*operatorv1.Finding
		Past     []*operatorv1.Event
		Unread   string // why the events cannot be read now
		Links    []Link
		Tree     []unitView
	}{
		Process:  p,
		Findings: findings,
		Past:     past.GetEvents(),
		Unread:   unread,
		Links:    d.cfg.Links(p),
		Tree:     treeOf(p.GetId(), "", p.GetUnits(), d.may(r, "restart-unit", p.GetId())),
	}
	return nil
}

func (d *Dashboard) workflows(r *http.Request, v *view) error {
	v.Page, v.Section, v.Title, v.Live = "workflows", "workflows", "Workflows", true
	defs, err := d.cfg.Workflows.ListDefinitions(r.Context(), &operatorv1.ListDefinitionsRequest{})
	if err != nil {
		return err
	}
	type row struct {
		*operatorv1.Definition
		Phases []tally
		Active int64
	}
	var rows []row
	for _, def := range defs.GetDefinitions() {
		x := row{Definition: def}
		for _, p := range def.GetPhases() {
			x.Phases = append(x.Phases, tally{p.GetName(), p.GetCount(), phaseTone(p), share(p.GetCount(), def.GetTotal())})
			if len(p.GetNext()) > 0 {
				x.Active += p.GetCount()
			}
		}
		rows = append(rows, x)
	}
	v.Data = rows
	return nil
}

// draw returns the picture of a definition; drawing adds an entity's details.
func draw(def *operatorv1.Definition, drawing diagram.Drawing) template.HTML {
	var states []diagram.State
	for _, p := range def.GetPhases() {
		states = append(states, diagram.State{Name: p.GetName(), Next: p.GetNext()})
	}
	drawing.Title = def.GetType()
	if len(states) > 0 && drawing.Initial == "" {
		drawing.Initial = states[0].Name
	}
	return diagram.SVG(states, drawing)
}

func (d *Dashboard) workflow(r *http.Request, v *view) error {
	typ := r.PathValue("type")
	def, err := d.cfg.Workflows.GetDefinition(r.Context(), &operatorv1.GetDefinitionRequest{Type: typ})
	if err != nil {
		return err
	}
	v.Page, v.Section, v.Title, v.Live = "workflow", "workflows", typ, true
	q := r.URL.Query()
	req := &operatorv1.ListEntitiesRequest{
		Type:      typ,
		Phase:     q.Get("phase"),
		Active:    q.Get("active") != "",
		Paused:    q.Get("paused") != "",
		Contains:  strings.TrimSpace(q.Get("contains")),
		PageToken: q.Get("page"),
		PageSize:  50,
	}
	match := strings.TrimSpace(q.Get("match"))
	if match != "" {
		for one := range strings.SplitSeq(match, ",") {
			req.Match = append(req.Match, strings.TrimSpace(one))
		}
	}
	if n, err := strconv.ParseInt(q.Get("size"), 10, 32); err == nil {
		req.PageSize = int32(n)
	}
	list, err := d.cfg.Workflows.ListEntities(r.Context(), req)
	if err != nil { // show an invalid filter beside the filters
		v.problem(err)
	}
	drawing := diagram.Drawing{Counts: map[string]int64{}, Link: func(state string) string {
		return workflowPath(typ) + "?" + url.Values{"phase": {state}}.Encode() + "#entities"
	}}
	for _, p := range def.GetPhases() {
		drawing.Counts[p.GetName()] = p.GetCount()
	}
	v.Data = data{
		"Def":      def,
		"Picture":  draw(def, drawing),
		"Query":    req,
		"Match":    match,
		"Filtered": req.Phase != "" || req.Active || req.Paused || req.Contains != "" || match != "",
		"Entities": list.GetEntities(),
		"Pager":    pagerOf(r, list.GetNextPageToken(), "Next page").at("#entities"),
		"Ages":     d.cfg.Ages(r.Context(), typ),
	}
	return nil
}

func (d *Dashboard) entity(r *http.Request, v *view) error {
	typ, id := r.PathValue("type"), r.PathValue("id")
	e, err := d.cfg.Workflows.GetEntity(r.Context(), &operatorv1.GetEntityRequest{Type: typ, Id: id})
	if err != nil {
		return err
	}
	def, err := d.cfg.Workflows.GetDefinition(r.Context(), &operatorv1.GetDefinitionRequest{Type: typ})
	if err != nil {
		return err
	}
	history, err := d.cfg.Workflows.GetHistory(r.Context(), &operatorv1.GetHistoryRequest{Type: typ, Id: id})
	if err != nil {
		return err
	}
	v.Page, v.Section, v.Title, v.Live = "entity", "workflows", id, true
	v.Operator = d.may(r, "transition", typ)
	been := map[diagram.Edge]int{}
	for _, h := range history.GetEntries() {
		if h.GetFrom() != "" && h.GetPause() == "" {
			been[diagram.Edge{From: h.GetFrom(), To: h.GetTo()}]++
		}
	}
	type field struct {
		Name, Value string
		Writable    bool
	}
	var fields []field
	for name, value := range e.GetFields().GetFields() {
		text, err := value.MarshalJSON()
		if err != nil {
			continue
		}
		shown := string(text)
		if s := value.GetStringValue(); s != "" || shown == `""` {
			shown = s
		}
		writable := slices.ContainsFunc(def.GetWritableFields(), func(f *operatorv1.Field) bool {
			return f.GetName() == name
		})
		fields = append(fields, field{name, shown, writable})
	}
	slices.SortFunc(fields, func(a, b field) int { return cmp.Compare(a.Name, b.Name) })
	entries := slices.Clone(history.GetEntries())
	slices.Reverse(entries)
	v.Data = data{
		"Entity":    e,
		"Def":       def,
		"Picture":   draw(def, diagram.Drawing{Current: e.GetPhase(), Been: been}),
		"Fields":    fields,
		"History":   entries,
		"Truncated": history.GetTruncated(),
		"Stays":     stays(history.GetEntries(), e.GetTerminal(), v.Now),
	}
	return nil
}

func (d *Dashboard) workers(r *http.Request, v *view) error {
	v.Page, v.Section, v.Title, v.Live = "workers", "workers", "Hosted workers", true
	list, err := d.cfg.Workers.ListWorkers(r.Context(), &operatorv1.ListWorkersRequest{
		PageSize:  200,
		PageToken: r.URL.Query().Get("page"),
	})
	if err != nil {
		return err
	}
	states := map[string]int64{}
	dead := int64(0)
	for _, w := range list.GetWorkers() {
		states[w.GetState()]++
		dead += w.GetDeadLetters()
	}
	v.Data = data{
		"Workers": list.GetWorkers(),
		"States":  tallies(states),
		"Dead":    dead,
		"Pager":   pagerOf(r, list.GetNextPageToken(), "Next page"),
	}
	return nil
}

func (d *Dashboard) worker(r *http.Request, v *view) error {
	id := r.PathValue("id")
	w, err := d.cfg.Workers.GetWorker(r.Context(), &operatorv1.GetWorkerRequest{Id: id})
	if err != nil {
		return err
	}
	letters, err := d.cfg.Workers.ListDeadLetters(r.Context(), &operatorv1.ListDeadLettersRequest{
		WorkerId:  id,
		PageSize:  50,
		PageToken: r.URL.Query().Get("page"),
	})
	if err != nil {
		return err
	}
	v.Page, v.Section, v.Title, v.Live = "worker", "workers", id, true
	v.Operator = d.may(r, "start", id)
	does := d.activityOf(r, w)
	v.Data = data{
		"Worker":   w,
		"Activity": does,
		"Canary":   trialOf(w, does),
		"Versions": versionsOf(w, does),
		"Letters":  letters.GetDeadLetters(),
		"Pager":    pagerOf(r, letters.GetNextPageToken(), "Next page"),
	}
	return nil
}

// events shows the journal. A process that has ended has its page here.
func (d *Dashboard) events(r *http.Request, v *view) error {
	v.Page, v.Section, v.Title, v.Live = "events", "events", "Events", true
	q := r.URL.Query()
	req := &operatorv1.ListEventsRequest{
		Service:   q.Get("service"),
		Process:   q.Get("process"),
		Contains:  strings.TrimSpace(q.Get("contains")),
		PageSize:  100,
		PageToken: q.Get("page"),
	}
	if kind := q.Get("kind"); kind != "" {
		req.Kinds = []string{kind}
	}
	list, err := d.cfg.Processes.ListEvents(r.Context(), req)
	if err != nil {
		return err
	}
	v.Data = data{
		"Query":  req,
		"Kind":   q.Get("kind"),
		"Kinds":  Kinds,
		"Events": list.GetEvents(),
		"Pager":  pagerOf(r, list.GetNextPageToken(), "Older"),
	}
	return nil
}

// Kinds are the kinds of events.
var Kinds = []string{
	"joined", "phase", "unit", "restart", "killed", "probe", "drainer", "hook", "reload", "suspended", "resumed",
	"command", "exit", "lost", "returned", "dropped", "forged",
}

func (d *Dashboard) audit(r *http.Request, v *view) error {
	v.Page, v.Section, v.Title, v.Live = "audit", "audit", "Audit", true
	q := r.URL.Query()
	req := &operatorv1.ListAuditRequest{
		Who:       q.Get("who"),
		Action:    q.Get("action"),
		Target:    q.Get("target"),
		Refused:   q.Get("refused") != "",
		PageSize:  100,
		PageToken: q.Get("page"),
	}
	list, err := d.cfg.Access.ListAudit(r.Context(), req)
	if err != nil {
		return err
	}
	v.Data = data{
		"Query":    req,
		"Entries":  list.GetEntries(),
		"Filtered": len(q) > 0,
		"Pager":    pagerOf(r, list.GetNextPageToken(), "Older"),
	}
	return nil
}

// phaseTone returns the colour of a phase, from its place in the table and its name.
func phaseTone(p *operatorv1.Phase) string {
	if t := diagnosis.Tone(p.GetName()); t != "plain" {
		return t
	}
	if len(p.GetNext()) == 0 {
		return "over"
	}
	return "plain"
}

func forbidden() error {
	return connect.NewError(connect.CodePermissionDenied,
		fmt.Errorf("you are a viewer here: acting needs the role operator"))
}

// eachRule is how many findings of each rule the front page shows before it shows more of
// any.
const eachRule = 3

// shown chooses at most n findings, in their order. A thousand processes that fail in one
// way leave room for what is wrong in another way.
func shown(list []*operatorv1.Finding, n int) []*operatorv1.Finding {
	if len(list) <= n {
		return list
	}
	chosen, of := make([]bool, len(list)), map[string]int{}
	for i, f := range list {
		if of[f.GetRule()]++; of[f.GetRule()] <= eachRule && n > 0 {
			chosen[i] = true
			n--
		}
	}
	var page []*operatorv1.Finding
	for i, f := range list {
		if !chosen[i] && n > 0 {
			chosen[i] = true
			n--
		}
		if chosen[i] {
			page = append(page, f)
		}
	}
	return slices.Clip(page)
}

// Link leads from a process to another system.
type Link struct{ Name, URL string }

// stay is the time that an entity spent in a phase.
type stay struct {
	Phase    string
	From     *timestamppb.Timestamp
	Took     *durationpb.Duration // nil in a terminal phase
	Now      bool                 // it is still there
	Tone     string
	At, Long int // of its bar, in thousandths of the life
}

// barWidth is the width of a whole life, and barLeast the width of its shortest stay.
const barWidth, barLeast = 1000, 4

// maxStays is how many stays a page shows.
const maxStays = 100

// stays returns where an entity has been and for how long, oldest first, from its history.
func stays(history []*operatorv1.HistoryEntry, terminal bool, now time.Time) (list []stay) {
	history = slices.DeleteFunc(slices.Clone(history), func(h *operatorv1.HistoryEntry) bool { return h.GetPause() != "" })
	history = history[max(0, len(history)-maxStays):]
	if len(history) == 0 {
		return nil
	}
	begin, end := history[0].GetAt().AsTime(), now
	if terminal {
		end = history[len(history)-1].GetAt().AsTime()
	}
	life := max(end.Sub(begin), time.Millisecond)
	place := func(t time.Time) int {
		return min(barWidth, max(0, int(float64(barWidth)*float64(t.Sub(begin))/float64(life))))
	}
	for i, h := range history {
		s := stay{
			Phase: h.GetTo(),
			From:  h.GetAt(),
			Tone:  diagnosis.Tone(h.GetTo()),
			At:    min(place(h.GetAt().AsTime()), barWidth-barLeast),
		}
		last := i == len(history)-1
		until := end
		if !last {
			until = history[i+1].GetAt().AsTime()
		}
		if !last || !terminal {
			s.Took = durationpb.New(max(0, until.Sub(h.GetAt().AsTime())))
		}
		s.Now, s.Long = last && !terminal, max(barLeast, place(until)-s.At)
		list = append(list, s)
	}
	return list
}

// raw returns a message as the API has it.
func raw(m proto.Message) string {
	var b bytes.Buffer
	text, err := protojson.Marshal(m)
	if err == nil {
		err = json.Indent(&b, text, "", "  ")
	}
	if err != nil {
		return err.Error()
	}
	return b.String()
}
