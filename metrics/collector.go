package metrics

import (
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fsm"
	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/worker"
	"github.com/prometheus/client_golang/prometheus"
)

// maxUnread is the number of events kept from one scrape to the next.
const maxUnread = 4096

// maxKinds bounds the series of lifecycle_transitions_total, because a program
// may publish events of its own kinds.
const maxKinds = 256

// collector makes the metrics of one App.
type collector struct {
	app    *lifecycle.App
	events *fsm.Subscription
	began  time.Time
	build  []string // the labels of lifecycle_build_info

	mu       sync.Mutex // guards the fields below; one scrape at a time holds it
	counted  map[transition]float64
	lost     float64
	restarts map[string]*restarts
	took     *durations
}

type transition struct{ kind, state string }

// restarts turns a number that falls when a child is removed into a counter.
type restarts struct{ last, total int }

func newCollector(a *lifecycle.App) *collector {
	return &collector{
		app:      a,
		events:   a.Events().Subscribe(maxUnread),
		began:    time.Now(),
		build:    build(debug.ReadBuildInfo()),
		counted:  map[transition]float64{},
		restarts: map[string]*restarts{},
		took:     newDurations(),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range all {
		ch <- m.desc
	}
	c.took.stop.Describe(ch)
	c.took.phases.Describe(ch)
}

// build returns the labels of lifecycle_build_info.
func build(info *debug.BuildInfo, ok bool) []string {
	if !ok {
		return []string{"", "", "", runtime.Version(), ""}
	}
	revision, library := "", ""
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value
		}
	}
	const module = "github.com/pleme-io/lifecycle-go"
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == module {
			library = m.Version
		}
	}
	return []string{info.Main.Path, info.Main.Version, revision, info.GoVersion, library}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := scrape{ch: ch, at: time.Now()}
	status, cfg := c.app.Status(), c.app.Config()
	c.readEvents()

	s.add(appInfo, 1, status.Report.Name)
	s.add(buildInfo, 1, slices.Clone(c.build)...)
	s.phases(status.Report)
	for t, n := range c.counted {
		s.add(transitions, n, t.kind, t.state)
	}
	s.add(eventsLost, c.lost)
	s.budget(cfg, status.Report.Budget)
	for _, u := range status.Units {
		c.unit(s, u)
	}
	s.probes(status.Probes)
	s.servers(status.Servers)
	s.outcomes(status.Report)
	s.lastStop(status.Report, c.began)
	c.took.observe(status.Report)
	c.took.stop.Collect(ch)
	c.took.phases.Collect(ch)
}

// readEvents counts the changes of state since the previous scrape.
func (c *collector) readEvents() {
	now, cancel := context.WithCancel(context.Background())
	cancel() // read only the events that are already there
	for e := range c.events.All(now) {
		if e.IsGap() {
			c.lost += float64(e.Seq)
			continue
		}
		t := transition{text.Valid(e.Kind), text.Valid(e.To)}
		if _, known := c.counted[t]; !known && len(c.counted) >= maxKinds {
			t = transition{"other", "other"}
		}
		c.counted[t]++
	}
}

// unit adds the metrics of one of the App's own units and counts the workers below
// it.
func (c *collector) unit(s scrape, u worker.State) {
	for status := range worker.Transitions() {
		s.add(unitStatus, truth(u.Status == status), u.Name, string(status))
	}
	below, sum := map[worker.Status]int{}, u.Restarts
	count(u.Children, below, &sum)
	r := c.restarts[u.Name]
	if r == nil {
		r = &restarts{}
		c.restarts[u.Name] = r
	}
	r.total += max(sum-r.last, 0)
	r.last = sum
	s.add(unitRestarts, float64(r.total), u.Name)
	if len(below) > 0 {
		for status := range worker.Transitions() {
			s.add(unitChildren, float64(below[status]), u.Name, string(status))
		}
	}
}

func count(states []worker.State, by map[worker.Status]int, restarts *int) {
	for _, s := range states {
		by[s.Status]++
		*restarts += s.Restarts
		count(s.Children, by, restarts)
	}
}

// scrape is one Collect.
type scrape struct {
	ch chan<- prometheus.Metric
	at time.Time
}

// add sends one value. It makes names valid UTF-8, because one invalid name would
// fail the whole scrape.
func (s scrape) add(m *metric, value float64, labels ...string) {
	for i := range labels {
		labels[i] = text.Valid(labels[i])
	}
	s.ch <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
}

func (s scrape) phases(r lifecycle.Report) {
	for p := range lifecycle.Phases() {
		s.add(phase, truth(p == r.Phase), string(p))
	}
	for i, p := range r.Phases {
		s.add(phaseEntered, seconds(p.Entered), string(p.Phase))
		s.add(phaseTook, phaseTime(r, i, s.at).Seconds(), string(p.Phase))
	}
}

func (s scrape) budget(cfg lifecycle.Config, stop time.Duration) {
	s.add(drainInterval, max(cfg.DrainInterval, 0).Seconds())
	s.add(shutdownGrace, cfg.ShutdownGrace.Seconds())
	s.add(reportSlice, cfg.ReportSlice.Seconds())
	s.add(stopBudget, (max(cfg.PreStop, 0) + stop).Seconds())
	if cfg.TerminationGrace > 0 {
		s.add(declaredGrace, cfg.TerminationGrace.Seconds())
	}
}

func (s scrape) probes(probes []health.Status) {
	for _, p := range probes {
		for _, state := range []health.State{health.Up, health.Down, health.Unknown} {
			s.add(probeState, truth(p.State == state), p.Plane, p.Name, string(state))
		}
		if p.Runs > 0 {
			s.add(probeTook, p.Latency.Seconds(), p.Plane, p.Name)
		}
		s.add(probeRuns, float64(p.Runs), p.Plane, p.Name)
	}
}

func (s scrape) servers(servers []lifecycle.ServerStatus) {
	for _, srv := range servers {
		s.add(inFlight, float64(srv.InFlight), srv.Name)
		s.add(conns, float64(srv.Conns), srv.Name, "http")
		s.add(conns, float64(srv.Hijacked), srv.Name, "hijacked")
		s.add(accepted, float64(srv.Accepted), srv.Name)
	}
}

func (s scrape) outcomes(r lifecycle.Report) {
	s.add(cut, float64(r.CutRequests))
	for _, o := range r.Drainers {
		s.add(drainerResult, 1, o.Name, string(o.Result))
		s.add(drainerTook, o.Took.Seconds(), o.Name)
	}
	for _, o := range r.Hooks {
		s.add(hookResult, 1, o.Name, string(o.Result))
		s.add(hookTook, o.Took.Seconds(), o.Name)
	}
	gone := left(r)
	for name, counts := range r.ReloadCounts {
		for result, n := range counts {
			s.add(reloads, float64(n), name, string(result))
		}
		gone += counts[lifecycle.ResultAbandoned]
	}
	s.add(abandoned, float64(gone))
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
