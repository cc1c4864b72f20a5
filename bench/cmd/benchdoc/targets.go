package main

import (
	"fmt"
	"strings"

	"golang.org/x/perf/benchmath"
)

// verdict is the result of a target.
type verdict string

const (
	holds verdict = "holds"
	level verdict = "level: the intervals overlap"
	fails verdict = "does not hold"
)

// target is one promise about the numbers, and the reason to print when the run
// misses it.
type target struct {
	text   string
	judge  func(*results) (measured string, v verdict)
	reason string
	of     string // when not "", the benchmark that the target needs
}

var targets = append([]target{
	{
		text: "A cached or periodic plane answers without allocating",
		judge: func(r *results) (string, verdict) {
			most := 0.0
			for _, mode := range modes[1:] {
				for _, size := range sizes {
					most = max(most, r.get(plane("Plane", mode, size, us), allocs).Center)
				}
			}
			return digits(most) + " allocations", atMost(most, 0)
		},
		reason: "Cached planes allocate: a regression without a known reason.",
	},
	{
		text:   "A cached or periodic plane is within 1.5× of the floor, the handler alone",
		judge:  func(r *results) (string, verdict) { return nearFloor(r, "Plane") },
		reason: "A cached plane costs more than 1.5× the floor, the handler alone. Besides writing the answer, it finds the plane of the path, reads the clock, and loads three atomics. The floor ignores the request.",
	},
	{
		text:   "The same, over a connection",
		judge:  func(r *results) (string, verdict) { return nearFloor(r, "PlaneTCP") },
		reason: "A cached plane costs more than 1.5× the floor over a connection. The work of the handler does not explain that.",
	},
	{
		text:   "An uncached plane is ahead of every peer, the handler alone",
		judge:  func(r *results) (string, verdict) { return aheadOfPlanes(r, "Plane") },
		reason: "An uncached plane is not clearly ahead of controller-runtime's for every size, the handler alone. controller-runtime calls the checks in the prober's goroutine, so it cannot handle a check that hangs. This library pays for a goroutine, a context with a timeout, a reading of the clock and the state of every check. All other peers are several times slower.",
	},
	{
		text:   "The same, over a connection",
		judge:  func(r *results) (string, verdict) { return aheadOfPlanes(r, "PlaneTCP") },
		reason: "Over a connection an uncached plane is no faster than controller-runtime's, for all sizes. Both spend most of the time in the kernel and in net/http, as the floor does. The difference is smaller than the spread of that time.",
	},
	{
		text: "Fifty probers share one run of a slow check, and all are answered in time",
		judge: func(r *results) (string, verdict) {
			id := "SlowCheck/mode=uncached/peer=" + us
			runs, inTime := r.get(id, "runs").Center, r.get(id, "in-time").Center
			measured := fmt.Sprintf("%s run, %s of 50 answered, %s after 99 %%", digits(runs), digits(inTime), duration(r.get(id, "p99-ms").Center/1e3))
			if runs == 1 && inTime == 50 {
				return measured, holds
			}
			return measured, fails
		},
		reason: "Fifty probers did not share one run: a regression without a known reason.",
	},
	{
		text:   "Starting and stopping units is ahead of fx",
		judge:  func(r *results) (string, verdict) { return aheadOfSpawners(r, "fx", us) },
		reason: "Starting and stopping units is not clearly ahead of fx for all sizes: where the intervals overlap, this run cannot separate the two.",
	},
	{
		text: "A thousand functions, or a supervisor of a thousand, take at most suture's time from their start to their end",
		judge: func(r *results) (string, verdict) {
			return noSlower(r, spawn("units=1000", "suture"), 1, spawn("units=1000", us+".Func"), spawn("units=1000", us+".Supervisor"))
		},
		reason: "Functions or a supervisor of them take more than suture: a regression without a known reason.",
	},
	{
		text: "A thousand units of an App take at most 1.2× of suture's time",
		judge: func(r *results) (string, verdict) {
			return noSlower(r, spawn("units=1000", "suture"), 1.2, spawn("units=1000", us))
		},
		reason: "A thousand units of an App take more than 1.2× of suture's time. A unit is a function as a supervisor has it, and has an entry in the report with its times.",
	},
	{
		text:   "Starting and stopping a few units is ahead of suture too",
		judge:  func(r *results) (string, verdict) { return aheadOfSpawners(r, "suture", us) },
		reason: "With few units, the App itself is the cost: a health registry, a queue in front of its log, a watchdog, and goroutines that wait for signals and reloads. A supervisor has none of these, and an App pays for them once in the life of a process.",
	},
	{
		text: "Tracking costs a request under 100 ns and no allocation",
		judge: func(r *results) (string, verdict) {
			plain, tracked := r.get("Tracking/peer=net-http", processor), r.get("Tracking/peer="+us, processor)
			beyond := (tracked.Center - plain.Center) * 1e9
			more := max(r.get("Tracking/peer="+us, allocs).Center, r.get("Request/peer="+us, allocs).Center-r.get("Request/peer=net-http", allocs).Center)
			measured := fmt.Sprintf("%s ns, %s allocations", digits(beyond), digits(more))
			if more > 0 {
				return measured, fails
			}
			return measured, atMost(beyond, 100)
		},
		reason: "Tracking costs a request too much: a regression without a known reason.",
	},
	{
		text: "A stop under load loses no request",
		judge: func(r *results) (string, verdict) {
			lost := r.total("Stop/peer="+us, "lost-fresh") + r.total("Stop/peer="+us, "lost-keepalive")
			return fmt.Sprintf("%.0f of %.0f lost", lost, lost+r.total("Stop/peer="+us, "answered")), atMost(lost, 0)
		},
		reason: "A stop has lost requests: a defect.",
	},
	{
		of:     treeBench,
		text:   "An idle worker is lighter than in both peers",
		judge:  func(r *results) (string, verdict) { return aheadOfTrees(r, idles, "B/worker") },
		reason: "An idle worker is heavier than suture's service: about 0.8 KB of heap beside 0.5 KB, and the stack of 2 KB that both have. Go's own share is 0.2 KB in both, for a context that can be cancelled and the channel of its end. The rest is what a service of suture does not have: a name, a status that follows a table, the times of its changes, whether it was asked to stop, its error, its place in the order, its policy and the instance that the supervisor knows it by. Two designs were tried. With every field in the worker and a Spec for each child it had 1.3 KB. Now what few workers need (a health, a reason to wait, a suspend, the waiters for its end) is behind one pointer that most do not use, children with the same Spec share it, and the worker has no queue for events of its own before a reader comes. What is left could shrink only by leaving out the names or the times.",
	},
	{
		of:     treeBench,
		text:   "A restart takes at most the time of the fastest peer",
		judge:  func(r *results) (string, verdict) { return aheadOfTrees(r, []string{"Restart/"}, processor) },
		reason: "A restart is level with suture, where the restarted service is the same value, and is not ahead of it. Here it is a new worker, with a life, a context and a cause of its own, and it is told how the one before ended. Three designs were tried. A goroutine with a timeout for each start, as a factory that may block needs it, took 3.3× of suture's time. Starting a plain function in the loop took 1.5×. The third does without a group, a message and locks for a worker that nothing else knows yet, and is the one measured here. This rate does not occur in practice: the default backoff begins with a wait that is thousands of times as long.",
	},
	{
		of:     treeBench,
		text:   "Ten thousand workers stop faster than in both peers",
		judge:  func(r *results) (string, verdict) { return aheadOfTrees(r, []string{"Stop10k/"}, "stop-ms") },
		reason: "This run cannot say that ten thousand workers stop faster than in suture, which cancels all at once. Here they stop in reverse order, each after the one behind it has stopped, because a worker may need the ones before it. With StopTogether they stop at once.",
	},
	{
		of:   treeBench,
		text: "A process worker takes at most 1.1× of os/exec, from the start to the end",
		judge: func(r *results) (string, verdict) {
			ours, plain := r.get("Process/peer="+us, wallclock), r.get("Process/peer=os-exec", wallclock)
			return digits(ours.Center/plain.Center) + "×", atMost(ours.Center/plain.Center, 1.1)
		},
		reason: "A process worker takes more than 1.1× of os/exec. It forks from a thread that outlives the child, for the parent-death signal. It waits for the end before it reaps, so that it signals nothing afterwards. It ends the rest of the group, and reads the counter of OOM kills twice.",
	},
	{
		of:     workflowBench,
		text:   "A transition is at 0.9× of a raw update of the same record or more, where each write is synced, on the clock",
		judge:  func(r *results) (string, verdict) { return nearRaw(r, "Transition", "always", us, wallclock, 0.9) },
		reason: "A transition is at less than 0.9× of a raw update where each write is synced. The disk takes most of the time in both. The difference is the view's copy of each write, and headers that the raw write does not have.",
	},
	{
		of:     workflowBench,
		text:   "A transition of a process with a view is at 0.75× of a raw update or more, where writes are left to the operating system, in processor time",
		judge:  func(r *results) (string, verdict) { return nearRaw(r, "Transition", "interval", us, processor, 0.75) },
		reason: "A transition is at less than 0.75× of a raw update where writes are not synced. Both are one request and one answer. A transition also stores source, note and operation in a header, and updates the indexes of the view. The server also sends each write to the view, so that the view has the writes of other processes.",
	},
	{
		of:     workflowBench,
		text:   "A transition is faster than in the predecessor, semstreams",
		judge:  aheadOfSeed,
		reason: "A transition is not clearly faster than in semstreams for all numbers of writers. semstreams reads the record from the server before each write, and a single writer waits for that. With many writers the server is always busy, and the operation's id, the headers and the view cost as much as that read.",
	},
	{
		of:   workflowBench,
		text: "64 writers in four processes update one entity, and every update lands",
		judge: func(r *results) (string, verdict) {
			landed := r.get("HotKey/writers=64/processes=4/peer="+us, "landed-%").Center
			if landed == 100 {
				return "all", holds
			}
			return digits(landed) + " %", fails
		},
		reason: "Some updates of one entity by 64 writers did not land: a regression.",
	},
	{
		of:   listBench,
		text: "A list of a hundred of a million entities takes a millisecond at most",
		judge: func(r *results) (string, verdict) {
			most := 0.0
			for _, by := range listings {
				most = max(most, r.get(listing("1000000", by), wallclock).Center)
			}
			return duration(most) + " at most", atMost(most, 1e-3)
		},
		reason: "A list of a hundred of a million takes more than a millisecond: a regression, since it only walks an index from its starting point and decodes a hundred records.",
	},
	{
		of:     hostBench,
		text:   "A hosted no-op handler in Go handles 0.8× or more of what a raw consume-and-ack does",
		judge:  func(r *results) (string, verdict) { return ofRaw(r, "Noop/peer=go", "Noop/peer=raw", 0.8) },
		reason: "A hosted handler handles less than 0.8× of a raw consume-and-ack. It takes and acknowledges messages in the same way. It also pays for a call with a time limit, a context with a cause, the headers, and the search for the message's worker. On a shared machine, runs differ by more than this difference.",
	},
	{
		of:     hostBench,
		text:   "A group handles 0.8× or more of what a raw consumer with MaxAckPending 1 does",
		judge:  func(r *results) (string, verdict) { return ofRaw(r, "Group/peer=host", "Group/peer=raw", 0.8) },
		reason: "A group handles less than 0.8× of a raw consumer with one message at a time: each message waits for the acknowledgement of the one before, so all work between two messages counts in full.",
	},
	{
		of:     hostBench,
		text:   "A group is ahead of a lock that is a key in a store",
		judge:  func(r *results) (string, verdict) { return ofRaw(r, "Group/peer=host", "Group/peer=kv-lock", 1) },
		reason: "A group is no faster than a key that is created and deleted for each message: a regression without a known reason.",
	},
	{
		of:   stateBench,
		text: "A hosted handler that gets and puts one of a thousand keys handles 0.3× or more of one that does nothing",
		judge: func(r *results) (string, verdict) {
			return ofRaw(r, "State/sync=interval/peer=host-counts", stateBench, 0.3)
		},
		reason: "A handler with state handles less than 0.3× of one without. Its messages share commits, each of which is a publish and its answer, and every quarter of a second the values go to their own subjects in one batch. While that batch is under way the next commit waits.",
	},
}, append(append(workflowTargets, poolTargets...), restTargets...)...)

