package main

import (
	"fmt"
	"strings"

	"golang.org/x/perf/benchmath"
)

// poolBench is in the results when package procpool was measured.
const poolBench = "RoundTrip/size=100B/peer=" + us

const callers = "Callers/callers=8/workers=4/"

const poisoned = "Poison/workers=4/beside="

var (
	poolPeers  = []string{"floor.bytes", "floor", us, usBytes, "go-plugin", "grpc", "roadrunner"}
	tripSizes  = []string{"100B", "4KB", "1MB"}
	spawnPeers = []string{"fork+exec", us, "go-plugin", "grpc", "roadrunner"}
)

func trip(size, peer string) string { return fmt.Sprintf("RoundTrip/size=%s/peer=%s", size, peer) }

// half is the unit of the median time of the repetitions. It is wall-clock time, since
// another process does half of the work.
const half = "p50-sec"

var poolTargets = append([]target{
	{
		of:     poolBench,
		text:   "A round trip to a worker process is within 1.5× of the floor at 100 B, and 1.3× at 4 KB",
		judge:  func(r *results) (string, verdict) { return nearPingPong(r) },
		reason: "A round trip to a worker process takes longer than the target allows beside a raw ping-pong. Both make the same writes. The pool reads with the runtime's poller, as the floor does, and the worker without it. The rest is the cost of a query: its states and its record, one scan of the payload on each side, and copies of payload and result, which make both processes collect garbage. The floor collects none.",
	},
	{
		of:     poolBench,
		text:   "It is ahead of go-plugin, of gRPC over a unix socket, and of RoadRunner's pool",
		judge:  func(r *results) (string, verdict) { return aheadOfPools(r, trips(), half) },
		reason: "A round trip is not clearly ahead of both peers for all sizes. RoadRunner's workers read frames with a length and parse nothing in them. go-plugin's HTTP/2 sends a large payload in parts while the worker reads, and neither side searches for the end of a value.",
	},
	{
		of:     poolBench,
		text:   "A stream is ahead of all three",
		judge:  func(r *results) (string, verdict) { return aheadOfPools(r, []string{"Stream/"}, half) },
		reason: "A stream is not clearly ahead of all three. Messages that wait are written together, as in gRPC. The pool copies each message, which its caller may keep, and gives it to the caller through a channel.",
	},
	{
		of:     poolBench,
		text:   "Eight callers of four workers wait less than in all three, in the median and at the 99th percentile",
		judge:  func(r *results) (string, verdict) { return aheadOfPools(r, []string{callers}, half, "p99-sec") },
		reason: "Eight callers of four workers do not clearly wait less than in every peer: there are more processes than processors, so the scheduler decides.",
	},
	{
		of:   poolBench,
		text: "A cold worker is ready within 2× of fork and exec of the same program",
		judge: func(r *results) (string, verdict) {
			ratio := r.get("Spawn/peer="+us, "ready-sec").Center / r.get("Spawn/peer=fork+exec", "ready-sec").Center
			return digits(ratio) + "×", atMost(ratio, 2)
		},
		reason: "A cold worker takes more than 2× of fork and exec: it has its own process group and folder, and the pool checks its identity before it gives it a query.",
	},
}, languageTargets...)

func trips() (ids []string) {
	for _, size := range tripSizes {
		ids = append(ids, "RoundTrip/size="+size+"/")
	}
	return ids
}

func nearPingPong(r *results) (measured string, v verdict) {
	v = holds
	for i, size := range []struct {
		name  string
		limit float64
	}{{"100B", 1.5}, {"4KB", 1.3}} {
		ratio := r.get(trip(size.name, us), half).Center / r.get(trip(size.name, "floor"), half).Center
		v = worse(v, atMost(ratio, size.limit))
		if i > 0 {
			measured += ", "
		}
		measured += fmt.Sprintf("%s× (%s)", digits(ratio), size.name)
	}
	return measured, v
}

// aheadOfPools compares us with the best of the peers, for each of ids and units.
func aheadOfPools(r *results, ids []string, units ...string) (measured string, v verdict) {
	v = holds
	for _, id := range ids {
		for _, unit := range units {
			ours := r.get(id+"peer="+us, unit)
			best, name := benchmath.Summary{}, ""
			for _, peer := range []string{"go-plugin", "grpc", "roadrunner"} {
				if peer == "grpc" && !r.has(id+"peer="+peer) { // it came later
					continue
				}
				if s := r.get(id+"peer="+peer, unit); name == "" || s.Center < best.Center {
					best, name = s, peer
				}
			}
			v = worse(v, ahead(ours, best))
			if measured != "" {
				measured += ", "
			}
			measured += fmt.Sprintf("%s× of %s", digits(ours.Center/best.Center), name)
		}
	}
	return measured, v
}

// pools writes the tables.
func pools(r *results, p func(string, ...any)) {
	p("\n| | 100 B | 4 KB | 1 MB | a stream of 1000 × 1 KB |\n| --- | --- | --- | --- | --- |")
	for _, peer := range poolPeers {
		if !r.has(trip("100B", peer)) {
			continue
		}
		row := "| " + peer
		for _, id := range append(trips(), "Stream/") {
			if !r.has(id + "peer=" + peer) {
				row += " |"
				continue
			}
			s := r.get(id+"peer="+peer, half)
			row += fmt.Sprintf(" | %s ± %s, %s×", duration(s.Center), spread(s), digits(s.Center/r.get(id+"peer=floor", half).Center))
		}
		p("%s |", row)
	}
	p("\n| eight callers, four workers | median | 99th percentile |\n| --- | --- | --- |")
	for _, peer := range poolPeers {
		id := callers + "peer=" + peer
		if !r.has(id) {
			continue
		}
		p("| %s | %s | %s |", peer, duration(r.get(id, half).Center), duration(r.get(id, "p99-sec").Center))
	}
	if r.has(poisoned + "nothing") {
		p("\n| two callers keep half of four workers busy | median | 99th percentile |\n| --- | --- | --- |")
		for _, row := range [][2]string{{"nothing", "alone"}, {"poison", "beside twenty queries of death a second"}} {
			p("| %s | %s | %s |", row[1], duration(r.get(poisoned+row[0], half).Center), duration(r.get(poisoned+row[0], "p99-sec").Center))
		}
	}
	p("\n| cold start | until it can be asked |\n| --- | --- |")
	for _, peer := range spawnPeers {
		if !r.has("Spawn/peer=" + peer) {
			continue
		}
		s := r.get("Spawn/peer="+peer, "ready-sec")
		p("| %s | %s ± %s |", peer, duration(s.Center), spread(s))
	}
	languages(r, p)
	if at := r.config["pools"]; at != "" {
		p("\nThis section was measured on %s, with \"make bench-pools\".", strings.TrimSpace(at))
	}
}
