package clients

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	resultsFlag  = flag.String("results", "", "measure, and write this file; with -only its other results stay")
	longFlag     = flag.Bool("long", false, "measure more lags")
	onlyFlag     = flag.String("only", "", "measure the cells that this regular expression matches, CLIENT/SCENARIO/SERVER")
	atOnceFlag   = flag.Int("at-once", 2, "pairs of cells at once: ours and its peer always run at the same time")
	pauseFlag    = flag.Duration("pause", defaultLoad.Pause, "longest pause of a worker between two requests")
	workersFlag  = flag.Int("workers", defaultLoad.Workers, "workers of a client")
	lengthFlag   = flag.Duration("length", defaultLoad.Length, "length of a cell")
	serverFlag   = flag.String("server", "", "a program of folder server that was built elsewhere")
	outputFlag   = flag.String("output", "", "folder for what servers and proxies write; without it nothing is kept")
	chosenRegexp = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(*onlyFlag) })
)

// TestMatrix measures every cell: "make clients". It is skipped without -results and -only.
func TestMatrix(t *testing.T) {
	if *resultsFlag == "" && *onlyFlag == "" {
		t.Skip("make clients: it measures for half an hour")
	}
	var all Results
	if *onlyFlag != "" && *resultsFlag != "" {
		var err error
		if all, err = ReadResults(*resultsFlag); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	b := newBench(t)
	var mu sync.Mutex // guards all
	put := func(res Result) {
		mu.Lock()
		defer mu.Unlock()
		all.Put(res)
		if *resultsFlag == "" {
			return
		}
		if err := all.Write(*resultsFlag); err != nil {
			t.Error(err)
		}
	}
	pairs := chosen(b)
	for _, pair := range pairs { // in this order, also when a later pair ends first
		for _, c := range pair {
			put(c.result())
		}
	}
	began := time.Now()
	var wg sync.WaitGroup
	slots := make(chan struct{}, *atOnceFlag)
	for _, pair := range pairs {
		slots <- struct{}{}
		wg.Go(func() {
			var both sync.WaitGroup
			for _, c := range pair {
				both.Go(func() {
					if c.missing != "" {
						t.Logf("%-45s not measured: %s", c.Name(), c.missing)
						return
					}
					res, err := c.Run(t.Context(), b)
					if err != nil {
						t.Errorf("%s: %v", c.Name(), err)
						res.Missing = "its measurement failed"
					}
					put(res)
					t.Log(describe(res))
				})
			}
			both.Wait()
			<-slots
		})
	}
	wg.Wait()
	t.Logf("%d pairs in %v", len(pairs), time.Since(began).Round(time.Second))
}

// chosen returns the cells to measure, each with the same cell of the peer.
func chosen(b *bench) (pairs [][]Cell) {
	for _, cell := range Cells(*longFlag) {
		cell.Load = Load{Workers: *workersFlag, Length: *lengthFlag, Pause: *pauseFlag}
		cell.missing = cell.whyMissing(b)
		var pair []Cell
		for _, kind := range []string{Ours, Sleep} {
			cell.Server = kind
			if chosenRegexp().MatchString(cell.Name()) {
				pair = append(pair, cell)
			}
		}
		if len(pair) > 0 {
			pairs = append(pairs, pair)
		}
	}
	return pairs
}

func describe(res Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-45s lost %5d of %5d, refused %5d, late %4d, took %.1f s, %s",
		res.Name(), res.Lost, res.Sent, res.Refused, res.Late, res.Took, res.Note)
	for _, text := range slices.Sorted(maps.Keys(res.Errors)) {
		fmt.Fprintf(&b, "\n    %5d: %s", res.Errors[text], text)
	}
	for _, text := range slices.Sorted(maps.Keys(res.ProxyErrors)) {
		fmt.Fprintf(&b, "\n    %5d in the proxy's log: %s", res.ProxyErrors[text], text)
	}
	return b.String()
}

// A stop costs a client at most what one GOAWAY can cost it: the requests that it has in
// flight, one for each worker. That bound holds at any speed of the machine. A
// server that says goodbye to one connection after the other costs Node's clients ten times as
// much, and one that closes HTTP/1.1 connections without "Connection: close" costs
// the others some.
func TestClientsLoseNoMore(t *testing.T) {
	if testing.Short() {
		t.Skip("it stops servers for a minute")
	}
	const workers = 5
	names := []string{"Go h1", "Go h2", "Node 20 fetch", "undici 7 request", "node:http2 20", "aiohttp", "curl h1", "Ruby net/http", "gRPC Go"}
	scenarios := []string{"alone", "lag 2s"}
	b := newBench(t)
	type run struct {
		cell Cell
		why  string // it is missing
		res  Result
		err  error
	}
	var runs []*run
	var wg sync.WaitGroup
	slots := make(chan struct{}, 9) // t.Parallel would run as many as there are cores, and all of them wait most of the time
	for _, c := range Cells(false) {
		if !slices.Contains(names, c.Client.Name) || !slices.Contains(scenarios, c.Scenario.Name) {
			continue
		}
		c.Server, c.Load = Ours, Load{Workers: workers, Length: 10 * time.Second, Pause: 100 * time.Millisecond}
		r := &run{cell: c, why: c.whyMissing(b)}
		runs = append(runs, r)
		if r.why != "" {
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			r.res, r.err = r.cell.Run(t.Context(), b)
		})
	}
	wg.Wait()
	for _, r := range runs {
		t.Run(r.cell.Client.Name+"/"+r.cell.Scenario.Name, func(t *testing.T) {
			if r.why != "" {
				t.Skip(r.why)
			}
			if r.err != nil {
				t.Fatal(r.err)
			}
			t.Log(describe(r.res))
			if r.res.Sent == 0 {
				t.Error("the client sent nothing")
			}
			if r.res.Lost > workers {
				t.Errorf("%d of %d requests were lost, more than %d", r.res.Lost, r.res.Sent, workers)
			}
		})
	}
}
