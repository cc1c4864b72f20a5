package main

import (
	"fmt"
	"slices"
	"strings"
)

const (
	us        = "lifecycle-go"
	processor = "cpu-sec/op" // processor time, all threads
	allocs    = "allocs/op"
)

var (
	sizes  = []string{"checks=1", "checks=10", "checks=50"}
	groups = []string{"units=1", "units=10", "units=1000"}
	modes  = []string{"uncached", "cached", "periodic"}
	// rivals are the planes of each mode beside ours and the floor.
	rivals = map[string][]string{
		"uncached": {"alexliesenfeld", "hellofresh", "controller-runtime"},
		"cached":   {"alexliesenfeld"},
		"periodic": {"alexliesenfeld", "go-sundheit"},
	}
	spawners = []string{"errgroup", us, us + ".Supervise", us + ".signals", us + ".worker", "oklog.run", "suture", "fx"}
	stoppers = []string{"net-http.Shutdown", "net-http.Sleep-Shutdown", "fx", "controller-runtime", us}
)

func plane(bench, mode, size, peer string) string {
	return fmt.Sprintf("%s/mode=%s/%s/peer=%s", bench, mode, size, peer)
}

func spawn(group, peer string) string { return fmt.Sprintf("Spawn/%s/peer=%s", group, peer) }

// treeBench stands for all of package workers.
const treeBench = "Restart/peer=" + us

const wallclock = "sec/op"

var (
	treePeers = []string{us, "suture", "aretw0-lifecycle"}
	idles     = []string{"Idle/workers=1000/", "Idle/workers=10000/", "Idle/workers=100000/"}
)

// page renders everything.
func (r *results) page() ([]byte, error) {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }

	p("<!-- Written by bench/cmd/benchdoc from benchmarks.txt. Do not edit: run \"make bench bench-docs\". -->\n")
	p("# Benchmarks\n")
	p("This project and its peers, measured in one run: every benchmark %d times, and in every pass all peers of a comparison in turn. [benchmarks.txt](benchmarks.txt) holds every measurement, for benchstat. \"make bench\" repeats it.\n", r.passes)
	p("| | |\n| --- | --- |")
	for _, row := range [][2]string{{"processor", "cpu"}, {"cores", "cores"}, {"kernel", "kernel"}, {"Go", "toolchain"}, {"peers", "peers"}} {
		p("| %s | %s |", row[0], strings.TrimSpace(r.config[row[1]]))
	}
	p("\nThe machine was shared. Times are therefore processor time, of all threads of the process. That excludes other processes and includes work in the background. ± is half of the confidence interval (95 %%) of the median. Ratios are ratios of medians.\n")

	p("## Targets\n")
	p("| target | measured | |\n| --- | --- | --- |")
	var reasons []string
	for _, t := range targets {
		if t.of != "" && !r.has(t.of) {
			continue // added after the committed results
		}
		measured, v := t.judge(r)
		p("| %s | %s | %s |", t.text, measured, v)
		if v != holds {
			reasons = append(reasons, t.reason)
		}
	}
	if len(reasons) > 0 {
		p("\nTargets that do not hold, and why:\n")
		for _, reason := range reasons {
			p("- %s", reason)
		}
	}

	for _, s := range sections {
		if s.of != "" && !r.has(s.of) {
			continue
		}
		p("\n## %s\n\n%s", s.title, s.text)
		s.tables(r, p)
	}
	if len(r.missing) > 0 {
		slices.Sort(r.missing)
		return nil, fmt.Errorf("these were not measured: %s", strings.Join(slices.Compact(r.missing), ", "))
	}
	return []byte(b.String()), nil
}

// section is one comparison.
type section struct {
	title, text string
	tables      func(r *results, p func(string, ...any))
	of          string // as in target
}

