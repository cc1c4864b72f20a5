package main

import "fmt"

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
			s := r.get(base+h.peer, messageRate)
			p("| %s | %.0f ± %s | %s× | %s |", h.is, s.Center, spread(s), digits(s.Center/r.get(base+stateful[0].peer, messageRate).Center), duration(r.get(base+h.peer, wallclock).Center))
		}
	}
	if id := "HostedIdle/workers=500"; r.has(id) {
		p("\nA worker that has nothing to do costs its host %.1f goroutines and %.0f bytes.", r.get(id, "goroutines/worker").Center, r.get(id, "B/worker").Center)
	}
	if id := "Recovery/workers=1000"; r.has(id) {
		p("\nA starting host runs a thousand Starlark workers after %s.", duration(r.get(id, wallclock).Center))
	}
}
