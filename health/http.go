package health

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/answer"
	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Handler serves the planes:
//
//	/livez, /healthz   liveness
//	/readyz            readiness
//	/startupz          startup
//	/readyz/NAME       one check of a plane; its failure is a 503, also when it is not critical
//
// The status is 200 when the plane passes and 503 when it fails. The body is
// {"status":"ok"|"fail","checks":{NAME:"ok"|ERROR}}, sorted by name. A check that
// fails because of another one ([WithDependsOn]) has "caused by NAME" as its
// error.
//
// The query ?verbose asks for lines of text for people, as the Kubernetes API
// server's own endpoints do. Other parameters have no meaning.
//
// The handler serves GET and HEAD and answers other methods with 405. It answers
// a path that is not a plane or a check with 404, and a query that is malformed or
// longer than 4096 bytes with 400. An answer comes within the probe timeout. The
// handler may be mounted anywhere and used by many servers; it looks at the whole
// path.
func (r *Registry) Handler() http.Handler { return handler{r} }

type handler struct{ r *Registry }

func (h handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	p, name, found := h.route(req.URL.Path)
	if !found {
		answer.Line(http.StatusNotFound, "not found: the health planes are /livez, /readyz and /startupz").Write(w, req)
		return
	}
	if !answer.Allow(w, req, http.MethodGet, http.MethodHead) {
		return
	}
	p.probe(name, req).Write(w, req)
}

// route finds the plane of a path, and the name of the one check asked for, if
// any.
func (h handler) route(path string) (p *plane, name string, found bool) {
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

// probe answers a probe of the plane or, with a name, of one check.
func (p *plane) probe(name string, req *http.Request) *answer.Answer {
	if refusal := answer.QueryTooLong(req); refusal != nil {
		return refusal
	}
	query, err := url.ParseQuery(req.URL.RawQuery)
	if err != nil {
		return answer.Line(http.StatusBadRequest, "malformed query: %v", err)
	}
	var res result
	switch name {
	case "":
		res = p.current(req.Context())
	case conditionName:
		res = p.conditionAlone()
	default:
		c := find(*p.checks.Load(), name)
		if c == nil {
			return answer.Line(http.StatusNotFound, "%s has no check %q", p.kind.path(), text.Clip(name, maxNameLen))
		}
		p.run(req.Context(), []*check{c})
		res = p.alone(c)
	}
	if query.Has("verbose") {
		return answer.New(statusOf(res.ok), answer.TypeText, res.verbose())
	}
	return res.answer()
}

// alone returns the result of one check. It fails when the check fails, even if
// the check is not critical.
func (p *plane) alone(c *check) result {
	it := c.view()
	p.explain(&it)
	ok := it.passes(p.kind) || p.reg.cond.Load().overrides(p.kind)
	return result{plane: p.kind, ok: ok, items: []item{it}}
}

// conditionAlone returns the result of the built-in condition.
func (p *plane) conditionAlone() result {
	it, _ := p.reg.cond.Load().item(p.kind)
	return result{plane: p.kind, ok: it.passes(p.kind), items: []item{it}}
}
