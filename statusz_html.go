package lifecycle

import (
	"fmt"
	"html"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/worker"
)

// page writes HTML. It is by hand because html/template, in a package that
// every binary imports, keeps the linker from leaving out any exported method
// (it calls methods by name).
type page struct{ strings.Builder }

// put writes markup. Every argument is escaped; the format is not.
func (p *page) put(format string, args ...any) {
	for i, arg := range args {
		args[i] = html.EscapeString(text.Clip(fmt.Sprint(arg), 4096))
	}
	fmt.Fprintf(p, format, args...)
}

const statuszHead = `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<style>
:root { color-scheme: light dark; --line: #8884; --good: #16803c; --bad: #c02626; --wait: #9a6700; --dim: #6b7280 }
@media (prefers-color-scheme: dark) { :root { --good: #4ade80; --bad: #f87171; --wait: #fbbf24; --dim: #9ca3af } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 1rem auto; max-width: 64rem; padding: 0 .75rem }
h1 { font-size: 1.3rem; margin: 0 0 .25rem } h2 { font-size: 1rem; margin: 1.5rem 0 .25rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line) }
th { font-weight: 600; white-space: nowrap } td.n { font-variant-numeric: tabular-nums; white-space: nowrap }
td.text { overflow-wrap: anywhere; min-width: 12rem }
svg.tree { font: 13px system-ui, sans-serif; fill: currentColor } svg.tree rect { fill: #8881; stroke: currentColor } svg.tree .said { font-size: 12px }
svg.tree path { fill: none; stroke: var(--dim) } svg.tree g.good, svg.tree g.bad, svg.tree g.wait, svg.tree g.dim { fill: currentColor }
.good { color: var(--good) } .bad { color: var(--bad) } .wait { color: var(--wait) } .dim { color: var(--dim) }
</style>
`

// renderStatus makes the page of s. It needs nothing but itself.
func renderStatus(s Status) []byte {
	var p page
	p.WriteString(statuszHead)
	r := s.Report
	p.put("<title>%v: %v</title></head><body>\n<h1>%v: <span class=\"%v\">%v</span></h1>\n", r.Name, r.Phase, r.Name, phaseClass(r.Phase), r.Phase)
	p.put("<p class=\"dim\">%v · <a href=\"?format=json\">JSON</a></p>\n", s.At.Format(time.RFC3339))
	for _, line := range []struct{ what, text, class string }{
		{"Why it stops", r.Reason, ""}, {"Waiting for", s.Waiting, "wait"}, {"Window", r.Window, ""}, {"Error", r.Error, "bad"},
	} {
		if line.text != "" {
			p.put("<p>%v: <b class=\"%v\">%v</b></p>\n", line.what, line.class, line.text)
		}
	}
	if !s.Suspended.Since.IsZero() {
		p.put("<p>Suspended %v: <b class=\"wait\">%v</b></p>\n", ago(s.Suspended.Since, s.At), s.Suspended.Reason)
	}
	if r.CutRequests > 0 {
		p.put("<p>Requests cut: <b class=\"bad\">%v</b></p>\n", r.CutRequests)
	}
	for _, text := range r.Left {
		p.put("<p class=\"bad\">Left behind: %v</p>\n", text)
	}
	for _, text := range r.Refused {
		p.put("<p class=\"bad\">%v</p>\n", text)
	}

	p.table("Phases", len(r.Phases), "Phase", "Entered", "For")
	for i, ph := range r.Phases {
		took := ph.Duration
		if i == len(r.Phases)-1 && !phases.IsTerminal(ph.Phase) {
			took = s.At.Sub(ph.Entered)
		}
		p.put("<tr><td class=\"%v\">%v<td class=\"n\">%v<td class=\"n\">%v\n", phaseClass(ph.Phase), ph.Phase, ph.Entered.Format(time.RFC3339), short(took))
	}
	p.end(len(r.Phases))

	p.table("Units", len(s.Units), "Unit", "Kind", "Status", "Since", "Restarts", "")
	tree := s.tree()
	for _, u := range tree.Children {
		p.unit(u, s.At, 0)
	}
	p.end(len(s.Units))
	if sizeOf(tree) > maxWorkers {
		p.put("<p class=\"dim\">There are more: this is the first %v. The JSON has all.</p>\n", maxWorkers)
	}

	p.picture(tree)

	p.table("Probes", len(s.Probes), "Plane", "Check", "State", "Since", "Took", "")
	for _, c := range s.Probes {
		class := map[health.State]string{StateUp: "good", StateDown: "bad", StateUnknown: "wait"}[c.State]
		name, text := c.Name, c.Error
		if !c.Critical {
			name += " (not critical)"
		}
		if c.Running > 0 {
			text = strings.TrimPrefix(text+"; running for "+short(c.Running), "; ")
		}
		p.put("<tr><td>%v<td>%v<td class=\"%v\">%v<td class=\"n\">%v<td class=\"n\">%v<td class=\"text\">%v\n", c.Plane, name, class, c.State, ago(c.Since, s.At), short(c.Latency), text)
	}
	p.end(len(s.Probes))

	p.table("Servers", len(s.Servers), "Server", "Address", "In flight", "Connections", "Hijacked", "Accepted", "Last arrival")
	for _, srv := range s.Servers {
		p.put("<tr><td>%v<td>%v<td class=\"n\">%v<td class=\"n\">%v<td class=\"n\">%v<td class=\"n\">%v<td class=\"n\">%v\n",
			srv.Name, srv.Addr, srv.InFlight, srv.Conns, srv.Hijacked, srv.Accepted, ago(srv.LastArrival, s.At))
	}
	p.end(len(s.Servers))

	for _, part := range []struct {
		title string
		list  []Outcome
	}{{"Drainers", r.Drainers}, {"Shutdown hooks", r.Hooks}, {reloadsTitle(r), r.Reloads}} {
		p.table(part.title, len(part.list), "Name", "Result", "Took", "")
		for _, o := range part.list {
			class := "bad"
			if o.Result == ResultOK {
				class = "good"
			}
			p.put("<tr><td>%v<td class=\"%v\">%v<td class=\"n\">%v<td class=\"text\">%v\n", o.Name, class, o.Result, short(o.Took), o.Error)
		}
		p.end(len(part.list))
	}
	p.WriteString("</body></html>\n")
	return []byte(p.String())
}

