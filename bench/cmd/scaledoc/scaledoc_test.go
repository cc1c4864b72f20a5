package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/bench/rollout"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const committed = "../../../docs/reference/scale.md"

// The tables of the page are the results of the simulation. In -short the tables that take seconds
// are simulated again.
func TestThePageIsNotStale(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the tables are from amd64: other processors round logarithms differently")
	}
	var only []string
	if testing.Short() {
		only = []string{"costs", "checks"}
	}
	want, err := render(committed, only...)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(committed)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error(`docs/reference/scale.md is not what the simulation gives: run "make scale"`)
	}
	for name := range tables {
		if !strings.Contains(want, "<!-- scale: "+name+" -->") {
			t.Errorf("the page has no table %q", name)
		}
	}
}

// The simulation agrees with the measurements, except where the page explains a difference.
func TestTheSimulationAgreesWithMeasurements(t *testing.T) {
	for _, c := range checks() {
		results := c.simulate()
		for _, row := range c.rows {
			if got := row.mean(results); row.agrees(got) == row.differs {
				t.Errorf("%s, %s: measured %v, simulated %v; known to differ: %v", c.name, row.what, row.measured, got, row.differs)
			}
		}
	}
}

func TestShortestWindow(t *testing.T) {
	for _, edge := range []time.Duration{0, second, 7 * second, 29 * second, 30 * second} {
		got := shortest(30*second, everyRequest, func(window time.Duration) rollout.Tally {
			lost := 0
			if window < edge {
				lost = 5
			}
			return rollout.Tally{Requests: 1e6, Lost: rollout.Lost{Refused: lost}}
		})
		if got != edge {
			t.Errorf("the window is %v, want %v", got, edge)
		}
	}
}

func TestArgumentsAndPagesThatAreWrong(t *testing.T) {
	if err := run([]string{"more"}); err == nil || !strings.Contains(err.Error(), `unexpected argument "more"`) {
		t.Errorf("with an argument: %v", err)
	}
	page := filepath.Join(t.TempDir(), "scale.md")
	if err := os.WriteFile(page, []byte("<!-- scale: nothing -->\n<!-- end of scale -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run([]string{"-page", page}); err == nil || !strings.Contains(err.Error(), `there is no table "nothing"`) {
		t.Errorf("a table that there is not: %v", err)
	}
	if err := run([]string{"-page", page + "x"}); err == nil {
		t.Error("a page that there is not is written")
	}
}
