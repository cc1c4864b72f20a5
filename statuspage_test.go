package lifecycle

import (
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/worker"
)

const hostileText = `<script>alert("1")</script>&'`

// The page escapes every text of a Status.
func TestPageEscapesEveryText(t *testing.T) {
	now := time.Now()
	outcome := []Outcome{{Name: hostileText, Result: hostileText, Error: hostileText}}
	s := Status{
		At:        now,
		Waiting:   hostileText,
		Suspended: Suspension{Reason: hostileText, Since: now},
		Report: Report{
			Name: hostileText, Phase: hostileText, Reason: hostileText, Window: hostileText, Error: hostileText,
			CutRequests:  1,
			Left:         []string{hostileText},
			Refused:      []string{hostileText},
			Phases:       []PhaseTime{{Phase: hostileText, Entered: now}},
			Drainers:     outcome,
			Hooks:        outcome,
			Reloads:      outcome,
			ReloadCounts: map[string]map[Result]uint64{hostileText: {ResultOK: 2}},
		},
		Units: []worker.State{{
			Name: hostileText, Kind: hostileText, Status: hostileText, Health: hostileText, Reason: hostileText, Error: hostileText,
			Children: []worker.State{{Name: hostileText}, {Exit: &worker.Exit{Error: hostileText}}},
		}},
		Servers: []ServerStatus{{Name: hostileText, Addr: hostileText}},
		Probes:  []health.Status{{Plane: hostileText, Name: hostileText, State: hostileText, Error: hostileText}},
	}
	page := string(s.page())
	if strings.Contains(page, "<script") || strings.Contains(page, hostileText) {
		t.Errorf("the page has markup that is not its own:\n%s", page)
	}
	for _, title := range []string{"Phases", "Units", "Probes", "Servers", "Drainers", "Shutdown hooks", "Reloads, the last 1 of 2"} {
		if !strings.Contains(page, "<h2>"+title+"</h2>") {
			t.Errorf("the page has no %s", title)
		}
	}
	if empty := string(Status{}.page()); strings.Contains(empty, "<h2>") {
		t.Errorf("a Status of nothing has tables:\n%s", empty)
	}
}

// A worker that runs again after a failure shows that failure.
func TestPageShowsWhatAWorkerFailedWith(t *testing.T) {
	failed := &worker.Exit{Status: worker.StatusFailed, Error: "boom"}
	for want, state := range map[string]worker.State{
		"last failure: boom": {Name: "w", Status: worker.StatusRunning, Restarts: 1, Exit: failed},
		"backoff after: boom (due in": {Name: "w", Status: worker.StatusRunning, Restarts: 1, Exit: failed,
			Reason: "backoff after: boom", Due: time.Now().Add(time.Minute)},
	} {
		page := string(Status{At: time.Now(), Units: []worker.State{state}}.page())
		if !strings.Contains(page, want) || strings.Contains(page, "last failure") != strings.HasPrefix(want, "last") {
			t.Errorf("the page does not say %q alone:\n%s", want, page)
		}
	}
}

// A process that is contained shows what it uses, of how much, and what does not hold.
func TestPageShowsContainment(t *testing.T) {
	unit := worker.State{Name: "w", Status: worker.StatusRunning, Restarts: 1, Exit: &worker.Exit{Error: "boom"}, Containment: &worker.Containment{
		Limits: worker.Limits{Memory: 64 << 20, CPU: 0.5}, Missing: []string{"cpu: none of its cgroups has the controller"},
		Usage: &worker.Usage{Memory: 3 << 19, PIDs: 2, CPU: 1500 * time.Millisecond, OOMKills: 1},
	}}
	want := "last failure: boom; memory 1.5 MiB of 64.0 MiB; processes 2; processor time 1.5s; 1 killed for memory; no limit of cpu: none of its cgroups has the controller"
	if page := string(Status{At: time.Now(), Units: []worker.State{unit}}.page()); !strings.Contains(page, want) {
		t.Errorf("the page does not say %q:\n%s", want, page)
	}
}

func TestColoursOfStates(t *testing.T) {
	for state, want := range map[string]string{
		"running": "good", "up": "good", "failed": "bad", "killed": "bad", "down": "bad",
		"created": "dim", "stopped": "dim", "finished": "dim", "draining": "wait", "unknown": "wait", "pending": "wait",
	} {
		if got := class(state); got != want {
			t.Errorf("%s is %s, want %s", state, got, want)
		}
	}
	for status, want := range map[worker.Status]string{
		worker.StatusRunning: "good", worker.StatusFailed: "bad", worker.StatusKilled: "bad", worker.StatusStopped: "dim", worker.StatusStarting: "wait",
	} {
		if got := workerClass(worker.State{Status: status}); got != want {
			t.Errorf("a worker that is %s is %s, want %s", status, got, want)
		}
	}
	if got := workerClass(worker.State{Status: worker.StatusRunning, Health: worker.HealthUnhealthy}); got != "bad" {
		t.Errorf("a worker that runs and is unhealthy is %s, want bad", got)
	}
}
