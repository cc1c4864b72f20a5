package health

import (
	"net/http"
	"net/url"
	"slices"
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
// The query ?verbose asks for lines of text for people. The query ?exclude=NAME
// leaves a check out, which then does not run; it may be given many times. The
// Kubernetes API server's own endpoints take the same two. A probe cannot exclude
// the built-in condition "lifecycle", with which an App says that it is starting,
// suspended or draining.
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
	if name == "" && req.URL.RawQuery == "" {
		res := p.current(req.Context())
		res.answer().Write(w, req)
		return
	}
	p.part(name, req).Write(w, req)
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

// part answers a probe that has a query or asks for one check.
func (p *plane) part(name string, req *http.Request) *answer.Answer {
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
		res = p.without(query["exclude"], req)
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

func (p *plane) without(names []string, req *http.Request) result {
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	kept, out, strange := exclude(names, *p.checks.Load())
	p.run(req.Context(), kept)
	res := p.collect(kept)
	res.unknown = strange
	// A plane has passed only with all its checks, also those that this probe excludes.
	if res.ok && len(out) == 0 && req.Context().Err() == nil {
		p.reg.passed(p.kind)
	}
	for _, c := range out {
		res.items = append(res.items, item{name: c.name, excluded: true})
	}
	slices.SortFunc(res.items, func(a, b item) int { return strings.Compare(a.name, b.name) })
	return res
}

// exclude splits the checks into checks that a probe uses and checks that it
// excludes. strange has the excluded names that no check has, sorted. The name of
// the built-in condition is always among them, because no probe can exclude it.
func exclude(names []string, checks []*check) (kept, out []*check, strange []string) {
	for _, c := range checks {
		if slices.Contains(names, c.name) {
			out = append(out, c)
		} else {
			kept = append(kept, c)
		}
	}
	for _, name := range names {
		if find(out, name) == nil {
			strange = append(strange, text.Clip(name, maxNameLen))
		}
	}
	slices.Sort(strange)
	return kept, out, slices.Compact(strange)
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
