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
	spawners = []string{"errgroup", us, us + ".Supervise", us + ".signals", us + ".worker", us + ".Func", us + ".Supervisor", "oklog.run", "suture", "fx"}
	stoppers = []string{"net-http.Shutdown", "net-http.Sleep-Shutdown", "fx", "controller-runtime", us}
)

func plane(bench, mode, size, peer string) string {
	return fmt.Sprintf("%s/mode=%s/%s/peer=%s", bench, mode, size, peer)
}

func spawn(group, peer string) string { return fmt.Sprintf("Spawn/%s/peer=%s", group, peer) }

// treeBench is in the results when package workers was measured.
const treeBench = "Restart/peer=" + us

const wallclock = "sec/op"

var (
	treePeers = []string{us, "suture", "aretw0-lifecycle"}
	idles     = []string{"Idle/workers=1000/", "Idle/workers=10000/", "Idle/workers=100000/"}
	crowds    = []string{"Dynamic/workers=1000/", "Dynamic/workers=10000/", "Dynamic/workers=100000/"}
)

// page renders everything.
func (r *results) page() ([]byte, error) {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }

	p("<!-- Written by bench/cmd/benchdoc from benchmarks.txt. Do not edit: run \"make bench bench-docs\". -->\n")
	p("# Benchmarks\n")
	p("This page compares this project with its peers, measured in one run. Every benchmark ran %s; in every pass the peers of a comparison ran one after the other. [benchmarks.txt](benchmarks.txt) has every measurement, for benchstat. \"make bench\" repeats the run.\n", r.times())
	p("| | |\n| --- | --- |")
	for _, row := range [][2]string{{"processor", "cpu"}, {"cores", "cores"}, {"kernel", "kernel"}, {"Go", "toolchain"}, {"peers", "peers"}} {
		p("| %s | %s |", row[0], strings.TrimSpace(r.config[row[1]]))
	}
	p("\nThe machine was shared. Times are therefore processor time, summed over all threads of the process. They exclude the work of other processes and include work in the background. ± is the half-width of the 95 %% confidence interval of the median. Ratios compare medians.\n")

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
		p("\nThese targets are missed, for these reasons:\n")
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
		"The benchmark calls the handler behind a mux, with a reused ResponseWriter. Every check returns nil at once. The floor writes the same headers and the same body as our plane and checks nothing. \"uncached\" runs every check for every probe, \"cached\" keeps results, and \"periodic\" runs checks in the background; a peer without that mode is missing from the table. controller-runtime runs checks in the prober's goroutine, one after the other, without a timeout, and lets the server catch panics. This library and the other peers run them in other goroutines.",
		func(r *results, p func(string, ...any)) { planes(r, p, "Plane") }, ""},
	{"The same over a connection",
		"There is one keep-alive connection on the loopback, and a client that allocates nothing. The time includes both ends. Most of it is spent in the kernel and in net/http.",
		func(r *results, p func(string, ...any)) { planes(r, p, "PlaneTCP") }, ""},
	{"Fifty probers, one slow check",
		"Fifty probers ask a plane at once. Its one check takes 500 ms. A kubelet waits 1 s; \"answered\" is the number of probers that got their answer within that. \"goroutines\" does not count the probers' own, each of which waits in its handler.",
		slow, ""},
	{"Units: start, run, stop, await",
		"The benchmark makes a group, starts its units, waits until all run, stops them, and waits until all have returned. It has no log and no servers. Peers handle no signals here, and neither does \"lifecycle-go\". \".signals\" is the App with its default signals, \".Supervise\" restarts units that fail. The other three have no App: \".worker\" uses the workers of Supervise, \".Func\" runs each function once, and \".Supervisor\" is one supervisor of all, as suture runs its services. No reader watches the events.",
		spawns, ""},
	{"What tracking costs a request",
		"This compares App.Serve with a plain http.Server. \"handler\" calls the handler without net/http: an empty one, and ours around an empty one. Only this row can resolve nanoseconds. \"script\" is a connection in memory that holds all requests at once, so it measures net/http and the code around the handler. \"TCP\" is one keep-alive connection on the loopback.",
		requests, ""},
	{"What a stop costs clients",
		"A server is replaced under load. Two hundred clients keep their connections and pause for up to 1.6 s between requests. Eight clients open a connection for each request. A client notices when its idle connection was closed. It never sends a request twice: a request that is refused, or gets no complete response, is lost. New connections reach the old server for 0.7 s after the stop, as in a cluster that has not noticed yet, and then its successor. Sleep-Shutdown waits for 1 s and then calls Shutdown, like a preStop hook that sleeps. lifecycle-go uses the same second as its DrainInterval. \"lost\" is the sum over all passes.",
		stops, ""},
	{"Supervision trees",
		"One supervisor, one for one, has functions as children. \"idle\" is the cost of a function that waits for its end: heap and stack, with the supervisor's share. \"restarts\" has one function that fails at once, with no wait and no limit; do not configure it like that. \"grown\" is the difference in memory between a million restarts and ten thousand. \"stop\" is wall-clock time. aretw0/lifecycle copies the state of all children whenever one ends. With ten thousand children its stop takes minutes, so that cell is empty.",
		trees, treeBench},
	{"Processes",
		"This is the wall-clock time of a program that exits at once: from its start until it has been reaped, and the part until Start returns. Most of it is the kernel's work and the program's own start.",
		processes, treeBench},
	{"Durable workflows: writes and reads",
		"The entities are on a NATS server in the same process, reached over TCP. Each writer has its own entity. \"raw\" is the floor: a writer stores the same record in the same bucket with the key-value API, knows the revision, and never reads the record. semstreams is the predecessor. Processor time includes the server's.",
		workflows, workflowBench},
	{"Durable workflows: lists",
		"This lists a hundred of many entities from the view's indexes.",
		lists, listBench},
	{"Worker processes",
		"A pool of worker processes returns its input. The table shows the median in wall-clock time, because other work on the machine affects it least. Every worker is the same program. The floor is one connection with the same bytes as ours: it writes a line and reads a line, and parses neither. \"floor.bytes\" is a raw socket with a length before the bytes, read into the same memory each time. \"lifecycle-go.bytes\" sends the payload as bytes beside the JSON. go-plugin speaks gRPC, and \"grpc\" is gRPC over a unix socket without a plugin around it; RoadRunner's pool uses its own frames on pipes. In the tables of other languages the peers' callers are programs in that language, and ours are in Go. Each worker is a process of its own; the floor is a raw socket to a program in that language. At 1 MB the peers get bytes.",
		pools, poolBench},
	{"Hosted workers",
		"Messages of 100 bytes are on an embedded NATS. The time runs from the request for the first message until the server has every acknowledgement. \"raw\" has no host: it uses an iterator of the same client, and an acknowledgement. The other rows are a host with a handler that does nothing in that language; they include loading the code once.",
		hosted, hostBench},
	{"The cost at rest",
		"The same service runs with net/http alone and with this library: a handler, a health plane on an address of its own, and a stop on SIGTERM. It has answered one request on each address and then has nothing to do; no periodic check is registered. \"may serve TLS\" calls ServeTLS when a certificate is configured, as App.Serve does. Resident memory includes the pages of the program's file that the kernel has mapped. Wakeups are context switches of all threads in 10 s, after the timeouts of the last request have run out. Goroutines of the runtime do not count. A process runs when its log says so.",
		rests, restBench},
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
	ratio := func(of, to string) string {
		return digits(r.get(spawn("units=1000", of), processor).Center / r.get(spawn("units=1000", to), processor).Center)
	}
	p("\nA thousand units of an App take %s× the processor time of an errgroup. In return every unit has a life of its own. It passes through four states of a table, and each is timed and kept; with a reader it is published as an event. It has its own context, which says why it was cancelled. A panic or a Goexit in it is an error with its name. The report has the stack of a unit that never returns. And the App waits for its end and acts on it. An errgroup has a goroutine and an error.\n", ratio(us, "errgroup"))
	p("With Supervise a thousand units take %s× the time of suture. Each run is an attempt with a status, a context and a number of its own, beside the status of the whole, so a unit makes seven changes where one of Go makes four.", ratio(us+".Supervise", "suture"))
	measuredAlone(r, p)
}

