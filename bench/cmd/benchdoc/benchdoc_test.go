package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const committed = "../../../docs/reference/benchmarks"

// The tables of the page show its measurements.
func TestThePageIsNotStale(t *testing.T) {
	want, err := render(committed+".txt", committed+".md")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(committed + ".md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error(`docs/reference/benchmarks.md is not what docs/reference/benchmarks.txt gives: run "cd bench && go run ./cmd/benchdoc"`)
	}
}

// measured are two peers and a rate, six passes each. Ours is at 100 ns ± 10 % and at 8000
// messages a second.
func measured(t *testing.T) *results {
	t.Helper()
	var text strings.Builder
	text.WriteString("cores: 2\nkernel: Linux 6\ntoolchain: go1.26\npeers: suture v4\npkg: bench/workers\ncpu: fast\n")
	for _, ns := range []string{"90", "110", "100", "100", "95", "105"} {
		text.WriteString("BenchmarkRestart/peer=lifecycle-go-2 10 " + ns + " cpu-ns/op 3 allocs/op 1 lost\n" +
			"BenchmarkRestart/peer=suture-2 10 80 cpu-ns/op 4 allocs/op 0 lost\n" +
			"BenchmarkRestart/peer=slow-2 10 400 cpu-ns/op 4 allocs/op 0 lost\n" +
			"BenchmarkNoop/peer=go-2 10 1 ns/op 8000 msgs/s\nBenchmarkNoop/peer=raw-2 10 1 ns/op 10000 msgs/s\n")
	}
	text.WriteString("pkg: bench/rest\ncpu:\nBenchmarkRest/peer=lifecycle-go-2 1 2500000 rss-B\nBenchmarkRest/peer=net-http-2 1 1000000 rss-B\n")
	r, err := read(strings.NewReader(text.String()), "test")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestParts(t *testing.T) {
	r := measured(t)
	for what, want := range map[string]string{
		"table: {corner: a, rows: [suture, lifecycle-go as this, none], columns: [{head: time, id: Restart/peer=*, show: [cpu-sec/op ±, cpu-sec/op ×, allocs/op]}]}": `
| a | time |
| --- | --- |
| suture | 80 ns ± 0 %, 1×, 4 allocs |
| this | 100 ns ± 10 %, 1.25×, 3 allocs |`,
		"table: {rows: [lifecycle-go], show: [cpu-sec/op -], columns: [{head: more, id: Restart/peer=*, base: Restart/peer=suture}, {head: lost, id: Restart/peer=*, show: [lost sum]}, {head: none, id: X}]}": `
| | more | lost | none |
| --- | --- | --- | --- |
| lifecycle-go | 20 ns | 6 | – |`,
		"table: {rows: [none], columns: [{head: time, id: Restart/peer=*, show: [cpu-sec/op]}]}": "Not measured yet.",
		"machines: true": `
| packages of bench/ | processor | cores | kernel | Go |
| --- | --- | --- | --- | --- |
| rest | not recorded | 2 | Linux 6 | go1.26 |
| workers | fast | 2 | Linux 6 | go1.26 |

Peers: suture v4.`,
	} {
		got, err := r.part(what, ".")
		if err != nil || strings.TrimSpace(got) != strings.TrimSpace(want) {
			t.Errorf("%s: %v\n%s\nwant\n%s", what, err, got, want)
		}
	}
	for what, want := range map[string]string{
		"rows: [a]":           "field rows not found",
		"machines: false":     "it needs table, targets, machines or file",
		"file: there-is-none": "there-is-none",
	} {
		if _, err := r.part(what, "."); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", what, err, want)
		}
	}
}

