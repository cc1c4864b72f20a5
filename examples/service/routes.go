package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/pleme-io/lifecycle-go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// service is shared by the handlers.
type service struct {
	log     *slog.Logger
	db      *store
	hub     *hub
	faults  *faults
	metrics *prometheus.Registry
	added   prometheus.Counter
	done    prometheus.Counter
	working prometheus.Gauge
}

func newService(log *slog.Logger, db *store) *service {
	s := &service{
		log:     log,
		db:      db,
		hub:     newHub(log),
		faults:  newFaults(),
		metrics: prometheus.NewRegistry(),
		added:   prometheus.NewCounter(prometheus.CounterOpts{Name: "service_work_added_total", Help: "Pieces of work stored."}),
		done:    prometheus.NewCounter(prometheus.CounterOpts{Name: "service_work_done_total", Help: "Pieces of work done."}),
		working: prometheus.NewGauge(prometheus.GaugeOpts{Name: "service_requests_in_flight", Help: "Requests to store work that are being handled."}),
	}
	s.metrics.MustRegister(s.added, s.done, s.working,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "service_streams", Help: "Streams that are open."},
			func() float64 { return float64(s.hub.Len()) }),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return s
}

const index = `POST /work?note=TEXT&sleep=DURATION  store a piece of work, after a while when asked to
GET  /work                           how much there is, and how much is done
GET  /events                         what happens, as server-sent events
GET  /socket                         the same, as a websocket
`

func (s *service) routes(allowFaults bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, index) })
	mux.HandleFunc("POST /work", s.addWork)
	mux.HandleFunc("GET /work", s.countWork)
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("GET /socket", s.socket)
	if allowFaults {
		mux.HandleFunc("POST /fail", s.faults.serve)
	}
	return mux
}

// maxSleep bounds the sleep that a client may ask for.
const maxSleep = time.Minute

// addWork stores a piece of work. With sleep it takes as long as an
// expensive request, and ends early when its context ends: the client went
// away, or the time for requests in flight is over.
func (s *service) addWork(w http.ResponseWriter, r *http.Request) {
	s.working.Inc()
	defer s.working.Dec()
	ctx := r.Context()
	if text := r.FormValue("sleep"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 || d > maxSleep {
			http.Error(w, fmt.Sprintf("sleep is %q, want a duration from 0s to %v, such as 1.5s", text, maxSleep), http.StatusBadRequest)
			return
		}
		if err := sleep(ctx, d); err != nil {
			http.Error(w, "gave up: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	id, err := s.db.Add(ctx, r.FormValue("note"))
	if err != nil {
		s.log.Error("request failed", "path", r.URL.Path, "error", err)
		http.Error(w, "the database does not answer", http.StatusServiceUnavailable)
		return
	}
	s.added.Inc()
	writeJSON(w, http.StatusCreated, map[string]int64{"id": id})
}

func (s *service) countWork(w http.ResponseWriter, r *http.Request) {
	added, done, err := s.db.Count(r.Context())
	if err != nil {
		s.log.Error("request failed", "path", r.URL.Path, "error", err)
		http.Error(w, "the database does not answer", http.StatusServiceUnavailable)
		return
	}
	writeJSON(w, http.StatusOK, map[string]int64{"added": added, "done": done})
}

// poll does the work that was stored, as a function to supervise. An error of
// one round only slows the next ones down.
func (s *service) poll(every time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		return lifecycle.RunLoop(ctx, every, func(ctx context.Context) error {
			ids, err := s.db.Finish(ctx, 100)
			for _, id := range ids {
				s.hub.Tell(fmt.Sprintf("work %d is done", id))
			}
			s.done.Add(float64(len(ids)))
			return err
		}, lifecycle.WithLoopLogger(s.log), lifecycle.WithBackoff(10*time.Second))
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client went away
}

// sleep waits for d, or returns why ctx ended.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
