package main

import "fmt"

const (
	// workflowBench stands for the writes of durable workflows, listBench for
	// their lists at full size, which take minutes to fill.
	workflowBench = "Workflow/op=Transition/sync=interval/writers=1/peer=" + us
	listBench     = "List/entities=1000000/by=phase/peer=" + us
)

var (
	workflowPeers = []string{"raw", us, "semstreams"}
	writers       = []string{"1", "16", "64"}
	listings      = []string{"all", "phase", "indexed", "active"}
)

func writing(op, sync, writers, peer string) string {
	return fmt.Sprintf("Workflow/op=%s/sync=%s/writers=%s/peer=%s", op, sync, writers, peer)
}

func listing(entities, by string) string {
	return fmt.Sprintf("List/entities=%s/by=%s/peer=%s", entities, by, us)
}

// nearRaw compares a transition with the raw update of the same record, for the worst
// number of writers.
func nearRaw(r *results, sync, unit string) (measured string, v verdict) {
	v = holds
	for i, n := range writers {
		part := r.get(writing("Transition", sync, n, "raw"), unit).Center / r.get(writing("Transition", sync, n, us), unit).Center
		if part < 0.9 {
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
	p("\n| | writers | raw | lifecycle-go | semstreams |\n| --- | --- | --- | --- | --- |")
	for _, op := range []string{"Create", "Get", "Transition"} {
		for _, n := range writers {
			row := fmt.Sprintf("| %s | %s |", op, n)
			for _, peer := range workflowPeers {
				row += " " + cell(r, writing(op, "interval", n, peer), writing(op, "interval", n, "raw")) + " |"
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
	id := listing("1000000", "phase")
	p("\nWith a million entities the view takes %s B of memory for each, with its record, and is ready after %s.", digits(r.get(id, "B/entity").Center), duration(r.get(id, "start-ms").Center/1e3))
}
