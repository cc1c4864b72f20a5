package lifecycle

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/pleme-io/lifecycle-go/health"
	"github.com/pleme-io/lifecycle-go/internal/answer"
	"github.com/pleme-io/lifecycle-go/internal/text"
	"github.com/pleme-io/lifecycle-go/worker"
)

// Status is everything that an [App] knows about itself at one moment, as plain
// data: what /statusz shows. It holds names, times, states and the texts of
// errors; no stacks, no configuration and nothing of any request.
type Status struct {
	At      time.Time `json:"at"`
	Report  Report    `json:"report"`            // the phase, how it came there, how what has ended did
	Waiting string    `json:"waiting,omitempty"` // what a start or a stop waits for
	// Suspended is what [App.Suspended] returns; its Since is zero when the App is
	// not suspended.
	Suspended Suspension      `json:"suspended,omitzero"`
	Units     []worker.State  `json:"units,omitempty"` // each with its children
	Servers   []ServerStatus  `json:"servers,omitempty"`
	Probes    []health.Status `json:"probes,omitempty"` // as the last runs left them: none is run for this
}

// ServerStatus describes a server that the App runs.
type ServerStatus struct {
	Name        string    `json:"name"`
	Addr        string    `json:"addr,omitempty"` // "" before it is bound
	InFlight    int64     `json:"inFlight"`       // requests being handled; 0 for gRPC, where they cannot be seen
	Conns       int       `json:"conns"`          // open connections
	Hijacked    int       `json:"hijacked"`       // of websockets and the like
	Accepted    uint64    `json:"accepted"`       // connections since it was bound
	LastArrival time.Time `json:"lastArrival,omitzero"`
}

// Status describes the App as it is now. It may be called at any time. A worker
// whose State does not return, which is against its contract, is waited for one
// second, and not again while it has not.
func (a *App) Status() Status {
	s := Status{At: time.Now(), Report: a.Report(), Probes: a.health.reg.Snapshot()}
	for _, list := range [][]Outcome{s.Report.Units, s.Report.Drainers, s.Report.Hooks, s.Report.Reloads} {
		for i := range list {
			list[i].Stack = "" // Report has them; they are not for everybody
		}
	}
	s.Suspended, _ = a.Suspended()
	if p := s.Report.Phase; p != PhaseCreated && p != PhaseRunning {
		s.Waiting = a.blocking()
	}
	units, servers := a.parts.view()
	for _, u := range units {
		s.Units = append(s.Units, u.shown())
	}
	for _, srv := range servers {
		st := srv.Stats()
		out := ServerStatus{Name: srv.Name(), InFlight: st.InFlight, Conns: st.Conns, Hijacked: st.Hijacked, Accepted: st.Accepted, LastArrival: st.LastArrival}
		if addr := srv.drainingServer.Addr(); addr != nil {
			out.Addr = addr.String()
		}
		s.Servers = append(s.Servers, out)
	}
	return s
}

// mountStatusz puts /statusz among the health server's handlers. It is on unless
// somebody turns it off: it says little more than /readyz?verbose does, and the
// moment in which it is missed is the wrong one to turn it on.
func (a *App) mountStatusz() {
	if !a.cfg.StatuszOff {
		a.extra["/statusz"] = http.HandlerFunc(a.serveStatusz)
	}
}

// What a page may do: show itself. It loads nothing from anywhere.
var statuszPolicy = []string{"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"}

func (a *App) serveStatusz(w http.ResponseWriter, req *http.Request) {
	if !answer.Allow(w, req, http.MethodGet, http.MethodHead) {
		return
	}
	if refusal := answer.QueryTooLong(req); refusal != nil {
		refusal.Write(w, req)
		return
	}
	format := req.URL.Query().Get("format")
	if format == "" {
		format = "html"
		if wantsJSON(req.Header.Get("Accept")) {
			format = "json"
		}
	}
	w.Header()["Vary"] = []string{"Accept"}
	switch format {
	case "html":
		w.Header()["Content-Security-Policy"] = statuszPolicy
		answer.New(http.StatusOK, answer.TypeHTML, renderStatus(a.Status())).Write(w, req)
	case "json":
		body, err := json.MarshalIndent(a.Status(), "", "  ")
		if err != nil { // a year beyond 9999, say
			answer.Line(http.StatusInternalServerError, "the status cannot be encoded: %s", text.OneLine(err.Error())).Write(w, req)
			return
		}
		answer.New(http.StatusOK, answer.TypeJSON, append(body, '\n')).Write(w, req)
	case "mermaid":
		answer.New(http.StatusOK, answer.TypeText, []byte(a.Status().tree().Mermaid())).Write(w, req)
	case "dot":
		answer.New(http.StatusOK, answer.TypeText, []byte(a.Status().tree().DOT())).Write(w, req)
	default:
		answer.Line(http.StatusBadRequest, "format is html, json, mermaid or dot").Write(w, req)
	}
}

// wantsJSON reports whether an Accept header names JSON before it names HTML.
func wantsJSON(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		media, _, _ := strings.Cut(part, ";")
		switch strings.ToLower(strings.TrimSpace(media)) {
		case "application/json":
			return true
		case "text/html":
			return false
		}
	}
	return false
}
