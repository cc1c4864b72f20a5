package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/bench/rollout"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const committed = "../../../docs/scale"

// The page matches its results.
func TestThePageIsNotStale(t *testing.T) {
	want, err := render(committed + ".json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(committed + ".md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("docs/scale.md is not what docs/scale.json gives: run \"make scale\"")
	}
}

// The results match the code: those that take no time are simulated again.
func TestTheResultsAreNotStale(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the results are from amd64: other processors round logarithms differently")
	}
	all, err := readResults(committed + ".json")
	if err != nil {
		t.Fatal(err)
	}
	names := make(map[string]bool)
	for _, c := range cells() {
		if names[c.name] {
			t.Errorf("two cells are called %q", c.name)
		}
		names[c.name] = true
		if !c.quick {
			continue
		}
		got, err := c.run()
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, all[c.name]) {
			t.Errorf("%s: the simulation gives something else now: run \"make scale\"\n%+v\n%+v", c.name, got, all[c.name])
		}
	}
	for name := range all {
		if !names[name] {
			t.Errorf("docs/scale.json has %q, which is not simulated any more: run \"make scale\"", name)
		}
	}
}

// The simulation agrees with the measurements, except where a difference is known.
func TestTheSimulationAgreesWithMeasurements(t *testing.T) {
	all, err := readResults(committed + ".json")
	if err != nil {
		t.Fatal(err)
	}
	agree := 0
	for _, c := range checks() {
		for _, row := range c.rows {
			got := row.simulated(all["check/"+c.key], float64(c.runs))
			switch {
			case row.tolerance < 0:
				if row.agrees(got) {
					t.Errorf("%s, %s: %v as measured: it is not known to differ any more", c.name, row.what, got)
				}
			case !row.agrees(got):
				t.Errorf("%s, %s: measured %v, simulated %v", c.name, row.what, row.measured, got)
			case row.measured > 0:
				agree++
			}
		}
	}
	if agree < 4 {
		t.Errorf("only %d numbers above zero agree", agree)
	}
}

// The sentences of the page that no number is put into still hold.
func TestThePageSaysWhatTheNumbersSay(t *testing.T) {
	all, err := readResults(committed + ".json")
	if err != nil {
		t.Fatal(err)
	}
	lingers := all["linger/5s"].Crowds
	for claim, holds := range map[string]bool{
		"clients that are idle for up to 9 s lose nothing":      lingers[0].Lost.All()+lingers[1].Lost.All() == 0 && idlers()[1].Gap.Max == 9*second,
		"for clients that notice a close the default is enough": lingers[3].Lost.All() == 0,
		"the P99 itself is not enough":                          all.needed("aws-5000", "hundredth") > published["aws-5000"],
		"a straggler cannot be covered by a window":             all.needed("straggler", "hundredth") > 2*minute,
		"a longer window costs a Deployment no time":            all["cost/free/window=5s"].Took == all["cost/free/window=1m0s"].Took,
		"two steps lose no stream":                              all["stop/kube-proxy/drain-two"].Crowds[3].Lost.GoAway == 0 && all["stop/kube-proxy/drain"].Crowds[3].Lost.GoAway > 0,
		"the defaults lose nothing where kube-proxy keeps up":   all["stop/kube-proxy/drain-two"].Crowds[0].Lost.All() == 0,
	} {
		if !holds {
			t.Errorf("it does not hold any more: %s", claim)
		}
	}
}

// Every needed window is the shortest one, of whole seconds.
func TestSearchFindsTheShortestWindow(t *testing.T) {
	for _, edge := range []time.Duration{0, second, 7 * second, 29 * second, 30 * second} {
		tried := map[time.Duration]rollout.Result{}
		attempt := func(w time.Duration) (rollout.Result, error) {
			lost := 0
			if w < edge {
				lost = 5
			}
			tried[w] = rollout.Result{Crowds: []rollout.Tally{{Requests: 1e6, Lost: rollout.Lost{Refused: lost}}}}
			return tried[w], nil
		}
		r, err := search(30*second, tried, 1, attempt)
		if err != nil || r.Window != edge {
			t.Errorf("the window is %v, %v, want %v", r.Window, err, edge)
		}
	}
}

func TestMissingResultsAreNamed(t *testing.T) {
	all, err := readResults(committed + ".json")
	if err != nil {
		t.Fatal(err)
	}
	delete(all, "needed/limit/each")
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "results.json")
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := render(name); err == nil || !strings.Contains(err.Error(), `"needed/limit/each" is missing`) {
		t.Errorf("the error is %v, and should name the result", err)
	}
}

func TestArguments(t *testing.T) {
	if err := run([]string{"more"}); err == nil || !strings.Contains(err.Error(), `unexpected argument "more"`) {
		t.Errorf("with an argument: %v", err)
	}
	out := filepath.Join(t.TempDir(), "scale.md")
	if err := run([]string{"-results", committed + ".json", "-out", out}); err != nil {
		t.Fatal(err)
	}
	some := filepath.Join(t.TempDir(), "scale.json")
	if text, err := os.ReadFile(committed + ".json"); err != nil || os.WriteFile(some, text, 0o600) != nil {
		t.Fatal("copy the results: ", err)
	}
	if err := run([]string{"-simulate", "-only", "check/replace/shutdown", "-results", some, "-out", out}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(out); err != nil || !strings.HasPrefix(string(text), "<!-- Written by") {
		t.Errorf("it wrote %.20q, %v", text, err)
	}
}