// A target compares the value itself, the ratio to the best peer, or the difference to it.
func TestTargets(t *testing.T) {
	r := measured(t)
	for what, want := range map[string]string{
		"ids: [Restart/peer=*], units: [cpu-sec/op], most: 1.3, peers: [slow, suture]":              "1.25× of suture | holds, within the noise",
		"ids: [Restart/peer=*], units: [cpu-sec/op], most: 1.2, peers: [suture]":                    "1.25× | **missed**, within the noise",
		"ids: [Restart/peer=*], units: [cpu-sec/op], most: 1, peers: [suture]":                      "1.25× | **missed**",
		"ids: [Restart/peer=*], units: [cpu-sec/op], most: 1, peers: [slow]":                        "0.25× | holds",
		"ids: [Restart/peer=*], units: [cpu-sec/op], least: 0.75, peers: [suture]":                  "0.8× | holds, within the noise",
		"ids: [Restart/peer=*], units: [allocs/op, cpu-sec/op], most: 3":                            "3 allocs, 100 ns | holds",
		"ids: [\"Restart/peer={lifecycle-go,suture}\"], units: [allocs/op], most: 3":                "3 allocs, 4 allocs | **missed**",
		"ids: [Restart/peer=*], units: [lost sum], most: 0":                                         "6 | **missed**",
		"ids: [Restart/peer=*], units: [allocs/op], most: 0, of: none":                              "not measured | –",
		"ids: [Restart/peer=*], units: [allocs/op], most: 0, peers: [none]":                         "not measured | –",
		"ids: [Noop/peer=*], units: [msgs/s], least: 0.8, of: go, peers: [raw]":                     "0.8× | holds",
		"ids: [Noop/peer=*], units: [msgs/s], least: 0.81, of: go, peers: [raw]":                    "0.8× | **missed**",
		"ids: [Rest/peer=*], units: [rss-B], most: 1.5e6, more: true, peers: [net-http]":            "1.5 MB | holds, within the noise",
		"ids: [Rest/peer=*], units: [rss-B], most: 1e6, more: true, peers: [net-http]":              "1.5 MB | **missed**, within the noise",
		"ids: [\"Restart/peer={suture,suture}\"], units: [allocs/op], least: 4, of: suture":         "4 allocs | holds",
		"ids: [Restart/peer=*, Noop/peer=go], units: [msgs/s], least: 0.8, of: go, peers: [suture]": "not measured | –",
	} {
		got, err := r.part("targets: [{target: it, why: because, "+what+"}]", ".")
		if err != nil || !strings.Contains(got, "| it | "+want+" |\n") {
			t.Errorf("%s: %v\n%s\nwant %s", what, err, got, want)
		}
		if strings.Contains(got, "- it: because\n") != strings.Contains(want, "missed") {
			t.Errorf("%s: the reason of a target that is missed, and of no other\n%s", what, got)
		}
	}
}

// The results of a run replace those of the same benchmarks, and keep their machine.
func TestMergeReplacesTheSameBenchmarks(t *testing.T) {
	docs := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(docs, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	write("benchmarks.txt", "kernel: old\npkg: bench/a\nBenchmarkA/x=1-2 1 10 ns/op\nBenchmarkA/x=2-2 1 20 ns/op\n")
	write("benchmarks.md", "<!-- bench:\nmachines: true\n-->\n<!-- end of bench -->\n<!-- bench:\n"+
		"table: {rows: [1, 2, 3], columns: [{head: A, id: A/x=*, show: [sec/op]}]}\n-->\n<!-- end of bench -->\n")
	if err := run([]string{"-docs", docs, "-merge", write("new.txt", "kernel: new\npkg: bench/a\nBenchmarkA/x=2-4 1 30 ns/op\nBenchmarkA/x=3-4 1 40 ns/op\n")}); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(docs, "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| 1 | 10 ns |\n| 2 | 30 ns |\n| 3 | 40 ns |\n", "| a | not recorded | not recorded | new |", "| a | not recorded | not recorded | old |"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if err := run([]string{"-docs", docs, "-merge", write("bad.txt", "BenchmarkX 1 nonsense ns/op\n")}); err == nil {
		t.Error("a line that is none is merged")
	}
}

func TestWhatCannotBeReadIsRefused(t *testing.T) {
	if _, err := read(strings.NewReader("ok pkg 1s\n"), "empty"); err == nil {
		t.Error("no error for no benchmarks")
	}
	if _, err := read(strings.NewReader("BenchmarkX 1 nonsense ns/op\n"), "broken"); err == nil {
		t.Error("no error for a line that is none")
	}
	if err := run([]string{"-docs", t.TempDir()}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the error is %v for no file", err)
	}
	if err := run([]string{"surplus"}); err == nil {
		t.Error("no error for an argument too many")
	}
}

func TestQuantitiesForPeople(t *testing.T) {
	for want, got := range map[string]string{
		"0 ns": quantity(0, "sec/op"), "3.36 ns": quantity(3.36e-9, "sec/op"), "633 ns": quantity(633e-9, "cpu-sec/op"),
		"1.4 µs": quantity(1.4e-6, "sec/op"), "250 ms": quantity(250, "p99-ms"), "25 s": quantity(25, "ready-sec"), "2 s": quantity(2, "takeover-s"),
		"-1 µs": quantity(-1004e-9, "cpu-sec/op"), "2534 B": quantity(2534, "B/worker"), "-213 kB": quantity(-213e3, "grown-B"), "7.66 MB": quantity(7.66e6, "rss-B"),
		"1926": quantity(1926, "msgs/s"), "12.7 %": quantity(12.7, "landed-%"), "29 allocs": quantity(29, "allocs/op"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
