package metrics

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/push"
)

// endings are the values of lifecycle_last_stop_ending.
var endings = []string{"clean", "failed", "cut", "abandoned", "killed", "interrupted", "crashed"}

// ending says how a life has ended.
func ending(r lifecycle.Report) string {
	switch {
	case r.Phase == lifecycle.PhaseKilled:
		return "killed"
	case r.Done.IsZero() && r.Requested.IsZero():
		return "crashed"
	case r.Done.IsZero():
		return "interrupted"
	case r.Error == "":
		return "clean"
	case r.ExitStatus == lifecycle.ExitCut:
		return "cut"
	case r.ExitStatus == lifecycle.ExitStuck:
		return "abandoned"
	}
	return "failed"
}

// lastStop adds the metrics of the App's own stop when that is over. Until then it adds
// the metrics of the previous life's stop, which became known at since.
func (s scrape) lastStop(r lifecycle.Report, since time.Time) {
	reported := r.Done
	if reported.IsZero() {
		if r.Previous == nil {
			return
		}
		r, reported = *r.Previous, since
	}
	how := ending(r)
	for _, e := range endings {
		s.add(lastEnding, truth(e == how), e)
	}
	end := r.Done
	if n := len(r.Phases); end.IsZero() && n > 0 {
		end = r.Phases[n-1].Entered // the last sign of life
	}
	s.add(lastEnd, seconds(end))
	s.add(lastTold, seconds(reported))
	s.add(lastBudget, r.Budget.Seconds())
	s.add(lastCut, float64(r.CutRequests))
	s.add(lastAbandoned, float64(left(r)))
	if !r.Done.IsZero() {
		s.add(lastExit, float64(r.ExitStatus))
		s.add(lastTook, took(r).Seconds())
	}
}

// took returns the duration of a stop that is over.
func took(r lifecycle.Report) time.Duration {
	if r.Requested.IsZero() {
		return 0
	}
	return max(r.Done.Sub(r.Requested), 0)
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// left counts the parts that were abandoned, reloads not included.
func left(r lifecycle.Report) (n uint64) {
	for _, o := range slices.Concat(r.Units, r.Drainers, r.Hooks) {
		if o.Result == lifecycle.ResultAbandoned {
			n++
		}
	}
	return n
}

// durations has the histograms of an App: of its one stop and of its phases. They are for
// sums over a fleet.
type durations struct {
	stop   prometheus.Histogram
	phases *prometheus.HistogramVec
	seen   map[lifecycle.Phase]bool
	over   bool
}

// The histograms have buckets for servers that read no native histograms.
func histogram(m Metric) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name:                           m.Name,
		Help:                           m.Help,
		Buckets:                        []float64{0.1, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 45, 60, 120, 300, 600},
		NativeHistogramBucketFactor:    1.1,
		NativeHistogramMaxBucketNumber: 100,
	}
}

func newDurations() *durations {
	return &durations{
		stop:   prometheus.NewHistogram(histogram(stopTook)),
		phases: prometheus.NewHistogramVec(histogram(phasesTook), phasesTook.Labels),
		seen:   map[lifecycle.Phase]bool{},
	}
}

// observe counts what is over, once.
func (d *durations) observe(r lifecycle.Report) {
	if !d.over && !r.Done.IsZero() {
		d.over = true
		if !r.Requested.IsZero() {
			d.stop.Observe(took(r).Seconds())
		}
	}
	for i, p := range r.Phases {
		stopped := p.Phase == lifecycle.PhaseStopping && !r.Done.IsZero()
		if p.Phase == lifecycle.PhaseCreated || d.seen[p.Phase] || i == len(r.Phases)-1 && !stopped {
			continue
		}
		d.seen[p.Phase] = true
		d.phases.WithLabelValues(string(p.Phase)).Observe(phaseTime(r, i, time.Time{}).Seconds())
	}
}

// phaseTime returns the duration of a phase. The time in which the App reports its stop
// is not part of the phase stopping. The last phase lasts until now.
func phaseTime(r lifecycle.Report, i int, now time.Time) time.Duration {
	p := r.Phases[i]
	switch {
	case p.Phase == lifecycle.PhaseStopping && !r.Done.IsZero():
		return max(r.Done.Sub(p.Entered), 0)
	case i == len(r.Phases)-1:
		return max(now.Sub(p.Entered), 0)
	}
	return p.Duration
}

// Push pushes lifecycle_app_info and the lifecycle_last_stop_ metrics to a push gateway
// when the stop is over, for processes that no Prometheus scrapes in time, such as jobs:
//
//	gateway := push.New("http://pushgateway:9091", "orders").Grouping("instance", hostname)
//	app, err := lifecycle.New(cfg, metrics.With(reg), metrics.Push(gateway))
//
// Give each process a group of its own, because a push replaces the group. It takes part
// of ShutdownGrace: see Config.ReportSlice. A push that fails is a line in the log. The
// gateway keeps a group until it is deleted; the alerts look at
// lifecycle_last_stop_told_timestamp_seconds, and so forget it.
//
// [lifecycle.New] fails when the gateway is nil. Add no collector to it that is also in
// another registry: Push adds the App's own.
func Push(gateway *push.Pusher) lifecycle.Option {
	return lifecycle.WithSetup(func(a *lifecycle.App) error {
		if gateway == nil {
			return errors.New("metrics: the pusher is nil: make one with push.New")
		}
		gateway.Collector(pushed{a, time.Now()})
		a.OnReport("push gateway", func(ctx context.Context, _ lifecycle.Report) error { return gateway.PushContext(ctx) })
		return nil
	})
}

// pushed collects what a push gateway may keep.
type pushed struct {
	app   *lifecycle.App
	since time.Time
}

// Describe implements prometheus.Collector.
func (p pushed) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range all {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (p pushed) Collect(ch chan<- prometheus.Metric) {
	r, s := p.app.Report(), scrape{ch: ch, at: time.Now()}
	s.add(appInfo, 1, r.Name)
	s.lastStop(r, p.since)
}
