// Command clientdoc writes the tables of docs/reference/clients.md, which is written by hand around
// them, from docs/reference/clients.json, the results that "make clients" has measured.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/pleme-io/lifecycle-go/bench/clients"
	"github.com/pleme-io/lifecycle-go/internal/pages"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "clientdoc:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("clientdoc", flag.ContinueOnError)
	results := flags.String("results", "../docs/reference/clients.json", "the results")
	page := flags.String("page", "../docs/reference/clients.md", "the page to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	text, err := render(*page, *results)
	if err != nil {
		return err
	}
	return os.WriteFile(*page, []byte(text), 0o644)
}

// tables are the parts of the page by their names.
var tables = map[string]func(clients.Results) string{
	"clients": clientTable,
	"proxies": proxyTable,
	"missing": missingList,
}

// render returns the page with its tables made of a file of results.
func render(page, file string) (string, error) {
	results, err := clients.ReadResults(file)
	if err != nil {
		return "", err
	}
	return pages.Fill(page, "clients", func(name string) (string, error) {
		table, ok := tables[name]
		if !ok {
			return "", fmt.Errorf("there is no table %q", name)
		}
		return table(results), nil
	})
}

// pair is the results of both servers.
type pair struct{ ours, sleep clients.Result }

// pairs returns the measured results by client and scenario, and both names in order.
func pairs(rs clients.Results, proxy bool) (all map[[2]string]pair, names, scenarios []string) {
	all = make(map[[2]string]pair)
	for _, r := range rs {
		if r.Proxy != proxy {
			continue
		}
		if !slices.Contains(names, r.Client) {
			names = append(names, r.Client)
		}
		if !slices.Contains(scenarios, r.Scenario) {
			scenarios = append(scenarios, r.Scenario)
		}
		key := [2]string{r.Client, r.Scenario}
		p := all[key]
		if r.Server == clients.Ours {
			p.ours = r
		} else {
			p.sleep = r
		}
		all[key] = p
	}
	return all, names, scenarios
}

func clientTable(rs clients.Results) string {
	all, names, scenarios := pairs(rs, false)
	head := append([]string{"client", "version"}, scenarios...)
	head = append(head, "lost of sent, ours", "lost of sent, sleep", "refused alone", "refused, two servers", "longest stop")
	var rows [][]string
	for _, name := range names {
		var sum, alone pair
		row := []string{name, ""}
		for _, scenario := range scenarios {
			p := all[[2]string{name, scenario}]
			row = append(row, p.lost())
			sum.add(p)
			if scenario == "alone" {
				alone = p
			}
			if p.ours.Note != "" {
				row[1] = strings.TrimSpace(p.ours.Note)
				if note, _, ok := strings.Cut(row[1], ", longest"); ok { // the browser's page says how long it heard nothing
					row[1] = note
				}
			}
		}
		rows = append(rows, append(row, lostOf(sum.ours), lostOf(sum.sleep),
			numbers(alone.ours.Refused, alone.sleep.Refused),
			numbers(sum.ours.Refused-alone.ours.Refused, sum.sleep.Refused-alone.sleep.Refused), sum.took()))
	}
	return pages.Table(head, rows)
}

// proxyTable has a row for each proxy, with checks and without, and each client in front.
func proxyTable(rs clients.Results) string {
	all, names, scenarios := pairs(rs, true)
	head := []string{"proxy", "requests of", "lost of sent, ours", "lost of sent, sleep", "refused", "errors in its log", "stop"}
	var rows [][]string
	for _, scenario := range scenarios {
		for _, name := range names {
			p, ok := all[[2]string{name, scenario}]
			if !ok {
				continue
			}
			rows = append(rows, []string{
				scenario, name, lostOf(p.ours), lostOf(p.sleep),
				numbers(p.ours.Refused, p.sleep.Refused),
				numbers(sumOf(p.ours.ProxyErrors), sumOf(p.sleep.ProxyErrors)), p.took(),
			})
		}
	}
	return pages.Table(head, rows)
}

// add adds what a pair has lost and sent, and keeps the longest stop.
func (p *pair) add(more pair) {
	for _, s := range []struct {
		sum *clients.Result
		one clients.Result
	}{{&p.ours, more.ours}, {&p.sleep, more.sleep}} {
		s.sum.Lost += s.one.Lost
		s.sum.Sent += s.one.Sent
		s.sum.Refused += s.one.Refused
		s.sum.Took = max(s.sum.Took, s.one.Took)
	}
}

func (p pair) lost() string {
	if p.ours.Missing != "" || p.sleep.Missing != "" {
		return "not measured"
	}
	return numbers(p.ours.Lost, p.sleep.Lost)
}

// took is how long the stops took.
func (p pair) took() string { return fmt.Sprintf("%.1f s / %.1f s", p.ours.Took, p.sleep.Took) }

func lostOf(r clients.Result) string {
	if r.Sent == 0 {
		return "not measured"
	}
	return thousands(r.Lost) + " of " + thousands(r.Sent)
}

// numbers writes ours beside the peer's.
func numbers(ours, sleep int) string { return thousands(ours) + " / " + thousands(sleep) }

func sumOf(counts map[string]int) (sum int) {
	for _, n := range counts {
		sum += n
	}
	return sum
}

func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// missingList names what was not measured.
func missingList(rs clients.Results) string {
	var lines []string
	for _, r := range rs {
		who := r.Client
		if r.Proxy {
			who = r.Scenario
		}
		line := "- " + who + ": " + r.Missing
		if r.Missing != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return "Every cell was measured."
	}
	return "Not measured:\n\n" + strings.Join(lines, "\n")
}
