package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchmath"
)

// results are the measurements of one run of "make bench".
type results struct {
	config  map[string]string // of the run: machine, versions
	samples map[string][]float64
	passes  int // how often each was measured, at least
	most    int // and at most
	missing []string
}

// read reads Go's benchmark format.
func read(in io.Reader, name string) (*results, error) {
	r := &results{config: make(map[string]string), samples: make(map[string][]float64)}
	reader := benchfmt.NewReader(in, name)
	for reader.Scan() {
		switch rec := reader.Result().(type) {
		case *benchfmt.SyntaxError:
			return nil, rec
		case *benchfmt.Result:
			for _, c := range rec.Config {
				r.config[c.Key] = string(c.Value)
			}
			base, parts := rec.Name.Parts()
			id := string(base)
			for _, p := range parts {
				if p[0] == '/' { // the rest is the number of processors
					id += string(p)
				}
			}
			for _, v := range rec.Values {
				// In seconds and bytes, for any units in the text.
				key := id + " " + v.Unit
				r.samples[key] = append(r.samples[key], v.Value)
			}
		}
	}
	if err := reader.Err(); err != nil {
		return nil, err
	}
	if len(r.samples) == 0 {
		return nil, errors.New("there are no benchmarks in it")
	}
	for _, s := range r.samples {
		r.most = max(r.most, len(s))
		if r.passes == 0 || len(s) < r.passes {
			r.passes = len(s)
		}
	}
	return r, nil
}

// get returns the median of a measurement and the interval that it lies in with
// a confidence of 95 %, as in benchstat. A missing measurement is recorded,
// and is an error of the page.
func (r *results) get(id, unit string) benchmath.Summary {
	values := r.samples[id+" "+unit]
	if len(values) == 0 {
		r.missing = append(r.missing, id+" "+unit)
		return benchmath.Summary{Center: 1, Lo: 1, Hi: 1}
	}
	return benchmath.AssumeNothing.Summary(benchmath.NewSample(values, &benchmath.DefaultThresholds), 0.95)
}

// has reports whether a benchmark was measured.
func (r *results) has(id string) bool { return len(r.samples[id+" "+wallclock]) > 0 }

// total returns the sum of a measurement over all passes.
func (r *results) total(id, unit string) float64 {
	sum := 0.0
	for _, v := range r.samples[id+" "+unit] {
		sum += v
	}
	return sum
}

// duration formats seconds for people.
func duration(seconds float64) string {
	for _, u := range []struct {
		size float64
		name string
	}{{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}} {
		if seconds >= u.size {
			return digits(seconds/u.size) + " " + u.name
		}
	}
	return digits(seconds*1e9) + " ns"
}

// digits formats a number with three significant digits.
func digits(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return strings.TrimSuffix(fmt.Sprintf("%.2f", x), ".00")
}

// times says how often the benchmarks ran.
func (r *results) times() string {
	if r.passes == r.most {
		return fmt.Sprintf("%d times", r.most)
	}
	return fmt.Sprintf("%d times, or where the interval is ± ? at least %d", r.most, r.passes)
}

// spread formats half of the interval, in percent of the median.
func spread(s benchmath.Summary) string {
	if s.Center == 0 {
		return "0 %"
	}
	if half := max(s.Hi-s.Center, s.Center-s.Lo); !math.IsInf(half, 0) {
		return fmt.Sprintf("%.0f %%", 100*half/s.Center)
	}
	return "?" // fewer than six measurements
}
