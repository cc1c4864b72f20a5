// Command scaledoc simulates rollouts of 10,000 pods with package rollout, and writes the
// tables of docs/reference/scale.md, which is written by hand around them: "make scale", a minute.
// Every simulation is deterministic, so a test repeats some of them and compares the page.
// scenarios.go has what is simulated.
package main

import (
	"flag"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/pleme-io/lifecycle-go/bench/rollout"
	"github.com/pleme-io/lifecycle-go/internal/pages"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "scaledoc:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("scaledoc", flag.ContinueOnError)
	page := flags.String("page", "../docs/reference/scale.md", "the page to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	text, err := render(*page)
	if err != nil {
		return err
	}
	return os.WriteFile(*page, []byte(text), 0o644)
}

// render returns the page with its tables simulated again: those of the given names, or
// all of them.
func render(page string, only ...string) (string, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return "", err
	}
	chosen := map[string]bool{}
	for _, name := range only {
		chosen[name] = true
	}
	return pages.Fill(string(text), "scale", func(name, old string) (string, error) {
		table, ok := tables[name]
		if !ok {
			return "", fmt.Errorf("there is no table %q", name)
		}
		if len(only) > 0 && !chosen[name] {
			return old, nil
		}
		return table(), nil
	})
}

// tables are the parts of the page, by name.
var tables = map[string]func() string{
	"windows":              windowTable,
	"lingers":              lingerTable,
	"stops where all know": func() string { return stopTable("kube-proxy") },
	"stops where some lag": func() string { return stopTable("aws-5000") },
	"costs":                costTable,
	"follow":               followTable,
	"checks":               checkTable,
}

// windowTable shows what new connections lose, by the length of the window.
func windowTable() string {
	windows := []time.Duration{5 * second, 10 * second, 30 * second, 60 * second}
	head := []string{"how the news of a stop spreads"}
	for _, w := range windows {
		head = append(head, span(w))
	}
	head = append(head, "needed, each", "needed, one of a hundred", "times the P99")
	var rows [][]string
	for _, s := range spreads() {
		lose := losses(s)
		row := []string{s.name}
		for _, w := range windows {
			row = append(row, lost(lose(w)))
		}
		each, hundredth := shortest(s.Longest(), everyRequest, lose), shortest(s.Longest(), oneOfAHundred, lose)
		ratio := ""
		if p99, ok := published[s.key]; ok {
			ratio = fmt.Sprintf("%.1f, %.1f", each.Seconds()/p99.Seconds(), hundredth.Seconds()/p99.Seconds())
		}
		rows = append(rows, append(row, span(each), span(hundredth), ratio))
	}
	return pages.Table(head, rows)
}

// The budgets of a search, in lost requests of a million new connections. Where one of a
// hundred requests opens a connection, a hundred times as many may be lost.
const (
	everyRequest  = 1
	oneOfAHundred = 100
)

// losses returns what new connections lose with a window. It simulates each window once.
func losses(s spread) func(window time.Duration) rollout.Tally {
	tried := map[time.Duration]rollout.Tally{}
	return func(window time.Duration) rollout.Tally {
		if _, ok := tried[window]; !ok {
			tried[window] = rollout.Run(scenario(s.Spread, draining(window, drain().Linger), fresh(s.fresh))).Crowds[0]
		}
		return tried[window]
	}
}

// shortest returns the shortest window, in whole seconds, that loses less than budget of a
// million. A longer window never loses more, which a test of package rollout shows.
func shortest(longest time.Duration, budget float64, lose func(window time.Duration) rollout.Tally) time.Duration {
	seconds := sort.Search(int(longest/second)+1, func(n int) bool {
		return lose(time.Duration(n)*second).PerMillion() < budget
	})
	return time.Duration(seconds) * second
}

// lingerTable shows what kept connections lose, by Linger.
func lingerTable() string {
	head, rows := []string{"clients"}, [][]string{}
	for _, crowd := range keptConnections() {
		rows = append(rows, []string{crowd.Name})
	}
	var requests []rollout.Tally
	for _, linger := range []time.Duration{0, 2 * second, 5 * second, 10 * second, 20 * second, 55 * second} {
		head = append(head, span(linger))
		r := rollout.Run(scenario(instant(), draining(drain().Window, linger), keptConnections()...))
		for i, t := range r.Crowds {
			rows[i] = append(rows[i], lost(t))
		}
		requests = r.Crowds
	}
	for i, t := range requests {
		rows[i] = append(rows[i], number(int(t.Requests)))
	}
	return pages.Table(append(head, "requests"), rows)
}