var sections = []section{
	{"A probe of a plane",
		"The handler behind a mux, called with a reused ResponseWriter. Every check returns nil at once. The floor writes the same headers and the same body as our plane and does nothing else. \"uncached\" runs every check for every probe, \"cached\" keeps results, \"periodic\" runs checks in the background; a missing peer does not have that mode. controller-runtime runs checks in the prober's goroutine, one after the other, without a timeout, and lets the server catch panics. The others, and we, use other goroutines.",
		func(r *results, p func(string, ...any)) { planes(r, p, "Plane") }, ""},
	{"The same over a connection",
		"One keep-alive connection on the loopback, and a client that allocates nothing. The time includes both ends; the kernel and net/http take most of it.",
		func(r *results, p func(string, ...any)) { planes(r, p, "PlaneTCP") }, ""},
	{"Fifty probers, one slow check",
		"Fifty probers at once at a plane with one check that takes 500 ms. A kubelet waits 1 s. \"answered\" is how many got their answer within that time. \"goroutines\" excludes the probers' own, each of which waits in its handler.",
		slow, ""},
	{"Units: start, run, stop, await",
		"Make a group, start its units, wait until all run, stop them, wait until all have returned. Without logs and servers. Peers handle no signals here, and neither does \"lifecycle-go\". \".signals\" is the App with its defaults, \".Supervise\" restarts units like suture does, and \".worker\" is the workers of Supervise without an App.",
		spawns, ""},
	{"What tracking costs a request",
		"App.Serve beside a plain http.Server. \"script\" is a connection in memory from which all requests can be read at once, so that nothing but net/http and what is around the handler is left; \"TCP\" is one keep-alive connection on the loopback. \"handler\" is the handler that net/http calls, an empty one and ours around an empty one, without net/http: the one of the three in which nanoseconds can be told apart.",
		requests, ""},
	{"What a stop costs clients",
		"A server is replaced under load. Two hundred clients keep their connections and pause for up to 1.6 s between requests; eight open a connection for each. They notice a connection that was closed while idle, and never retry: a request that is refused, or gets no complete response, is lost. New connections go to the old server for 0.7 s after the stop, until the cluster would have noticed, and then to its successor. Sleep-Shutdown waits for 1 s and then calls Shutdown, like a preStop hook that sleeps; lifecycle-go has the same second as DrainInterval. \"lost\" is the sum over all passes.",
		stops, ""},
	{"Supervision trees",
		"One supervisor, one for one, with functions for children. \"idle\" is the heap and stack of a function that waits for its end, with the supervisor's share. \"restarts\" is the rate for one function that fails at once, without a wait and a limit, which no service should configure; \"grown\" is how much more memory is in use after a million restarts than after ten thousand. \"stop\" is on the clock. aretw0/lifecycle copies the state of all children whenever one ends: with ten thousand a stop takes minutes, so that it is left out there.",
		trees, treeBench},
	{"Processes",
		"A program that exits at once, on the clock: from its start until it has been reaped, and the part until Start returns. Most of it is spent in the kernel and in the start of the program.",
		processes, treeBench},
	{"Durable workflows: writes and reads",
		"Entities on a NATS server in the same process, reached over TCP, each writer with its own entity. \"raw\" is the floor: the same record in the same bucket with the key-value API, by a writer that knows the revision and never reads the record. semstreams is the predecessor. Processor time includes the server's.",
		workflows, workflowBench},
	{"Durable workflows: lists",
		"A hundred of many, from the view's indexes.",
		lists, listBench},
	{"Worker processes",
		"A pool of worker processes that echo their input, on the clock: the median, which depends least on other load of the machine. Every worker is the same program. The floor is one connection with the same bytes: it writes a line, reads a line, and does not parse it. go-plugin speaks gRPC, RoadRunner's pool its own frames on pipes.",
		pools, poolBench},
	{"Hosted workers",
		"Messages of 100 bytes on an embedded NATS, from the request for the first until the server has every acknowledgement. \"raw\" is not a host: it is the same iterator of the same client, and an acknowledgement. The others are a host with a handler in that language that does nothing; the time includes one load of the code.",
		hosted, hostBench},
}

// cell writes one measurement and its ratio to a base.
func cell(r *results, id, base string) string {
	s := r.get(id, processor)
	return fmt.Sprintf("%s ± %s, %s×, %s allocs", duration(s.Center), spread(s),
		digits(s.Center/r.get(base, processor).Center), digits(r.get(id, allocs).Center))
}

func planes(r *results, p func(string, ...any), bench string) {
	for _, mode := range modes {
		p("\n| %s | 1 check | 10 checks | 50 checks |\n| --- | --- | --- | --- |", mode)
		for _, peer := range append([]string{"floor", us}, rivals[mode]...) {
			row := "| " + peer
			for _, size := range sizes {
				row += " | " + cell(r, plane(bench, mode, size, peer), plane(bench, mode, size, "floor"))
			}
			p("%s |", row)
		}
	}
}

