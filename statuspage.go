package lifecycle

import (
	"fmt"
	"html"
	"strconv"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/worker"
)

// statusPage writes HTML. It does not use html/template, which calls methods by name:
// in a package that every binary imports, that would keep the linker from leaving
// out unused exported methods.
type statusPage struct{ strings.Builder }

// put writes markup. It escapes every argument, but not the format.
func (p *statusPage) put(format string, args ...any) {
	for i, arg := range args {
		args[i] = html.EscapeString(text.Clip(fmt.Sprint(arg), 4096))
	}
	fmt.Fprintf(p, format, args...)
}

const pageHead = `<!DOCTYPE html>
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
.good { color: var(--good) } .bad { color: var(--bad) } .wait { color: var(--wait) } .dim { color: var(--dim) }
</style>
`

// page returns the page /statusz. It loads nothing.
func (s Status) page() []byte {
	var p statusPage
	p.WriteString(pageHead)
	p.put("<title>%v: %v</title></head><body>\n", s.Report.Name, s.Report.Phase)
	p.put("<h1>%v: <span class=\"%v\">%v</span></h1>\n", s.Report.Name, class(string(s.Report.Phase)), s.Report.Phase)
	p.put("<p class=\"dim\">%v · <a href=\"?format=json\">JSON</a></p>\n", s.At.Format(time.RFC3339))
	p.notes(s)
	p.phases(s)

	p.table("Units", len(s.Units), "Unit", "Kind", "Status", "Since", "Restarts", "")
	tree := s.tree()
	for _, u := range tree.Children {
		p.unit(u, s.At, 0)
	}
	p.end(len(s.Units))
	if sizeOf(tree) > maxWorkers {
		p.put("<p class=\"dim\">There are more: this is the first %v. The JSON has all.</p>\n", maxWorkers)
	}
	if len(s.Units) > 0 {
		p.put("<p class=\"dim\">The tree as <a href=\"?format=mermaid\">Mermaid</a> · <a href=\"?format=dot\">DOT</a></p>\n")
	}

	p.probes(s)
	p.servers(s)
	p.outcomes("Drainers", s.Report.Drainers)
	p.outcomes("Shutdown hooks", s.Report.Hooks)
	ended := uint64(0)
	for _, counts := range s.Report.ReloadCounts {
		for _, n := range counts {
			ended += n
		}
	}
	reloads := "Reloads"
	if n := len(s.Report.Reloads); ended > uint64(n) {
		reloads = fmt.Sprintf("Reloads, the last %d of %d", n, ended)
	}
	p.outcomes(reloads, s.Report.Reloads)
	p.WriteString("</body></html>\n")
	return []byte(p.String())
}

// notes writes a line for each unusual fact.
func (p *statusPage) notes(s Status) {
	for _, line := range []struct{ what, text, class string }{
		{"Why it stops", s.Report.Reason, ""}, {"Waiting for", s.Waiting, "wait"}, {"Window", s.Report.Window, ""}, {"Error", s.Report.Error, "bad"},
		{"Black box", s.Report.BlackBox, ""},
	} {
		if line.text != "" {
			p.put("<p>%v: <b class=\"%v\">%v</b></p>\n", line.what, line.class, line.text)
		}
	}
	if !s.Suspended.Since.IsZero() {
		p.put("<p>Suspended %v: <b class=\"wait\">%v</b></p>\n", ago(s.Suspended.Since, s.At), s.Suspended.Reason)
	}
	if s.Report.CutRequests > 0 {
		p.put("<p>Requests cut: <b class=\"bad\">%v</b></p>\n", s.Report.CutRequests)
	}
	for _, text := range s.Report.Left {
		p.put("<p class=\"bad\">Left behind: %v</p>\n", text)
	}
	for _, text := range s.Report.Refused {
		p.put("<p class=\"bad\">%v</p>\n", text)
	}
}

func (p *statusPage) phases(s Status) {
	all := s.Report.Phases
	p.table("Phases", len(all), "Phase", "Entered", "For")
	for i, ph := range all {
		took := ph.Duration
		if i == len(all)-1 && !phases.IsTerminal(ph.Phase) {
			took = s.At.Sub(ph.Entered)
		}
		p.put("<tr><td class=\"%v\">%v<td class=\"n\">%v<td class=\"n\">%v\n",
			class(string(ph.Phase)), ph.Phase, ph.Entered.Format(time.RFC3339), short(took))
	}
	p.end(len(all))
}

func (p *statusPage) probes(s Status) {
	p.table("Probes", len(s.Probes), "Plane", "Check", "State", "Since", "Took", "")
	for _, c := range s.Probes {
		name, text, state := c.Name, c.Error, string(c.State)
		if c.CausedBy != "" {
			text = "caused by " + c.CausedBy + ": " + text
		}
		if !c.Critical {
			name += " (not critical)"
		}
		if c.Running > 0 {
			text = strings.TrimPrefix(text+"; running for "+short(c.Running), "; ")
		}
		p.put("<tr><td>%v<td>%v<td class=\"%v\">%v", c.Plane, name, class(state), state)
		p.put("<td class=\"n\">%v<td class=\"n\">%v<td class=\"text\">%v\n", ago(c.Since, s.At), short(c.Latency), text)
	}
	p.end(len(s.Probes))
}