// stopTable compares ways to stop, where the news spreads like this.
func stopTable(key string) string {
	s := spreadOf(key)
	head := []string{s.name}
	for _, crowd := range mixedLoad() {
		head = append(head, crowd.Name)
	}
	var rows [][]string
	for _, st := range stops() {
		r := rollout.Run(scenario(s.Spread, st.Stop, mixedLoad()...))
		row := []string{st.name}
		for _, t := range r.Crowds {
			row = append(row, lost(t))
		}
		rows = append(rows, append(row, span(r.Terminating/pods)))
	}
	return pages.Table(append(head, "a pod stops in"), rows)
}

// costTable shows the time of the rollout, by the length of the window.
func costTable() string {
	windows := []time.Duration{5 * second, 10 * second, 20 * second, 30 * second, 60 * second}
	head := []string{"strategy"}
	for _, w := range windows {
		head = append(head, span(w))
	}
	head = append(head, "for each second", "most pods at once", "pod-hours for each second")
	idle := rollout.Crowd{Name: "idle", Conns: 1, Gap: rollout.Gap{Max: 10 * minute}}
	var rows [][]string
	for _, p := range strategies() {
		var all []rollout.Result
		row := []string{p.name}
		for _, w := range windows {
			s := scenario(instant(), draining(w, drain().Linger), idle)
			s.Strategy, s.Pods = p.Strategy, p.pods
			all = append(all, rollout.Run(s))
			row = append(row, span(all[len(all)-1].Took.Round(second)))
		}
		first, last := all[0], all[len(all)-1]
		between := (windows[len(windows)-1] - windows[0]).Seconds()
		rows = append(rows, append(row,
			fmt.Sprintf("%.1f s more", (last.Took-first.Took).Seconds()/between),
			number(first.Peak)+" to "+number(last.Peak),
			fmt.Sprintf("%.1f", (last.Terminating-first.Terminating).Hours()/between)))
	}
	return pages.Table(head, rows)
}

// slowSlices is the way from T0 to the EndpointSlice in a control plane that is behind.
var slowSlices = rollout.Through(50*ms, 5*second)

// followTable shows the margin of a window that ends a margin after the pod's EndpointSlice
// says that the pod stops.
func followTable() string {
	var rows [][]string
	for _, key := range []string{"kube-proxy", "aws-5000", "gce-5000"} {
		s := spreadOf(key)
		behind := s.Spread
		behind.Slice = slowSlices
		took := map[time.Duration]time.Duration{} // by all pods together, by the margin
		lose := func(margin time.Duration) rollout.Tally {
			stop := drain()
			stop.Follow, stop.Margin, stop.Least, stop.Window = true, margin, second, 10*minute
			r := rollout.Run(scenario(behind, stop, fresh(2)))
			took[margin] = r.Terminating
			return r.Crowds[0]
		}
		margin := shortest(behind.Longest(), everyRequest, lose)
		fixed := shortest(s.Longest(), everyRequest, losses(s))
		rows = append(rows, []string{s.name, span(margin), span(took[margin] / pods), span(fixed)})
	}
	return pages.Table([]string{"the nodes", "margin needed", "a pod stops in, on average", "a fixed window, control plane not behind"}, rows)
}

// checkTable compares the simulation with measurements.
func checkTable() string {
	var rows [][]string
	for _, c := range checks() {
		results := c.simulate()
		for _, row := range c.rows {
			got := row.mean(results)
			rows = append(rows, []string{c.name, row.what, row.shown(), fmt.Sprintf("%.4g", got), row.verdict(got), c.where})
		}
	}
	return pages.Table([]string{"stop", "", "measured", "simulated", "", "where"}, rows)
}

// lost returns a cell of a table: the lost requests of a million.
func lost(t rollout.Tally) string {
	switch per := t.PerMillion(); {
	case t.Lost.All() == 0:
		return "0"
	case per < 10:
		return fmt.Sprintf("%.1f", per)
	default:
		return number(int(math.Round(per)))
	}
}

// span writes a time as people do: 5 s, 6.1 s, 2 min 16 s.
func span(d time.Duration) string {
	if d = d.Round(100 * ms); d <= minute {
		return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " s"
	}
	d = d.Round(second)
	text := fmt.Sprintf("%d min", d/minute)
	if rest := d % minute; rest > 0 {
		text += " " + span(rest)
	}
	return text
}

// number groups the digits.
func number(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