// aheadOfTrees compares us with the best measured peer, for each of ids.
func aheadOfTrees(r *results, ids []string, unit string) (measured string, v verdict) {
	v = holds
	for i, id := range ids {
		ours := r.get(id+"peer="+us, unit)
		best, name := benchmath.Summary{}, ""
		for _, peer := range treePeers[1:] {
			if !r.has(id + "peer=" + peer) {
				continue // it takes too long
			}
			if s := r.get(id+"peer="+peer, unit); name == "" || s.Center < best.Center {
				best, name = s, peer
			}
		}
		v = worse(v, ahead(ours, best))
		if i > 0 {
			measured += ", "
		}
		measured += fmt.Sprintf("%s× of %s", digits(ours.Center/best.Center), name)
		if len(ids) > 1 {
			measured += fmt.Sprintf(" (%s)", strings.TrimSuffix(strings.TrimPrefix(id, "Idle/"), "/"))
		}
	}
	return measured, v
}

func atMost(x, limit float64) verdict {
	if x <= limit {
		return holds
	}
	return fails
}

// nearFloor judges the worst of the cached and periodic planes.
func nearFloor(r *results, bench string) (string, verdict) {
	worst := 0.0
	for _, mode := range modes[1:] {
		for _, size := range sizes {
			worst = max(worst, r.get(plane(bench, mode, size, us), processor).Center/r.get(plane(bench, mode, size, "floor"), processor).Center)
		}
	}
	return digits(worst) + "× at most", atMost(worst, 1.5)
}

