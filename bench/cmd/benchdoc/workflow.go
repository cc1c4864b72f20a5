package main

import (
	"fmt"
	"strings"
)

const (
	// workflowBench stands for the writes of durable workflows, listBench for
	// their lists at full size, which take minutes to fill.
	workflowBench = "Workflow/op=Transition/sync=interval/writers=1/peer=" + us
	listBench     = "List/entities=1000000/by=phase/peer=" + us
)

var (
	workflowPeers = []string{"raw", us, "semstreams"}
	blind         = us + "-without-view"
	tablePeers    = []string{"sqlite", "postgres"}
	writers       = []string{"1", "16", "64"}
	listings      = []string{"all", "phase", "indexed", "active"}
)

func writing(op, sync, writers, peer string) string {
	return fmt.Sprintf("Workflow/op=%s/sync=%s/writers=%s/peer=%s", op, sync, writers, peer)
}

func listing(entities, by string) string {
	return fmt.Sprintf("List/entities=%s/by=%s/peer=%s", entities, by, us)
}

// nearRaw compares an operation with the raw one on the same record: each number of
// writers must reach the part least.
func nearRaw(r *results, op, sync, peer, unit string, least float64) (measured string, v verdict) {
	v = holds
	for i, n := range writers {
		part := r.get(writing(op, sync, n, "raw"), unit).Center / r.get(writing(op, sync, n, peer), unit).Center
		if part < least {
			v = fails
		}
		if i > 0 {
			measured += ", "
		}
		measured += fmt.Sprintf("%s× (writers=%s)", digits(part), n)
	}
	return measured, v
}

// aheadOfSeed compares a transition with the predecessor's, in processor time.
func aheadOfSeed(r *results) (measured string, v verdict) {
	v = holds
	for i, n := range writers {
		ours, theirs := r.get(writing("Transition", "interval", n, us), processor), r.get(writing("Transition", "interval", n, "semstreams"), processor)
		v = worse(v, ahead(ours, theirs))
		if i > 0 {
			measured += ", "
		}
		measured += fmt.Sprintf("%s× of its time (writers=%s)", digits(ours.Center/theirs.Center), n)
	}
	return measured, v
}

// workflows writes the costs of writing and reading entities.
func workflows(r *results, p func(string, ...any)) {
	peers := []string{"raw", us}
	if r.has(writing("Transition", "interval", "1", blind)) {
		peers = append(peers, blind)
	}
	header(p, "", append([]string{"writers"}, append(peers, "semstreams")...)...)
	for _, op := range []string{"Create", "Get", "Transition"} {
		for _, n := range writers {
			row := fmt.Sprintf("| %s | %s |", op, n)
			for _, peer := range append(peers, "semstreams") {
				row += " " + cell(r, writing(op, "interval", n, peer), writing(op, "interval", n, "raw")) + " |"
			}
			p("%s", row)
		}
	}
	manyAndHot(r, p)
	rows(r, p)
}

// header writes the first lines of a table.
func header(p func(string, ...any), first string, others ...string) {
	p("\n| %s| %s |\n| ---%s |", strings.TrimLeft(first+" ", " "), strings.Join(others, " | "), strings.Repeat(" | ---", len(others)))
}

// manyAndHot writes what one call for many entities costs, and many calls for one.
func manyAndHot(r *results, p func(string, ...any)) {
	if r.has("Many/peer=" + us) {
		p("\nOne call of TransitionMany moves a thousand entities; the times are for one of them. \"raw\" is 64 writers, and \"raw-async\" one loop of asynchronous publishes.")
		header(p, "a thousand entities", "raw", "raw-async", us, blind)
		row := "| each |"
		for _, peer := range []string{"raw", "raw-async", us, blind} {
			row += " " + cell(r, "Many/peer="+peer, "Many/peer=raw") + " |"
		}
		p("%s", row)
	}
	if r.has(hotKey("1", us)) {
		p("\nSixty-four writers update one entity. \"landed\" is the part of the updates that were stored, \"p99\" the slowest hundredth on the clock.")
		header(p, "one entity", us, "semstreams")
		for i, n := range []string{"1", "4"} {
			row := "| in " + []string{"one process", "four processes"}[i] + " |"
			for _, peer := range []string{us, "semstreams"} {
				id := hotKey(n, peer)
				row += fmt.Sprintf(" %s, landed %s %%, p99 %s |", duration(r.get(id, processor).Center), digits(r.get(id, "landed-%").Center), duration(r.get(id, "p99-ms").Center/1e3))
			}
			p("%s", row)
		}
	}
}

func hotKey(processes, peer string) string {
	return fmt.Sprintf("HotKey/writers=64/processes=%s/peer=%s", processes, peer)
}

