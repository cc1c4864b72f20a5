package main

import (
	"fmt"
	"time"

	"github.com/pleme-io/lifecycle-go/bench/rollout"
)

// record is the result of a cell: of one simulation, or of the last of a search.
type record struct {
	Window time.Duration
	rollout.Result
}

type results map[string]record

// cell is a number of the page, or a row.
type cell struct {
	name  string
	quick bool // a test repeats it
	run   func() (record, error)
}

// windows and lingers are the columns of two tables.
var (
	windows     = []time.Duration{5 * second, 10 * second, 30 * second, 60 * second}
	lingers     = []time.Duration{0, 2 * second, 5 * second, 10 * second, 20 * second, 55 * second}
	costWindows = []time.Duration{5 * second, 10 * second, 20 * second, 30 * second, 60 * second}
	margins     = []string{"kube-proxy", "aws-5000", "gce-5000"}
)

// The budgets of the search, in lost requests of a million new connections. Where one
// of a hundred requests opens a connection, a hundred times as many may be lost.
var budgets = []struct {
	key    string
	budget float64
}{{"each", 1}, {"hundredth", 100}}

func cells() []cell {
	var all []cell
	one := func(name string, quick bool, s rollout.Scenario) {
		all = append(all, cell{name, quick, func() (record, error) {
			r, err := rollout.Run(s)
			return record{s.Stop.Window, r}, err
		}})
	}
	for _, sp := range spreads() {
		tried := make(map[time.Duration]rollout.Result)
		quick := sp.key == "kube-proxy"
		attempt := func(w time.Duration) (rollout.Result, error) {
			if r, ok := tried[w]; ok {
				return r, nil
			}
			r, err := rollout.Run(scenario(sp.Spread, draining(w, drain().Linger), fresh(sp.fresh)))
			tried[w] = r
			return r, err
		}
		for _, w := range windows {
			all = append(all, cell{fmt.Sprintf("spread/%s/window=%v", sp.key, w), quick && w == windows[0], func() (record, error) {
				r, err := attempt(w)
				return record{w, r}, err
			}})
		}
		for _, b := range budgets {
			all = append(all, cell{"needed/" + sp.key + "/" + b.key, false, func() (record, error) {
				return search(sp.Longest(), tried, b.budget, attempt)
			}})
		}
	}
	for _, key := range margins {
		all = append(all, cell{"margin/" + key, false, func() (record, error) { return searchMargin(key) }})
	}
	for _, l := range lingers {
		one(fmt.Sprintf("linger/%v", l), l == 0, scenario(instant(), draining(drain().Window, l), idlers()...))
	}
	for _, sp := range []string{"kube-proxy", "aws-5000"} {
		for _, st := range stoppings() {
			one("stop/"+sp+"/"+st.key, false, scenario(spreadOf(sp), st.Stop, everyone()...))
		}
	}
	for _, p := range placings() {
		for _, w := range costWindows {
			s := scenario(instant(), draining(w, drain().Linger), rollout.Crowd{Name: "idle", Conns: 1, Gap: rollout.Gap{Max: 10 * minute}})
			s.Strategy, s.Pods = p.Strategy, p.pods
			one(fmt.Sprintf("cost/%s/window=%v", p.key, w), w == costWindows[0], s)
		}
	}
	for _, c := range checks() {
		all = append(all, cell{"check/" + c.key, true, func() (record, error) { return repeat(c.scenario, c.runs) }})
	}
	return all
}

func instant() rollout.Spread {
	return rollout.Spread{Slice: rollout.Always(0), Node: rollout.Always(0)}
}

// search returns the shortest window, in whole seconds, that loses less than budget of
// a million. A longer window never loses more, which a test of package rollout shows.
func search(longest time.Duration, tried map[time.Duration]rollout.Result, budget float64, attempt func(time.Duration) (rollout.Result, error)) (record, error) {
	enough := func(r rollout.Result) bool { return r.Crowds[0].PerMillion() < budget }
	low, high := -second, longest.Truncate(second)+second
	for w, r := range tried {
		if enough(r) {
			high = min(high, w)
		} else {
			low = max(low, w)
		}
	}
	for high-low > second {
		middle := (low + (high-low)/2).Truncate(second)
		r, err := attempt(middle)
		if err != nil {
			return record{}, err
		}
		if enough(r) {
			high = middle
		} else {
			low = middle
		}
	}
	r, err := attempt(high)
	return record{high, r}, err
}

// searchMargin searches the margin of a window that follows the EndpointSlices, which
// take up to 5 s to drop the pod. The record has the margin as its Window.
func searchMargin(key string) (record, error) {
	sp := spreadOf(key)
	sp.Slice = slowSlices
	attempt := func(margin time.Duration) (rollout.Result, error) {
		stop := drain()
		stop.Follow, stop.Margin, stop.Least, stop.Window = true, margin, second, 10*minute
		return rollout.Run(scenario(sp, stop, fresh(2)))
	}
	return search(sp.Longest(), nil, budgets[0].budget, attempt)
}

// slowSlices is the way from T0 to the EndpointSlice in a control plane that is behind.
var slowSlices = rollout.Through(50*ms, 5*second)

// repeat runs a small scenario with this many seeds and sums what the clients saw.
func repeat(s rollout.Scenario, runs int) (record, error) {
	sum := record{Window: s.Stop.Window}
	sum.Crowds = make([]rollout.Tally, len(s.Crowds))
	for n := range runs {
		s.Seed = seed + uint64(n)
		r, err := rollout.Run(s)
		if err != nil {
			return record{}, err
		}
		sum.Events += r.Events
		sum.Took += r.Took
		sum.Gone += r.Gone
		sum.Terminating += r.Terminating
		for i, t := range r.Crowds {
			c := &sum.Crowds[i]
			c.Sent += t.Sent
			c.Answered += t.Answered
			c.Replayed += t.Replayed
			c.Requests += t.Requests
			c.Lost.Refused += t.Lost.Refused
			c.Lost.Reset += t.Lost.Reset
			c.Lost.GoAway += t.Lost.GoAway
			c.Lost.Cut += t.Lost.Cut
		}
	}
	return sum, nil
}