func slow(r *results, p func(string, ...any)) {
	p("\n| | 99 %% answered after | answered in 1 s | runs of the check | at once | goroutines |\n| --- | --- | --- | --- | --- | --- |")
	for _, mode := range modes[:2] {
		for _, peer := range append([]string{us}, rivals[mode]...) {
			id := fmt.Sprintf("SlowCheck/mode=%s/peer=%s", mode, peer)
			p("| %s, %s | %s | %s of 50 | %s | %s | %s |", peer, mode, duration(r.get(id, "p99-ms").Center/1e3),
				digits(r.get(id, "in-time").Center), digits(r.get(id, "runs").Center),
				digits(r.get(id, "runs-at-once").Center), digits(r.get(id, "goroutines").Center))
		}
	}
}

func spawns(r *results, p func(string, ...any)) {
	p("\n| | 1 unit | 10 units | 1000 units |\n| --- | --- | --- | --- |")
	for _, peer := range spawners {
		row := "| " + peer
		for _, g := range groups {
			row += " | " + cell(r, spawn(g, peer), spawn(g, "errgroup"))
		}
		p("%s |", row)
	}
	p("\nWhat the ratio to errgroup (%s× for a thousand units) buys: every unit has its own lifecycle. It goes through four states of a table; each change is stamped, recorded and published as an event. It has its own context with the cause of its cancellation. A panic or a Goexit in it is an error with its name. Its goroutine is known, so a unit that never returns is reported with its stack. The App waits for its end and acts on it. An errgroup has a goroutine and an error.",
		digits(r.get(spawn("units=1000", us), processor).Center/r.get(spawn("units=1000", "errgroup"), processor).Center))
}

func requests(r *results, p func(string, ...any)) {
	p("\n| | net/http | lifecycle-go | beyond net/http |\n| --- | --- | --- | --- |")
	for _, row := range [][2]string{{"handler", "Tracking"}, {"script", "Request"}, {"TCP", "RequestTCP"}} {
		plain, ours := row[1]+"/peer=net-http", row[1]+"/peer="+us
		beyond := r.get(ours, processor).Center - r.get(plain, processor).Center
		p("| %s | %s | %s | %+.0f ns |", row[0], cell(r, plain, plain), cell(r, ours, plain), beyond*1e9)
	}
}

func stops(r *results, p func(string, ...any)) {
	p("\n| | lost, new connections | lost, kept connections | answered | time to stop |\n| --- | --- | --- | --- | --- |")
	for _, peer := range stoppers {
		id := "Stop/peer=" + peer
		p("| %s | %.0f | %.0f | %.0f | %s |", peer, r.total(id, "lost-fresh"), r.total(id, "lost-keepalive"), r.total(id, "answered"),
			duration(r.get(id, "stop-ms").Center/1e3))
	}
}

func trees(r *results, p func(string, ...any)) {
	p("\n| | 1000 idle | 10 000 idle | 100 000 idle | restarts | grown | stop of 10 000 |\n| --- | --- | --- | --- | --- | --- | --- |")
	for _, peer := range treePeers {
		row := "| " + peer
		for _, id := range idles {
			row += " | " + measured(r, id+"peer="+peer, func(id string) string {
				return fmt.Sprintf("%s B, %s goroutines", digits(r.get(id, "B/worker").Center), digits(r.get(id, "goroutines/worker").Center))
			})
		}
		row += " | " + measured(r, "Restart/peer="+peer, func(id string) string {
			return fmt.Sprintf("%s each, %s allocs", duration(r.get(id, processor).Center), digits(r.get(id, allocs).Center))
		})
		row += " | " + measured(r, "Growth/peer="+peer, func(id string) string { return fmt.Sprintf("%.0f KiB", r.get(id, "grown-B").Center/1024) })
		row += " | " + measured(r, "Stop10k/peer="+peer, func(id string) string { return duration(r.get(id, "stop-ms").Center / 1e3) })
		p("%s |", row)
	}
}

// measured is a cell of a benchmark that some peers do not complete.
func measured(r *results, id string, cell func(id string) string) string {
	if !r.has(id) {
		return "–"
	}
	return cell(id)
}

func processes(r *results, p func(string, ...any)) {
	p("\n| | whole | until Start returns |\n| --- | --- | --- |")
	for _, peer := range []string{"os-exec", us} {
		id := "Process/peer=" + peer
		p("| %s | %s ± %s | %s |", peer, duration(r.get(id, wallclock).Center), spread(r.get(id, wallclock)), duration(r.get(id, "spawn-sec").Center))
	}
}