// rows compares a transition with one that is kept in the tables of a database.
func rows(r *results, p func(string, ...any)) {
	table := func(sync, n, peer string) string {
		return fmt.Sprintf("Table/op=Transition/sync=%s/writers=%s/peer=%s", sync, n, peer)
	}
	if !r.has(table("always", "1", "sqlite")) {
		return
	}
	p("\nA service with a database would keep the same entity in a row: a transition reads it, checks the edge, updates it where it is still as it was read, and adds a row to a table of transitions, in one transaction. Postgres works in processes of its own, so these times are on the clock.")
	header(p, "a transition", append([]string{"writers", us}, tablePeers...)...)
	for _, sync := range []struct{ name, text string }{{"always", "each write is synced"}, {"interval", "writes are left to the system"}} {
		for _, n := range writers {
			row := fmt.Sprintf("| %s | %s | %s |", sync.text, n, duration(r.get(writing("Transition", sync.name, n, us), wallclock).Center))
			for _, peer := range tablePeers {
				if !r.has(table(sync.name, n, peer)) {
					row += " – |" // there is no such database on the machine
					continue
				}
				row += " " + duration(r.get(table(sync.name, n, peer), wallclock).Center) + " |"
			}
			p("%s", row)
		}
	}
}

// lists writes the cost of a list of a hundred.
func lists(r *results, p func(string, ...any)) {
	p("\n| entities | all | by phase | by a field | what is active |\n| --- | --- | --- | --- | --- |")
	for _, size := range []string{"10000", "100000", "1000000"} {
		row := fmt.Sprintf("| %s |", size)
		for _, by := range listings {
			row += " " + duration(r.get(listing(size, by), processor).Center) + " |"
		}
		p("%s", row)
	}
	startsAndNeighbours(r, p)
	id := listing("1000000", "phase")
	p("\nWith a million entities the view takes %s B of memory for each, with its record, and is ready after %s.", digits(r.get(id, "B/entity").Center), duration(r.get(id, "start-ms").Center/1e3))
}

// startsAndNeighbours writes how long a start takes, and what work beside it does to a
// list and to a transition.
func startsAndNeighbours(r *results, p func(string, ...any)) {
	if r.has("Start/entities=1000000/from=file") {
		header(p, "start, until queries are answered", "from the bucket", "from a file")
		for _, size := range []string{"10000", "100000", "1000000"} {
			row := "| " + size + " entities |"
			for _, from := range []string{"bucket", "file"} {
				row += " " + duration(r.get("Start/entities="+size+"/from="+from, "start-ms").Center/1e3) + " |"
			}
			p("%s", row)
		}
	}
	if r.has(neighbour("List", "writers")) {
		p("\nBeside other work, with a million entities. The median and the slowest hundredth are on the clock, and the writers, the server and the list share the processors.")
		header(p, "", "alone", "beside 64 writers", "beside a list that decodes all")
		cell := func(op, beside string) string {
			id := neighbour(op, beside)
			return duration(r.get(id, "p50-ms").Center/1e3) + ", p99 " + duration(r.get(id, "p99-ms").Center/1e3)
		}
		p("| a list of a hundred | %s | %s | – |", cell("List", "none"), cell("List", "writers"))
		p("| a transition | %s | – | %s |", cell("Transition", "none"), cell("Transition", "scan"))
	}
}

func neighbour(op, beside string) string {
	return fmt.Sprintf("Beside/entities=1000000/op=%s/beside=%s", op, beside)
}

// workflowTargets are judged when their benchmarks were run.
var workflowTargets = []target{
	{
		of:     writing("Transition", "interval", "1", blind),
		text:   "A transition of a process without a view is at 0.9× of a raw update or more, where writes are left to the operating system, in processor time",
		judge:  func(r *results) (string, verdict) { return nearRaw(r, "Transition", "interval", blind, processor, 0.9) },
		reason: "A transition without a view is at less than 0.9× of a raw update. Both are one request and one answer. A transition also stores source, note and operation in a header, takes the entity's turn and remembers the record.",
	},
	{
		of:     writing("Transition", "interval", "1", blind),
		text:   "Get costs 1.2× of a raw get or less, in processor time",
		judge:  func(r *results) (string, verdict) { return nearRaw(r, "Get", "interval", us, processor, 1/1.2) },
		reason: "Get costs more than 1.2× of a raw get. Both are one direct get and one decoding of the record. Get also reads the headers, for the workflow and the times.",
	},
	{
		of:   "Many/peer=" + us,
		text: "TransitionMany is at 0.75× of 64 raw writers or more, in processor time",
		judge: func(r *results) (string, verdict) {
			part := r.get("Many/peer=raw", processor).Center / r.get("Many/peer="+us, processor).Center
			return digits(part) + "×", atMost(0.75, part)
		},
		reason: "TransitionMany is at less than 0.75× of 64 raw writers: a regression without a known reason.",
	},
	{
		of:   neighbour("List", "writers"),
		text: "A list of a hundred of a million takes a millisecond at most beside 64 writers, in the median",
		judge: func(r *results) (string, verdict) {
			took := r.get(neighbour("List", "writers"), "p50-ms").Center / 1e3
			return duration(took), atMost(took, 1e-3)
		},
		reason: "A list beside 64 writers takes more than a millisecond. It shares two processors with the writers and their server.",
	},
	{
		of:   neighbour("Transition", "scan"),
		text: "The slowest hundredth of transitions beside a list that decodes a million entities takes at most 2× of its own time",
		judge: func(r *results) (string, verdict) {
			part := r.get(neighbour("Transition", "scan"), "p99-ms").Center / r.get(neighbour("Transition", "none"), "p99-ms").Center
			return digits(part) + "×", atMost(part, 2)
		},
		reason: "A list that decodes everything holds no lock and yields to others after 128 entities, but it takes one of two processors, and the writer and the server have the other.",
	},
}