// reloadsTitle says when more have ended than are shown.
func reloadsTitle(r Report) string {
	ended := uint64(0)
	for _, c := range r.ReloadCounts {
		ended += c.Count
	}
	if ended <= uint64(len(r.Reloads)) {
		return "Reloads"
	}
	return fmt.Sprintf("Reloads, the last %d of %d", len(r.Reloads), ended)
}

// table begins a table of n rows, none when there are none.
func (p *page) table(title string, n int, columns ...string) {
	if n == 0 {
		return
	}
	p.put("<h2>%v</h2>\n<div class=\"scroll\"><table><tr>", title)
	for _, c := range columns {
		p.put("<th>%v", c)
	}
	p.WriteByte('\n')
}

func (p *page) end(n int) {
	if n > 0 {
		p.WriteString("</table></div>\n")
	}
}

// maxTree bounds how deep a tree of workers is shown. One that is deeper is a
// worker whose State returns itself.
const maxTree = 32

func (p *page) unit(u worker.State, now time.Time, depth int) {
	status, text := string(u.Status), strings.Join(filled(u.Reason, u.Error), "; ")
	if u.Health != worker.HealthUnknown {
		status += ", " + string(u.Health)
	}
	if !u.Due.IsZero() {
		text += " (due in " + short(u.Due.Sub(now)) + ")"
	}
	restarts := ""
	if u.Restarts > 0 {
		restarts = fmt.Sprint(u.Restarts)
	}
	fmt.Fprintf(p, "<tr><td style=\"padding-left: %.1fem\">", float64(depth)*1.2)
	p.put("%v<td>%v<td class=\"%v\">%v<td class=\"n\">%v<td class=\"n\">%v<td class=\"text\">%v\n", u.Name, u.Kind, workerClass(u), status, ago(u.UpdatedAt, now), restarts, text)
	for _, child := range u.Children {
		p.unit(child, now, depth+1)
	}
}

func filled(texts ...string) (kept []string) {
	for _, t := range texts {
		if t != "" {
			kept = append(kept, t)
		}
	}
	return kept
}

func phaseClass(p Phase) string {
	switch p {
	case PhaseRunning:
		return "good"
	case PhaseFailed, PhaseKilled:
		return "bad"
	case PhaseCreated, PhaseStopped:
		return "dim"
	}
	return "wait"
}

func ago(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return short(now.Sub(t)) + " ago"
}

// short is a duration for reading.
func short(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}
