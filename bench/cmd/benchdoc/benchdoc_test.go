package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/perf/benchmath"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const committed = "../../../docs/benchmarks"

// The page matches its measurements.
func TestThePageIsNotStale(t *testing.T) {
	want, err := render(committed + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(committed + ".md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("docs/benchmarks.md is not what docs/benchmarks.txt gives: run \"cd bench && go run ./cmd/benchdoc\"")
	}
}

func TestMeasurementsThatAreMissingAreNamed(t *testing.T) {
	all, err := os.ReadFile(committed + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(string(all)) {
		if !strings.HasPrefix(line, "BenchmarkStop/peer=fx") {
			kept = append(kept, line)
		}
	}
	name := filepath.Join(t.TempDir(), "results.txt")
	if err := os.WriteFile(name, []byte(strings.Join(kept, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := render(name); err == nil || !strings.Contains(err.Error(), "Stop/peer=fx") {
		t.Errorf("the error is %v, and should name Stop/peer=fx", err)
	}
}

// The page has a section with the output of the long proof once the file of it exists.
func TestTheLongProofIsASection(t *testing.T) {
	all, err := os.ReadFile(committed + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "results.txt")
	if err := os.WriteFile(name, all, 0o600); err != nil {
		t.Fatal(err)
	}
	const title, table = "## Pods replaced under load", "| clients | requests | lost |\n"
	if page, err := render(name); err != nil || bytes.Contains(page, []byte(title)) {
		t.Errorf("without the file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(name), "long-proof.txt"), []byte(table), 0o600); err != nil {
		t.Fatal(err)
	}
	page, err := render(name)
	if err != nil || !bytes.Contains(page, []byte(title)) || !bytes.HasSuffix(page, []byte(table)) {
		t.Errorf("with the file: %v, and the page ends with %q", err, page[max(0, len(page)-100):])
	}
}

// Targets that were added since are judged once they were measured.
func TestHostedWorkersAreJudgedOnceMeasured(t *testing.T) {
	all, err := os.ReadFile(committed + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	var old strings.Builder
	for line := range strings.Lines(string(all)) {
		if !strings.HasPrefix(line, "BenchmarkNoop/") && !strings.HasPrefix(line, "BenchmarkGroup/") && !strings.HasPrefix(line, "BenchmarkRecovery/") && !strings.HasPrefix(line, "BenchmarkState/") {
			old.WriteString(line)
		}
	}
	page := func(more string) string {
		t.Helper()
		name := filepath.Join(t.TempDir(), "results.txt")
		if err := os.WriteFile(name, []byte(old.String()+more), 0o600); err != nil {
			t.Fatal(err)
		}
		page, err := render(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(page)
	}
	const text = "A hosted no-op handler in Go"
	if strings.Contains(page(""), text) {
		t.Error("a target is judged that was not measured")
	}
	for rate, want := range map[string]string{"8000": "| 0.8× | holds |", "7900": "| 0.79× | does not hold |"} {
		got := page(strings.Repeat(`
BenchmarkNoop/peer=raw-2 10000 100000 ns/op 10000 msgs/s
BenchmarkNoop/peer=go-2 10000 120000 ns/op `+rate+` msgs/s
BenchmarkGroup/peer=raw-2 10000 200000 ns/op 5000 msgs/s
BenchmarkGroup/peer=host-2 10000 210000 ns/op 4800 msgs/s
BenchmarkGroup/peer=kv-lock-2 10000 900000 ns/op 1100 msgs/s
BenchmarkRecovery/workers=1000-2 1 1500000000 ns/op
BenchmarkHostedIdle/workers=500-2 1 1500000000 ns/op 22000 B/worker 3.02 goroutines/worker
BenchmarkState/sync=interval/peer=host-none-2 10000 100000 ns/op 10000 msgs/s
BenchmarkState/sync=interval/peer=host-count-2 10000 200000 ns/op 5000 msgs/s
BenchmarkState/sync=interval/peer=host-counts-2 10000 250000 ns/op 4000 msgs/s
BenchmarkState/sync=interval/peer=host-echo-2 10000 200000 ns/op 5000 msgs/s
BenchmarkState/sync=interval/peer=raw-publish-2 10000 200000 ns/op 5000 msgs/s
`, 6))
		for _, line := range []string{text + " handles 0.8× or more of what a raw consume-and-ack does " + want, "## Hosted workers", "| host | 4800 ± 0 % | 0.96× |", "| 4.36× | holds |", "after 1.50 s",
			"one of a thousand keys handles 0.3× or more of one that does nothing | 0.4× | holds |", "| gets and puts one of a thousand keys | 4000 ± 0 % | 0.40× | 250 µs |", "costs its host 3.0 goroutines and 22000 bytes"} {
			if !strings.Contains(got, line) {
				t.Errorf("at %s messages a second there is no %q in the page:\n%s", rate, line, got[strings.Index(got, "## Targets"):])
			}
		}
	}
}

func TestLinesWithoutAMeasurementAreRefused(t *testing.T) {
	if _, err := read(strings.NewReader("ok pkg 1s\n"), "empty"); err == nil {
		t.Error("no error for no benchmarks")
	}
	if _, err := read(strings.NewReader("BenchmarkX 1 nonsense ns/op\n"), "broken"); err == nil {
		t.Error("no error for a line that is none")
	}
	if _, err := render("nowhere.txt"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the error is %v for no file", err)
	}
	if err := run([]string{"surplus"}); err == nil {
		t.Error("no error for an argument too many")
	}
}

func TestMediansAndIntervals(t *testing.T) {
	var text strings.Builder
	text.WriteString("cores: 2\n")
	for _, ns := range []string{"90", "110", "100", "100", "95", "105"} {
		text.WriteString("BenchmarkX/peer=us-2 10 " + ns + " ns/op 3 allocs/op\n")
	}
	r, err := read(strings.NewReader(text.String()), "x")
	if err != nil {
		t.Fatal(err)
	}
	s := r.get("X/peer=us", "sec/op")
	if got := duration(s.Center) + " ± " + spread(s); got != "100 ns ± 10 %" {
		t.Errorf("got %s", got)
	}
	if r.passes != 6 || r.config["cores"] != "2" || r.total("X/peer=us", allocs) != 18 {
		t.Errorf("got %d passes, config %v, %v allocations", r.passes, r.config, r.total("X/peer=us", allocs))
	}
}

// Fewer than six measurements have no interval, and the page says how many there are.
func TestFewMeasurements(t *testing.T) {
	text := "BenchmarkX/peer=us-2 10 90 ns/op\n" + strings.Repeat("BenchmarkX/peer=them-2 10 100 ns/op\n", 6)
	r, err := read(strings.NewReader(text), "x")
	if err != nil {
		t.Fatal(err)
	}
	if got := spread(r.get("X/peer=us", "sec/op")); got != "?" {
		t.Errorf("got %s", got)
	}
	if got := r.times(); got != "6 times, or where the interval is ± ? at least 1" {
		t.Errorf("got %q", got)
	}
}

// A verdict needs intervals that do not overlap.
func TestVerdicts(t *testing.T) {
	near := benchmath.Summary{Center: 10, Lo: 9, Hi: 11}
	far := benchmath.Summary{Center: 20, Lo: 18, Hi: 22}
	wide := benchmath.Summary{Center: 15, Lo: 10, Hi: 20}
	for _, c := range []struct {
		ours, theirs benchmath.Summary
		want         verdict
	}{{near, far, holds}, {far, near, fails}, {near, wide, level}, {wide, far, level}} {
		if got := ahead(c.ours, c.theirs); got != c.want {
			t.Errorf("%v beside %v: %q, want %q", c.ours, c.theirs, got, c.want)
		}
	}
	if worse(holds, level) != level || worse(fails, level) != fails || worse(holds, holds) != holds {
		t.Error("the worse of two verdicts is not the worse")
	}
}

func TestNumbersForPeople(t *testing.T) {
	for seconds, want := range map[float64]string{
		0: "0 ns", 3.36e-9: "3.36 ns", 78.4e-9: "78.4 ns", 633e-9: "633 ns", 1.4e-6: "1.40 µs", 0.25: "250 ms", 25: "25.0 s", 1: "1 s",
	} {
		if got := duration(seconds); got != want {
			t.Errorf("%v is %q, want %q", seconds, got, want)
		}
	}
}

// Results of workflows make rows and tables. Without results, from a machine that is
// too slow, there are none.
func TestWorkflowsAreJudged(t *testing.T) {
	all, err := os.ReadFile(committed + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	text := new(bytes.Buffer)
	for line := range bytes.Lines(all) { // the committed results may have them, with other times
		if !bytes.HasPrefix(line, []byte("BenchmarkWorkflow/")) && !bytes.HasPrefix(line, []byte("BenchmarkHotKey/")) && !bytes.HasPrefix(line, []byte("BenchmarkList/")) && !bytes.HasPrefix(line, []byte("BenchmarkMany/")) && !bytes.HasPrefix(line, []byte("BenchmarkStart/")) && !bytes.HasPrefix(line, []byte("BenchmarkBeside/")) && !bytes.HasPrefix(line, []byte("BenchmarkTable/")) {
			text.Write(line)
		}
	}
	for _, sync := range []string{"interval", "always"} {
		for _, op := range []string{"Create", "Get", "Transition"} {
			for _, n := range writers {
				for i, peer := range append(workflowPeers, blind) {
					for range 6 {
						fmt.Fprintf(text, "Benchmark%s-2 100 %d ns/op %d cpu-ns/op 7 allocs/op\n", writing(op, sync, n, peer), 1000+i, 1000+500*i)
					}
				}
			}
		}
	}
	for range 6 {
		for _, n := range []string{"1", "4"} {
			for _, peer := range []string{us, "semstreams"} {
				fmt.Fprintf(text, "Benchmark%s-2 100 1000 ns/op 1000 cpu-ns/op 100 landed-%% 3 p99-ms\n", hotKey(n, peer))
			}
		}
		for i, peer := range []string{"raw", "raw-async", us, blind} {
			fmt.Fprintf(text, "BenchmarkMany/peer=%s-2 100 1000 ns/op %d cpu-ns/op 9 allocs/op\n", peer, 1000+100*i)
		}
		for _, n := range writers {
			fmt.Fprintf(text, "BenchmarkTable/op=Transition/sync=always/writers=%s/peer=sqlite-2 100 5000 ns/op\n", n)
		}
		for i, size := range []string{"10000", "100000", "1000000"} {
			for _, from := range []string{"bucket", "file"} {
				fmt.Fprintf(text, "BenchmarkStart/entities=%s/from=%s-2 1 1000 ns/op %d start-ms\n", size, from, 100*(i+1))
			}
		}
		for _, id := range []string{neighbour("List", "none"), neighbour("List", "writers"), neighbour("Transition", "none"), neighbour("Transition", "scan")} {
			fmt.Fprintf(text, "Benchmark%s-2 100 1000 ns/op 0.5 p50-ms 2 p99-ms\n", id)
		}
		for _, size := range []string{"10000", "100000", "1000000"} {
			for _, by := range listings {
				fmt.Fprintf(text, "Benchmark%s-2 100 2000000 ns/op 2000000 cpu-ns/op 700 B/entity 9000 start-ms\n", listing(size, by))
			}
		}
	}
	name := filepath.Join(t.TempDir(), "results.txt")
	if err := os.WriteFile(name, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	page, err := render(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"where each write is synced, on the clock | 1× (writers=1), 1× (writers=16), 1× (writers=64) | " + string(holds),
		"with a view is at 0.75× of a raw update or more, where writes are left to the operating system, in processor time | 0.67× (writers=1), 0.67× (writers=16), 0.67× (writers=64) | " + string(fails),
		"in processor time | 0.40× (writers=1), 0.40× (writers=16), 0.40× (writers=64) | " + string(fails),
		"Get costs 1.2× of a raw get or less, in processor time | 0.67× (writers=1)",
		"64 raw writers or more, in processor time | 0.83× | " + string(holds),
		"beside 64 writers, in the median | 500 µs | " + string(holds),
		"2× of its own time | 1× | " + string(holds),
		"| each write is synced | 16 | 1 µs | 5 µs | – |", "| 100000 entities | 200 ms | 200 ms |", "landed 100 %, p99 3 ms",
		"semstreams | 0.75× of its time (writers=1)",
		"every update lands | all | " + string(holds),
		"a millisecond at most | 2 ms at most | " + string(fails),
		"## Durable workflows: writes and reads", "## Durable workflows: lists", "700 B of memory",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if t.Failed() {
		for line := range strings.Lines(string(page)) {
			if strings.Contains(line, "writers=") || strings.Contains(line, "million") || strings.Contains(line, "lands") {
				t.Log(line)
			}
		}
	}
}
