package main

import (
	"fmt"

	"golang.org/x/perf/benchmath"
)

const usBytes = us + ".bytes"

// tongues are the languages of BenchmarkLanguages, with what comes with each, or what its
// users take.
var tongues = []struct {
	name  string
	peers []string
}{{"python", []string{"ProcessPoolExecutor", "multiprocessing.Pool"}}, {"node", []string{"workerpool"}}}

func spoken(language, size, peer string) string {
	return fmt.Sprintf("Languages/language=%s/size=%s/peer=%s", language, size, peer)
}

var languageTargets = []target{
	{
		of:     "RoundTrip/size=1MB/peer=" + usBytes,
		text:   "A megabyte of bytes is within 1.3× of a raw socket",
		judge:  nearRawSocket,
		reason: "A megabyte of bytes takes longer than 1.3× of a raw socket in some language. In Go both ends read into memory that is used again, as the raw socket does (procpool.Into, child.ReuseBytes). In Python each query gets new bytes, and the thread that reads hands them to the one that works, so that a worker sees a cancel while it works. Node gets a megabyte in pieces of 64 KB, which the SDK joins.",
	},
	{
		of:     spoken("python", "100B", us),
		text:   "Workers in Python and Node are ahead of what users of these languages take, with bytes at 1 MB",
		judge:  aheadOfLanguages,
		reason: "Workers in Python and Node are not clearly ahead of what users of these languages take, for all sizes. The SDKs read in a thread of their own or in the event loop, so that a worker answers health checks and sees a cancel while it works. The peers' workers see neither: they read only between two calls.",
	},
}

func nearRawSocket(r *results) (measured string, v verdict) {
	v = holds
	add := func(name, ours, floor string) {
		if !r.has(ours) {
			return
		}
		ratio := r.get(ours, half).Center / r.get(floor, half).Center
		v = worse(v, atMost(ratio, 1.3))
		if measured != "" {
			measured += ", "
		}
		measured += fmt.Sprintf("%s× (%s)", digits(ratio), name)
	}
	add("Go", trip("1MB", usBytes), trip("1MB", "floor.bytes"))
	for _, l := range tongues {
		add(l.name, spoken(l.name, "1MB", usBytes), spoken(l.name, "1MB", "floor"))
	}
	return measured, v
}

func aheadOfLanguages(r *results) (measured string, v verdict) {
	v = holds
	for _, l := range tongues {
		for _, size := range tripSizes {
			own := us
			if size == "1MB" {
				own = usBytes
			}
			best, name := benchmath.Summary{}, ""
			for _, peer := range l.peers {
				if id := spoken(l.name, size, peer); r.has(id) {
					if s := r.get(id, half); name == "" || s.Center < best.Center {
						best, name = s, peer
					}
				}
			}
			if name == "" || !r.has(spoken(l.name, size, own)) {
				continue
			}
			ours := r.get(spoken(l.name, size, own), half)
			v = worse(v, ahead(ours, best))
			if measured != "" {
				measured += ", "
			}
			measured += fmt.Sprintf("%s× of %s (%s)", digits(ours.Center/best.Center), name, size)
		}
	}
	return measured, v
}

// languages writes a table for each language.
func languages(r *results, p func(string, ...any)) {
	for _, l := range tongues {
		if !r.has(spoken(l.name, "100B", us)) {
			continue
		}
		p("\n| a worker in %s | 100 B | 4 KB | 1 MB |\n| --- | --- | --- | --- |", map[string]string{"python": "Python", "node": "Node"}[l.name])
		for _, peer := range append([]string{"floor", us, usBytes}, l.peers...) {
			if !r.has(spoken(l.name, "100B", peer)) {
				continue
			}
			row := "| " + peer
			for _, size := range tripSizes {
				s := r.get(spoken(l.name, size, peer), half)
				row += fmt.Sprintf(" | %s ± %s, %s×", duration(s.Center), spread(s), digits(s.Center/r.get(spoken(l.name, size, "floor"), half).Center))
			}
			p("%s |", row)
		}
	}
}
