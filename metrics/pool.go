package metrics

import (
	"time"

	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/procpool"
	"github.com/prometheus/client_golang/prometheus"
)

// Pool returns a collector for a pool: its workers by state, and its queries by
// outcome and duration. [With] has the metrics of the pool as a unit of the App.
//
// A scrape reads [procpool.Pool.Stats] once and keeps nothing. The label "pool" is
// the pool's name; Register returns an error for a second pool of the same name.
// The collector may be registered before the pool is started. After the pool has
// ended it shows the last state.
func Pool(p *procpool.Pool) prometheus.Collector {
	c := &poolCollector{pool: p, descs: make(map[string]*prometheus.Desc, len(ofPools))}
	name := prometheus.Labels{"pool": text.Valid(p.Name())}
	for _, m := range ofPools {
		c.descs[m.Name] = prometheus.NewDesc(m.Name, m.Help, m.Labels[1:], name)
	}
	return c
}

// ofPools are the metrics of a pool. The first label of each is the pool's name.
var ofPools = []Metric{
	{
		"lifecycle_pool_state", "gauge", []string{"pool", "state"},
		"1 for how much of its capacity the pool uses (idle, active, at_capacity), 0 for the others.",
	},
	{
		"lifecycle_pool_workers", "gauge", []string{"pool", "state"},
		"Worker processes that are in the state: starting, ready, busy, shutting_down.",
	},
	{
		"lifecycle_pool_workers_spawned_total", "counter", []string{"pool"},
		"Worker processes started, including those that replaced another.",
	},
	{
		"lifecycle_pool_workers_lost_total", "counter", []string{"pool", "reason"},
		"Worker processes that have ended, by reason: crashed (also never ready, or broke the protocol), " +
			"recycled, evicted.",
	},
	{
		"lifecycle_pool_failures", "gauge", []string{"pool"},
		"Consecutive failed starts of workers. 0 when the last started worker is ready.",
	},
	{
		"lifecycle_pool_worker_ends_total", "counter", []string{"pool", "cause"},
		"Worker processes that have ended, by cause: start, idle, query, memory, protocol, health, " +
			"write, unconfirmed, recycled, evicted, reloaded, alone, shutdown.",
	},
	{
		"lifecycle_pool_poisoned", "gauge", []string{"pool"},
		"Fingerprints of queries that the pool refuses because workers died of them.",
	},
	{
		"lifecycle_pool_queries", "gauge", []string{"pool", "state"},
		"Queries that have not ended: waiting (for a worker) and in_flight (in a worker).",
	},
	{
		"lifecycle_pool_queries_total", "counter", []string{"pool", "outcome"},
		"Queries that have ended, by outcome: complete, error, cancelled, rejected.",
	},
	{
		"lifecycle_pool_query_retries_total", "counter", []string{"pool"},
		"Idempotent queries that the pool gave to another worker because the first one crashed.",
	},
	{
		"lifecycle_pool_slow_queries_total", "counter", []string{"pool"},
		"Queries that a worker had for longer than SlowAfter.",
	},
	{
		"lifecycle_pool_query_duration_seconds", "histogram", []string{"pool"},
		"Duration of queries until their end, including the wait for a worker. Rejected queries are not " +
			"counted.",
	},
	{
		"lifecycle_pool_messages_dropped_total", "counter", []string{"pool", "reason"},
		"Dropped messages of workers: late (for a query that had ended), unknown (of an unknown type).",
	},
	{
		"lifecycle_pool_strangers_total", "counter", []string{"pool"},
		"Connections to a worker's socket by a process that is not the worker.",
	},
}

type poolCollector struct {
	pool  *procpool.Pool
	descs map[string]*prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *poolCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *poolCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.pool.Stats()
	gauge := func(name string, value int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.descs[name], prometheus.GaugeValue, float64(value), labels...)
	}
	counter := func(name string, value uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(c.descs[name], prometheus.CounterValue, float64(value), labels...)
	}
	for state := range procpool.PoolTransitions() {
		gauge("lifecycle_pool_state", int(truth(s.State == state)), string(state))
	}
	gauge("lifecycle_pool_workers", s.Starting, string(procpool.WorkerStarting))
	gauge("lifecycle_pool_workers", s.Ready, string(procpool.WorkerReady))
	gauge("lifecycle_pool_workers", s.Busy, string(procpool.WorkerBusy))
	gauge("lifecycle_pool_workers", s.ShuttingDown, string(procpool.WorkerShuttingDown))
	counter("lifecycle_pool_workers_spawned_total", s.Spawned)
	counter("lifecycle_pool_workers_lost_total", s.Crashed, "crashed")
	counter("lifecycle_pool_workers_lost_total", s.Recycled, "recycled")
	counter("lifecycle_pool_workers_lost_total", s.Evicted, "evicted")
	gauge("lifecycle_pool_failures", s.Failures)
	gauge("lifecycle_pool_queries", s.Waiting, "waiting")
	// Stats does not read the two at the same moment.
	gauge("lifecycle_pool_queries", max(s.Open-s.Waiting, 0), "in_flight")
	counter("lifecycle_pool_queries_total", s.Complete, string(procpool.QueryComplete))
	counter("lifecycle_pool_queries_total", s.Failed, string(procpool.QueryError))
	counter("lifecycle_pool_queries_total", s.Cancelled, string(procpool.QueryCancelled))
	counter("lifecycle_pool_queries_total", s.Rejected, string(procpool.QueryRejected))
	counter("lifecycle_pool_query_retries_total", s.Retried)
	counter("lifecycle_pool_slow_queries_total", s.Slow)
	gauge("lifecycle_pool_poisoned", s.Poisoned)
	for cause, n := range s.Ended {
		counter("lifecycle_pool_worker_ends_total", n, string(cause))
	}
	counter("lifecycle_pool_messages_dropped_total", s.Late, "late")
	counter("lifecycle_pool_messages_dropped_total", s.Unknown, "unknown")
	counter("lifecycle_pool_strangers_total", s.Strangers)
	durations := c.descs["lifecycle_pool_query_duration_seconds"]
	ch <- prometheus.MustNewConstHistogram(durations, s.Durations.Count, s.Durations.Sum.Seconds(), buckets(s.Durations))
}

func buckets(d procpool.Durations) map[float64]uint64 {
	out := make(map[float64]uint64, len(d.Bounds))
	for i, bound := range d.Bounds {
		out[float64(bound)/float64(time.Second)] = d.Within[i]
	}
	return out
}