// ahead compares two measurements.
func ahead(ours, theirs benchmath.Summary) verdict {
	switch {
	case ours.Hi < theirs.Lo:
		return holds
	case ours.Lo > theirs.Hi:
		return fails
	}
	return level
}

// worse returns the worse of two verdicts.
func worse(a, b verdict) verdict {
	for _, v := range []verdict{fails, level} {
		if a == v || b == v {
			return v
		}
	}
	return holds
}

// aheadOfPlanes compares the uncached planes with the best peer of each size.
func aheadOfPlanes(r *results, bench string) (measured string, v verdict) {
	v = holds
	for i, size := range sizes {
		ours := r.get(plane(bench, "uncached", size, us), processor)
		best, name := benchmath.Summary{}, ""
		for _, peer := range rivals["uncached"] {
			if s := r.get(plane(bench, "uncached", size, peer), processor); name == "" || s.Center < best.Center {
				best, name = s, peer
			}
		}
		v = worse(v, ahead(ours, best))
		if i > 0 {
			measured += ", "
		}
		measured += fmt.Sprintf("%s× of %s (%s)", digits(ours.Center/best.Center), name, size)
	}
	return measured, v
}

// noSlower reports whether benchmarks take at most limit times the processor time of
// another.
func noSlower(r *results, than string, limit float64, ids ...string) (measured string, v verdict) {
	v = holds
	theirs := r.get(than, processor)
	for i, id := range ids {
		ours := r.get(id, processor)
		switch {
		case ours.Center <= limit*theirs.Center:
		case ours.Lo > limit*theirs.Hi:
			v = worse(v, fails)
		default:
			v = worse(v, level)
		}
		if i > 0 {
			measured += ", "
		}
		_, peer, _ := strings.Cut(id, "peer=")
		measured += fmt.Sprintf("%s× (%s)", digits(ours.Center/theirs.Center), peer)
	}
	return measured, v
}

// aheadOfSpawners compares us with one peer, for all sizes.
func aheadOfSpawners(r *results, peer, us string) (measured string, v verdict) {
	v = holds
	for i, g := range groups {
		ours, theirs := r.get(spawn(g, us), processor), r.get(spawn(g, peer), processor)
		v = worse(v, ahead(ours, theirs))
		if i > 0 {
			measured += ", "
		}
		measured += fmt.Sprintf("%s× (%s)", digits(ours.Center/theirs.Center), g)
	}
	return measured, v
}
