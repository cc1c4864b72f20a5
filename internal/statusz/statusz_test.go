package statusz

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/worker"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hostile = `<script>alert("1")</script>&'`

// The page escapes every text of a View.
func TestPageEscapesEveryText(t *testing.T) {
	now := time.Now()
	v := View{
		At: now, Name: hostile, Phase: hostile, Reason: hostile, Waiting: hostile, Window: hostile, Error: hostile,
		SuspendedBecause: hostile, SuspendedSince: now, CutRequests: 1,
		Abandoned: []string{hostile}, Refused: []string{hostile},
		Phases: []Phase{{Name: hostile, Entered: now}},
		Units: []worker.State{{Name: hostile, Kind: hostile, Status: hostile, Health: hostile, Reason: hostile, Error: hostile,
			Children: []worker.State{{Name: hostile}, {Exit: &worker.Exit{Error: hostile}}}}},
		Servers:  []Server{{Name: hostile, Addr: hostile}},
		Probes:   []health.Status{{Plane: hostile, Name: hostile, State: hostile, Error: hostile}},
		Drainers: []Outcome{{Name: hostile, Result: hostile, Error: hostile}},
		Hooks:    []Outcome{{Name: hostile}},
		Reloads:  []Outcome{{Name: hostile}}, ReloadsEnded: 2,
	}
	page := string(v.HTML())
	if strings.Contains(page, "<script") || strings.Contains(page, hostile) {
		t.Errorf("the page has markup that is not its own:\n%s", page)
	}
	for _, title := range []string{"Phases", "Units", "Probes", "Servers", "Drainers", "Shutdown hooks", "Reloads, the last 1 of 2"} {
		if !strings.Contains(page, "<h2>"+title+"</h2>") {
			t.Errorf("the page has no %s", title)
		}
	}
	if empty := string(View{}.HTML()); strings.Contains(empty, "<h2>") {
		t.Errorf("a View of nothing has tables:\n%s", empty)
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
		page := string(View{At: time.Now(), Units: []worker.State{state}}.HTML())
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
	if page := string(View{At: time.Now(), Units: []worker.State{unit}}.HTML()); !strings.Contains(page, want) {
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
	if got := workerClass(worker.State{Status: worker.StatusRunning, Health: worker.HealthUnhealthy}); got != "bad" {
		t.Errorf("a worker that runs and is unhealthy is %s, want bad", got)
	}
}

// A client can tell from the answer whether the operation was done.
func TestAdminEndpoints(t *testing.T) {
	var done []string
	tokenErr, preStopErr := error(nil), error(nil)
	h := Admin{
		Log:     slog.New(slog.DiscardHandler),
		Token:   func() (string, error) { return "0123456789abcdef", tokenErr },
		PreStop: func(context.Context) error { done = append(done, "prestop"); return preStopErr },
		Suspend: func(reason string) { done = append(done, "suspend "+reason) },
		Resume:  func() { done = append(done, "resume") },
	}.Handlers()
	ask := func(method, target, token string) (int, string) {
		t.Helper()
		done = nil
		w := httptest.NewRecorder()
		req := httptest.NewRequest(method, target, http.NoBody)
		req.Header.Set("Authorization", "Bearer "+token)
		h[req.URL.Path].ServeHTTP(w, req)
		return w.Code, w.Body.String()
	}
	for _, c := range []struct {
		method, target string
		code           int
		does           string
	}{
		{"GET", "/admin/prestop", 200, "prestop"}, {"POST", "/admin/prestop", 200, "prestop"}, {"PUT", "/admin/prestop", 405, ""},
		{"POST", "/admin/suspend?reason=a%0Ab%FF", 200, "suspend a b\uFFFD"}, {"POST", "/admin/suspend", 200, "suspend by an operator"},
		{"POST", "/admin/suspend?reason=" + strings.Repeat("x", 5000), 400, ""}, {"GET", "/admin/suspend", 405, ""},
		{"POST", "/admin/resume", 200, "resume"}, {"GET", "/admin/resume", 405, ""},
	} {
		if code, body := ask(c.method, c.target, "0123456789abcdef"); code != c.code || strings.Join(done, ", ") != c.does {
			t.Errorf("%s %.40s is %d %q and does %q, want %d and %q", c.method, c.target, code, body, done, c.code, c.does)
		}
		if code, _ := ask(c.method, c.target, "0123456789abcdeg"); code != http.StatusUnauthorized || done != nil {
			t.Errorf("%s %.40s with a wrong token is %d and does %q", c.method, c.target, code, done)
		}
	}
	preStopErr = context.Canceled
	if _, body := ask("GET", "/admin/prestop", "0123456789abcdef"); body != "" {
		t.Errorf("a caller that has disconnected gets %q", body)
	}
	tokenErr = errors.New("no file")
	if code, body := ask("POST", "/admin/resume", "0123456789abcdef"); code != http.StatusServiceUnavailable || done != nil || strings.Contains(body, "no file") {
		t.Errorf("without a token to compare with: %d %q, did %q", code, body, done)
	}
}
