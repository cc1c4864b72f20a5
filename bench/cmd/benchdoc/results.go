package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchmath"

	"github.com/pleme-io/lifecycle-go/internal/pages"
)

// results are the measurements of a file, by the benchmark's name and the unit:
// "Restart/peer=suture cpu-sec/op". Units of time are seconds, those of memory bytes.
type results struct {
	samples  map[string][]float64
	machines map[machine][]string // the packages that were measured on it
	peers    string               // their versions
}

// machine is what a package was measured on, as the lines before its results say.
type machine struct{ cpu, cores, kernel, toolchain string }

// nameOf returns the name of a benchmark without the number of processors.
func nameOf(rec *benchfmt.Result) string {
	base, parts := rec.Name.Parts()
	name := string(base)
	for _, part := range parts {
		if part[0] == '/' {
			name += string(part)
		}
	}
	return name
}

// scan calls each for every result of a file in Go's benchmark format.
func scan(in io.Reader, name string, each func(*benchfmt.Result)) error {
	reader := benchfmt.NewReader(in, name)
	for reader.Scan() {
		switch rec := reader.Result().(type) {
		case *benchfmt.SyntaxError:
			return rec
		case *benchfmt.Result:
			each(rec)
		}
	}
	return reader.Err()
}

func readResults(name string) (*results, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return read(f, name)
}

func read(in io.Reader, name string) (*results, error) {
	r := &results{samples: make(map[string][]float64), machines: make(map[machine][]string)}
	err := scan(in, name, func(rec *benchfmt.Result) {
		for _, v := range rec.Values {
			key := nameOf(rec) + " " + v.Unit
			r.samples[key] = append(r.samples[key], v.Value)
		}
		m := machine{rec.GetConfig("cpu"), rec.GetConfig("cores"), rec.GetConfig("kernel"), rec.GetConfig("toolchain")}
		if pkg := path.Base(rec.GetConfig("pkg")); !slices.Contains(r.machines[m], pkg) {
			r.machines[m] = append(r.machines[m], pkg)
		}
		r.peers = rec.GetConfig("peers")
	})
	if err == nil && len(r.samples) == 0 {
		err = errors.New("there are no benchmarks in it")
	}
	return r, err
}

// merge puts the results of another file into a file, in place of those of the same
// benchmarks.
func merge(into, from string) error {
	kept, err := os.ReadFile(into)
	if err != nil {
		return err
	}
	measured, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	replaced := map[string]bool{}
	if err := scan(bytes.NewReader(measured), from, func(rec *benchfmt.Result) { replaced[nameOf(rec)] = true }); err != nil {
		return err
	}
	var out bytes.Buffer
	writer := benchfmt.NewWriter(&out)
	write := func(rec *benchfmt.Result) { err = errors.Join(err, writer.Write(rec)) }
	err = errors.Join(
		scan(bytes.NewReader(kept), into, func(rec *benchfmt.Result) {
			if !replaced[nameOf(rec)] {
				write(rec)
			}
		}),
		scan(bytes.NewReader(measured), from, write), err)
	if err != nil {
		return err
	}
	return os.WriteFile(into, out.Bytes(), 0o644)
}

// median returns the median of a measurement, and the interval in which it lies with a
// confidence of 95 %, as benchstat does. It reports whether there is such a measurement.
func (r *results) median(id, unit string) (benchmath.Summary, bool) {
	values := r.samples[id+" "+unit]
	if len(values) == 0 {
		return benchmath.Summary{}, false
	}
	return benchmath.AssumeNothing.Summary(benchmath.NewSample(values, &benchmath.DefaultThresholds), 0.95), true
}

// total returns the sum of a measurement over all passes.
func (r *results) total(id, unit string) (sum float64, ok bool) {
	values, ok := r.samples[id+" "+unit]
	for _, v := range values {
		sum += v
	}
	return sum, ok
}

// machineTable lists what each package was measured on, and the versions of the peers.
func (r *results) machineTable() string {
	var rows [][]string
	for m, packages := range r.machines {
		slices.Sort(packages)
		rows = append(rows, []string{
			strings.Join(packages, ", "),
			cmp.Or(m.cpu, "not recorded"), cmp.Or(m.cores, "not recorded"), cmp.Or(m.kernel, "not recorded"), cmp.Or(m.toolchain, "not recorded"),
		})
	}
	slices.SortFunc(rows, slices.Compare)
	return pages.Table([]string{"packages of bench/", "processor", "cores", "kernel", "Go"}, rows) + "\nPeers: " + r.peers + "."
}

// quantity writes a median for people, by its unit.
func quantity(value float64, unit string) string {
	of, _, _ := strings.Cut(unit, "/")
	switch {
	case strings.HasSuffix(of, "sec") || strings.HasSuffix(of, "-s"):
		return duration(value)
	case strings.HasSuffix(of, "-ms"):
		return duration(value / 1e3)
	case of == "B" || strings.HasSuffix(of, "-B"):
		return size(value)
	case of == "allocs":
		return digits(value) + " allocs"
	case strings.HasSuffix(of, "%"):
		return digits(value) + " %"
	}
	return digits(value)
}

// duration writes seconds for people.
func duration(seconds float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}} {
		if math.Abs(seconds) >= unit.size {
			return digits(seconds/unit.size) + " " + unit.name
		}
	}
	return digits(seconds*1e9) + " ns"
}

// size writes bytes for people.
func size(bytes float64) string {
	switch n := math.Abs(bytes); {
	case n >= 1e6:
		return digits(bytes/1e6) + " MB"
	case n >= 1e4:
		return digits(bytes/1e3) + " kB"
	}
	return digits(bytes) + " B"
}

// digits writes a number with three significant digits, or with all before the point.
func digits(x float64) string {
	decimals := 2
	switch n := math.Abs(x); {
	case n >= 100:
		decimals = 0
	case n >= 10:
		decimals = 1
	}
	text := strconv.FormatFloat(x, 'f', decimals, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

// spread writes half of the interval, in percent of the median: "?" where there were too
// few measurements for an interval.
func spread(s benchmath.Summary) string {
	half := max(s.Hi-s.Center, s.Center-s.Lo)
	switch {
	case s.Center == 0:
		return "0 %"
	case math.IsInf(half, 0):
		return "?"
	}
	return fmt.Sprintf("%.0f %%", 100*half/s.Center)
}

// expand returns the names that a pattern with braces stands for: "a={1,2}/b" is "a=1/b"
// and "a=2/b".
func expand(pattern string) (names []string) {
	before, rest, found := strings.Cut(pattern, "{")
	choices, after, closed := strings.Cut(rest, "}")
	if !found || !closed {
		return []string{pattern}
	}
	for choice := range strings.SplitSeq(choices, ",") {
		names = append(names, expand(before+choice+after)...)
	}
	return names
}
