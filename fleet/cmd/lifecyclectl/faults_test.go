package main

import (
	"bytes"
	"cmp"
	"context"
	"html"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// ctl runs a command against a server.
func ctl(t *testing.T, url string, args ...string) (int, string) {
	t.Helper()
	t.Setenv("LIFECYCLECTL_SERVER", url)
	var out bytes.Buffer
	code := Run(t.Context(), args, strings.NewReader(""), &out, &out)
	return code, out.String()
}

// frontPage returns the text of the front page.
func frontPage(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/ui/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(html.UnescapeString(string(text)), "<wbr>", "")
}

// fault is a fault that a test injects into a fleet of real processes.
type fault struct {
	name   string
	about  string // the subject without its kind
	rule   string
	cause  string // a part of the cause, written down before
	inject func(t *testing.T, s *site)
	at     time.Time // when it was injected; when named begins to look, if it is not set
}

// app runs an App of the service shop.
func (s *site) app(t *testing.T, id string, cfg lifecycle.Config, add func(*lifecycle.App)) *lifecycle.App {
	t.Helper()
	return s.appOf(t, "shop", "1.2.3", id, cfg, add)
}

// appOf runs an App that announces itself, without waiting until it is ready.
func (s *site) appOf(t *testing.T, service, version, id string, cfg lifecycle.Config, add func(*lifecycle.App)) *lifecycle.App {
	t.Helper()
	cfg.Name, cfg.HealthAddr = service, lifecycle.HealthOff
	if cfg.DrainInterval == 0 {
		cfg.DrainInterval = lifecycle.Off
	}
	app, err := lifecycle.New(cfg, lifecycle.WithLogger(brokertest.Quiet()))
	if err != nil {
		t.Fatal(err)
	}
	presence.Announce(app, s.js, presence.Config{ID: id, Version: version, Logger: brokertest.Quiet()})
	add(app)
	done := make(chan struct{})
	go func() { defer close(done); _ = app.Run(context.Background()) }()
	s.mu.Lock()
	s.apps = append(s.apps, func() { app.Stop(nil); <-done })
	s.mu.Unlock()
	return app
}

// seen waits until a process is in the fleet and ready.
func (s *site) seen(t *testing.T, id string) {
	t.Helper()
	brokertest.Await(t, id, func() bool {
		p, err := s.get(id)
		return err == nil && p.Ready
	})
}

// Each fault is injected for real: into processes, some of the operating system's own, on
// a NATS of their own. Then the front page, doctor and describe name it, with the cause
// that was written down before. Before the faults nothing is wrong, also with what only
// looks like a fault. At the end NATS goes away, and comes back.
func TestFaultsAreNamed(t *testing.T) {
	if testing.Short() {
		t.Skip("TestFaults and TestLookalikes in fleet/internal/diagnosis are the short version")
	}
	server := brokertest.NewSite(t)
	b := server.Connect(t, siteBroker())
	s := newSiteOn(t, b, server.URL)
	cfg := s.config()
	cfg.StuckAfter = 3 * time.Second
	cfg.Dependencies = []operator.Dependency{{Name: "NATS", Check: b.Check}}
	url, err := s.serve(cfg)
	if err != nil {
		t.Fatal(err)
	}

	harmless := lookalikes()
	if len(harmless) < 21 {
		t.Errorf("only %d lookalikes", len(harmless))
	}
	for _, l := range harmless {
		l.make(t, s)
	}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Second) { // longer than a TTL
		if code, out := ctl(t, url, "doctor"); code != 0 || !strings.Contains(out, "nothing is wrong") {
			t.Fatalf("doctor about a fleet that is well: %d\n%s", code, out)
		}
	}
	if page := frontPage(t, url); !strings.Contains(page, "Nothing is wrong.") {
		t.Errorf("the front page of a fleet that is well:\n%s", page)
	}

	all := slices.Concat(storeFaults(), faults(), fleetFaults()) // those that take longest first
	if err := clockCanBeSet(); err == nil {
		all = append(all, clockFaults()...)
	} else {
		t.Logf("the clock of a process cannot be set here: the faults of clocks are left out: %v", err)
	}
	if os.Getenv("FAULTS_ALONE") != "" {
		all = append(all, loadFaults()...)
	} else {
		t.Log("other programs may use the processors too: the busy loop is left out (make faults has it)")
	}
	parent := cgroup(t)
	full, killed, burst := memoryFaults(parent)
	if parent == "" {
		t.Log("this machine allows no cgroup: the faults of memory are left out")
	} else {
		all = append(all, full)
	}
	if len(all) < 20 { // and NATS
		t.Errorf("only %d faults", len(all))
	}
	for i := range all {
		all[i].inject(t, s)
		all[i].at = time.Now()
	}
	s.named(t, url, all)
	if parent != "" {
		burst()
		s.named(t, url, killed)
	}

	server.Stop()
	s.named(t, url, []fault{{name: "NATS is away", about: "NATS", rule: "dependency-away", cause: "NATS does not answer"}})
	if code, out := ctl(t, url, "dead-letters", "poison"); code != cli.ExitUnreachable || !strings.Contains(out, "NATS is away since") {
		t.Errorf("a call while NATS is away: %d\n%s", code, out)
	}
	server.Start()
	brokertest.Await(t, "the end of the outage", func() bool {
		_, out := ctl(t, url, "doctor")
		return !strings.Contains(out, "dependency-away")
	})
	if _, out := ctl(t, url, "doctor"); strings.Contains(out, "store-replaced") {
		t.Errorf("NATS came back with its data:\n%s", out)
	}

	server.Stop()
	entries, err := os.ReadDir(server.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(server.Dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	server.Start()
	s.named(t, url, []fault{{name: "NATS on an empty disk", about: "NATS", rule: "store-replaced", cause: "NATS has nothing of what it had on disk"}})

	sum, of := 99*score.got/score.most, score.most/3 // as of 33 faults
	t.Logf("the sum is %d of 99: %d of %d points for %d faults", sum, score.got, score.most, of)
	if sum < 92 {
		t.Errorf("the sum is %d of 99, want 92", sum)
	}
}

// score has the points of all faults that the tests of this program have injected.
var score struct{ got, most int }

// inTime is how long a fault may take to be named and get all of its points: an operator on call
// looks for three minutes.
const inTime = 3 * time.Minute

// points judges what the front page, doctor and describe print of a fault: 3 when each names it
// with its cause in time, 2 when that takes longer, 1 when only doctor names its rule.
func points(everywhere, byDoctor bool, took time.Duration) int {
	switch {
	case everywhere && took <= inTime:
		return 3
	case everywhere:
		return 2
	case byDoctor:
		return 1
	}
	return 0
}

// named waits until the front page, doctor and describe have named each fault, and adds the points
// to the score.
func (s *site) named(t *testing.T, url string, all []fault) {
	t.Helper()
	says := func(rows []string, f fault, cause string) bool {
		return slices.ContainsFunc(rows, func(row string) bool {
			return strings.Contains(row, f.rule) && strings.Contains(row, f.about) && strings.Contains(row, cause)
		})
	}
	var out string
	begun := time.Now()
	for len(all) > 0 {
		var code int
		code, out = ctl(t, url, "doctor")
		rows := strings.Split(out, "\n")
		page := strings.Split(strings.ReplaceAll(frontPage(t, url), "\n", " "), "<tr ")
		isLast := time.Since(begun) > 5*time.Minute
		var missing []fault
		for _, f := range all {
			ok := code == cli.ExitFindings && says(rows, f, f.cause) && says(page, f, f.cause)
			if ok && f.ofProcess() {
				_, text := ctl(t, url, "describe", f.about)
				ok = says(strings.Split(text, "\n"), f, f.cause)
			}
			if !ok {
				missing = append(missing, f)
			}
			if ok || isLast {
				took := time.Since(cmp.Or(f.at, begun))
				n := points(ok, says(rows, f, ""), took)
				score.got += n
				score.most += 3
				t.Logf("%d of 3 after %v: %s", n, took.Round(time.Second), f.name)
			}
		}
		all = missing
		if isLast {
			break
		}
		time.Sleep(time.Second)
	}
	for _, f := range all {
		t.Errorf("%s: not named everywhere: rule %s, subject %s, cause %q", f.name, f.rule, f.about, f.cause)
	}
	if len(all) > 0 {
		t.Logf("the last answer of doctor:\n%s", out)
	}
}

// ofProcess reports whether the fault is of one process, which describe shows.
func (f fault) ofProcess() bool {
	isOther := strings.Contains(f.about, "/") || f.about == "NATS"
	return !isOther && !strings.HasPrefix(f.rule, "entity")
}
