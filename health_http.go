package lifecycle

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/answer"
	"github.com/pleme-io/lifecycle-go/internal/probe"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Handler serves the planes:
//
//	/livez, /healthz   liveness
//	/readyz            readiness
//	/startupz          startup
//	/readyz/NAME       one check of a plane, whether it is critical or not
//
// 200 when it passes and 503 when not, with a body of
// {"status":"ok"|"fail","checks":{NAME:"ok"|ERROR}}, sorted by name. The
// query ?verbose gives lines for people in its place, and ?exclude=NAME, any
// number of times, leaves checks out: they are not run. (The two are those of
// the Kubernetes API server's own endpoints.) The built-in condition
// "lifecycle", with which an App says that it is starting, suspended or
// draining, cannot be left out.
//
// GET and HEAD are served, 405 answers the rest. A path that is no plane or
// check is 404, a query that is malformed or over 4096 bytes 400. An answer
// comes within the probe timeout. The handler may be mounted anywhere and used
// by any number of servers; it looks at the whole path.
func (r *Registry) Handler() http.Handler { return healthHandler{r} }

type healthHandler struct{ r *Registry }

func (h healthHandler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	p, name, found := h.route(req.URL.Path)
	switch {
	case !found:
		answer.Line(http.StatusNotFound, "not found: the health planes are /livez, /readyz and /startupz").Write(w, req)
	case !answer.Allow(w, req, http.MethodGet, http.MethodHead): // it has answered
	case name == "" && req.URL.RawQuery == "":
		p.current(req.Context()).Write(w, req)
	default:
		h.part(p, name, req).Write(w, req)
	}
}

// route finds the plane of a path, and the name of the one check asked for, if
// any.
func (h healthHandler) route(path string) (p *plane, name string, found bool) {
	head, name, one := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if one && name == "" {
		return nil, "", false
	}
	switch head {
	case "livez", "healthz":
		return h.r.planes[livenessPlane], name, true
	case "readyz":
		return h.r.planes[readinessPlane], name, true
	case "startupz":
		return h.r.planes[startupPlane], name, true
	}
	return nil, "", false
}

// part answers a probe that has a query or asks for one check. Nothing of it is
// kept.
func (h healthHandler) part(p *plane, name string, req *http.Request) *answer.Answer {
	if refusal := answer.QueryTooLong(req); refusal != nil {
		return refusal
	}
	query, err := url.ParseQuery(req.URL.RawQuery)
	if err != nil {
		return answer.Line(http.StatusBadRequest, "malformed query: %v", err)
	}
	checks := *p.checks.Load()
	var res result
	switch {
	case name == conditionName:
		res = p.conditionAlone()
	case name != "":
		c := p.find(name)
		if c == nil {
			return answer.Line(http.StatusNotFound, "%s has no check %q", p.kind.path(), text.Clip(name, maxNameLen))
		}
		res = p.alone(c, p.runPart(req, []*check{c}))
	default:
		var names []string
		for _, n := range query["exclude"] {
			if n != "" {
				names = append(names, n)
			}
		}
		var noted result
		kept, out := noted.exclude(names, checks)
		res = p.result(kept, p.runPart(req, kept))
		res.strange = noted.strange
		for _, c := range out {
			res.items = append(res.items, item{name: c.name, excluded: true})
		}
		slices.SortFunc(res.items, func(a, b item) int { return strings.Compare(a.name, b.name) })
		if res.ok && len(out) == 0 {
			p.reg.passed(p.kind)
		}
	}
	if query.Has("verbose") {
		return answer.New(statusOf(res.ok), answer.TypeText, res.verbose())
	}
	return res.answer()
}

// runPart runs those of the checks that are due, unless the plane is frozen.
func (p *plane) runPart(req *http.Request, checks []*check) []probe.Unfinished {
	if p.frozen() {
		return nil
	}
	return p.run(req.Context(), checks)
}

// alone is the result of one check: it fails when that does, critical or not.
func (p *plane) alone(c *check, unfinished []probe.Unfinished) result {
	it, _ := c.view(unfinished)
	ok := it.passes(p.kind) || p.reg.cond.Load().overrides(p.kind)
	return result{plane: p.kind, ok: ok, items: []item{it}}
}

// conditionAlone is the result of the built-in condition.
func (p *plane) conditionAlone() result {
	it, _ := p.reg.cond.Load().item(p.kind)
	return result{plane: p.kind, ok: it.passes(p.kind), items: []item{it}}
}