func (p *statusPage) servers(s Status) {
	p.table("Servers", len(s.Servers), "Server", "Address", "In flight", "Connections", "Hijacked", "Accepted", "Last arrival")
	for _, srv := range s.Servers {
		p.put("<tr><td>%v<td>%v<td class=\"n\">%v<td class=\"n\">%v<td class=\"n\">%v<td class=\"n\">%v<td class=\"n\">%v\n",
			srv.Name, srv.Addr, srv.InFlight, srv.Conns, srv.Hijacked, srv.Accepted, ago(srv.LastArrival, s.At))
	}
	p.end(len(s.Servers))
}

func (p *statusPage) outcomes(title string, list []Outcome) {
	p.table(title, len(list), "Name", "Result", "Took", "")
	for _, o := range list {
		class := "bad"
		if o.Result == ResultOK {
			class = "good"
		}
		p.put("<tr><td>%v<td class=\"%v\">%v<td class=\"n\">%v<td class=\"text\">%v\n", o.Name, class, o.Result, short(o.Took), o.Error)
	}
	p.end(len(list))
}

// table begins a table of n rows; without rows it writes nothing.
func (p *statusPage) table(title string, n int, columns ...string) {
	if n == 0 {
		return
	}
	p.put("<h2>%v</h2>\n<div class=\"scroll\"><table><tr>", title)
	for _, c := range columns {
		p.put("<th>%v", c)
	}
	p.WriteByte('\n')
}

func (p *statusPage) end(n int) {
	if n > 0 {
		p.WriteString("</table></div>\n")
	}
}

// maxTree bounds how deep a tree of workers is shown. A deeper tree is a worker
// whose State returns itself.
const maxTree = 32

func (p *statusPage) unit(u worker.State, now time.Time, depth int) {
	status, text := string(u.Status), strings.Join(filled(u.Reason, u.Error), "; ")
	if u.Health != worker.HealthUnknown {
		status += ", " + string(u.Health)
	}
	if !u.Due.IsZero() {
		text += " (due in " + short(u.Due.Sub(now)) + ")"
	}
	if u.Exit != nil && u.Exit.Error != "" && text == "" { // it runs again
		text = "last failure: " + u.Exit.Error
	}
	text = strings.Join(append(filled(text), bounds(u.Containment)...), "; ")
	restarts := ""
	if u.Restarts > 0 {
		restarts = fmt.Sprint(u.Restarts)
	}
	fmt.Fprintf(p, "<tr><td style=\"padding-left: %.1fem\">", float64(depth)*1.2)
	p.put("%v<td>%v<td class=\"%v\">%v", u.Name, u.Kind, workerClass(u), status)
	p.put("<td class=\"n\">%v<td class=\"n\">%v<td class=\"text\">%v\n", ago(u.UpdatedAt, now), restarts, text)
	for _, child := range u.Children {
		p.unit(child, now, depth+1)
	}
}

// bounds says what a contained process uses, of how much, and which limits do not hold.
func bounds(c *worker.Containment) (said []string) {
	if c == nil {
		return nil
	}
	limit := func(text string, is bool) string {
		if !is {
			return ""
		}
		return " of " + text
	}
	if u := c.Usage; u != nil {
		said = append(said,
			"memory "+mebibytes(u.Memory)+limit(mebibytes(c.Limits.Memory), c.Limits.Memory > 0),
			"processes "+strconv.Itoa(u.PIDs)+limit(strconv.Itoa(c.Limits.PIDs), c.Limits.PIDs > 0),
			"processor time "+short(u.CPU))
		if u.OOMKills > 0 {
			said = append(said, fmt.Sprintf("%d killed for memory", u.OOMKills))
		}
	}
	for _, m := range c.Missing {
		said = append(said, "no limit of "+m)
	}
	return said
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

func filled(texts ...string) (kept []string) {
	for _, t := range texts {
		if t != "" {
			kept = append(kept, t)
		}
	}
	return kept
}

// class returns the CSS class that colours a phase, a worker or a check in this
// state.
func class(state string) string {
	switch strings.ToLower(state) { // a worker's status begins with a capital
	case "running", "up":
		return "good"
	case "failed", "killed", "down":
		return "bad"
	case "created", "stopped", "finished":
		return "dim"
	}
	return "wait"
}

func workerClass(w worker.State) string {
	if w.Status == worker.StatusRunning && w.Health == worker.HealthUnhealthy {
		return "bad"
	}
	return class(string(w.Status))
}

func ago(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return short(now.Sub(t)) + " ago"
}

// short formats a duration for people.
func short(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(10 * time.Microsecond).String()
}

// tree returns the App and its units as one tree, no deeper than [maxTree] and with no
// more workers than [maxWorkers].
func (s Status) tree() worker.State {
	status := worker.Status(s.Report.Phase) // not a worker's status, but only shown
	left := maxWorkers
	return worker.State{Name: s.Report.Name, Kind: "app", Status: status, Error: s.Report.Error, Children: pruned(s.Units, maxTree, &left)}
}

// maxWorkers bounds how many workers the page lists. A longer page is useless,
// and a State that contains itself twice would never end. The JSON has all
// workers.
const maxWorkers = 20_000

func pruned(units []worker.State, depth int, left *int) []worker.State {
	units = units[:min(len(units), *left)]
	if depth == 0 || len(units) == 0 {
		return nil
	}
	*left -= len(units)
	out := make([]worker.State, len(units))
	for i, u := range units {
		u.Children = pruned(u.Children, depth-1, left)
		out[i] = u
	}
	return out
}

// sizeOf counts the workers of a tree, including its root.
func sizeOf(tree worker.State) int {
	n := 1
	for _, c := range tree.Children {
		n += sizeOf(c)
	}
	return n
}