// measuredAlone says when units and workers were measured, if that was not with the rest.
func measuredAlone(r *results, p func(string, ...any)) {
	if at := r.config["workers"]; at != "" {
		p("\nThis section was measured on %s, with \"make bench-workers\".", at)
	}
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
	if !r.has(crowds[0] + "peer=" + us) {
		return
	}
	p("\nChildren of one kind that come one by one: each is added, a quarter of all starts fail at once and are repeated, and in the end all stop. \"%s\" is a Dynamic, and \"%s-supervisor\" a Supervisor with a Spec for each child, which stops them in reverse order. The times are for one child, the stop on the clock.\n", us, us)
	p("| | 1000 children | stop | 10 000 children | stop | 100 000 children | stop |\n| --- | --- | --- | --- | --- | --- | --- |")
	for _, peer := range []string{us, us + "-supervisor", "suture"} {
		row := "| " + peer
		for i, id := range crowds {
			n := float64([]int{1000, 10_000, 100_000}[i])
			row += " | " + measured(r, id+"peer="+peer, func(id string) string { return duration(r.get(id, processor).Center / n) })
			row += " | " + measured(r, id+"peer="+peer, func(id string) string { return duration(r.get(id, "stop-ms").Center / 1e3 / n) })
		}
		p("%s |", row)
	}
	measuredAlone(r, p)
}

// measured returns the cell of a benchmark, or a dash when this peer did not finish it.
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
