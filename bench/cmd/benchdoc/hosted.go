package main

import (
	"fmt"
	"strings"
)

// hostBench is in the results when package host was measured.
const hostBench = "Noop/peer=raw"

const messageRate = "msgs/s"

// stateBench is in the results when handlers with state were measured.
const stateBench = "State/sync=interval/peer=host-none"

// stateful are the handlers with state, and what they are called on the page.
var stateful = []struct{ peer, is string }{
	{"host-none", "does nothing"},
	{"host-count", "gets and puts one key"},
	{"host-counts", "gets and puts one of a thousand keys"},
	{"host-cold", "the same, and none of them is in memory when it begins"},
	{"host-echo", "returns a message"},
	{"raw-publish", "no host: publishes and waits for the answer"},
}

// ofRaw divides the rate of id by the rate of base. The target holds when the ratio is at
// least least.
func ofRaw(r *results, id, base string, least float64) (string, verdict) {
	ratio := r.get(id, messageRate).Center / r.get(base, messageRate).Center
	if ratio >= least {
		return fmt.Sprintf("%.3g×", ratio), holds
	}
	return fmt.Sprintf("%.3g×", ratio), fails
}

func hosted(r *results, p func(string, ...any)) {
	for _, t := range []struct {
		bench, title, base string
		peers              []string
	}{
		{"Noop", "one worker", "raw", []string{"raw", "go", "starlark", "js", "wasm", "python"}},
		{"Group", "one message at a time", "raw", []string{"raw", "host", "kv-lock"}},
	} {
		p("\n| %s | messages a second | of %s | a message |\n| --- | --- | --- | --- |", t.title, t.base)
		for _, peer := range t.peers {
			id := t.bench + "/peer=" + peer
			if !r.has(id) {
				continue // the interpreter was not installed
			}
			s := r.get(id, messageRate)
			p("| %s | %.0f ± %s | %s× | %s |", peer, s.Center, spread(s), digits(s.Center/r.get(t.bench+"/peer="+t.base, messageRate).Center), duration(r.get(id, wallclock).Center))
		}
	}
	for _, t := range []struct{ sync, title string }{{"interval", "writes are not synced"}, {"always", "each write is synced"}} {
		base := "State/sync=" + t.sync + "/peer="
		if !r.has(base + stateful[0].peer) {
			continue
		}
		p("\n| a handler in Go, %s | messages a second | of one that does nothing | a message |\n| --- | --- | --- | --- |", t.title)
		for _, h := range stateful {
			if !r.has(base + h.peer) {
				continue // it was added later
			}
			s := r.get(base+h.peer, messageRate)
			p("| %s | %.0f ± %s | %s× | %s |", h.is, s.Center, spread(s), digits(s.Center/r.get(base+stateful[0].peer, messageRate).Center), duration(r.get(base+h.peer, wallclock).Center))
		}
	}
	isolation(r, p)
	if at := r.config["hosted"]; at != "" {
		p("\nThis section was measured on %s, with \"make bench-hosted\".", strings.TrimSpace(at))
	}
	if id := "HostedIdle/workers=500"; r.has(id) {
		p("\nA worker that has nothing to do costs its host %.1f goroutines and %.0f bytes.", r.get(id, "goroutines/worker").Center, r.get(id, "B/worker").Center)
	}
	crowd(r, p)
	if id := "Recovery/workers=1000"; r.has(id) {
		p("\nA starting host runs a thousand Starlark workers after %s.", duration(r.get(id, wallclock).Center))
	}
}

// isolation writes what the child process of a worker costs.
func isolation(r *results, p func(string, ...any)) {
	const bench = "Isolation/language="
	if !r.has(bench + "js/load=waiting/peer=child") {
		return
	}
	p("\n| the same code in a child process and in the host's own | messages a second, when they wait | of the host's own | one message alone | of the host's own |\n| --- | --- | --- | --- | --- |")
	for _, language := range []string{"starlark", "js", "wasm", "python"} {
		if !r.has(bench + language + "/load=waiting/peer=child") {
			continue // the interpreter was not installed
		}
		waiting, alone := bench+language+"/load=waiting/peer=", bench+language+"/load=alone/peer="
		rate, time := r.get(waiting+"child", messageRate), r.get(alone+"child", wallclock)
		p("| %s | %.0f ± %s | %s× | %s | %s× |", language, rate.Center, spread(rate), digits(rate.Center/r.get(waiting+"host", messageRate).Center),
			duration(time.Center), digits(time.Center/r.get(alone+"host", wallclock).Center))
	}
}

// crowd writes what ten thousand workers of one stream cost.
func crowd(r *results, p func(string, ...any)) {
	const id = "HostedIdle/workers=10000"
	if !r.has(id) {
		return
	}
	value := func(unit string) float64 { return r.get(id, unit).Center }
	p("\n| ten thousand workers on one stream of one server | |\n| --- | --- |")
	p("| create one, with 16 at a time | %s |", duration(value("create-s/worker")))
	p("| a starting host runs them all | %s |", duration(value(wallclock)))
	p("| a host takes over %.0f of a host that was killed, of which %.0f s are its lease | %s |", value("taken-over"), 10.0, duration(value("takeover-s")))
	p("| list them | %s |", duration(value("list-s")))
	p("| count what waits for each | %s |", duration(value("backlogs-s")))
	p("| stop their host | %s |", duration(value("stop-s")))
	p("| at rest, for each worker of its host | %.1f goroutines, %.0f bytes |", value("goroutines/worker"), value("B/worker"))
	p("| at rest, the host's processor time | %.1f %% of a core |", 100*value("host-cpus"))
	p("| at rest, the server's | %.1f %% of a core |", 100*value("server-cpus"))
	p("| the server's memory | %.0f MB |", value("server-B")/1e6)
}
