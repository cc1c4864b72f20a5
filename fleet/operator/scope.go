package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Grant gives a role to callers. Without a list it is for the whole fleet. With lists it
// is for what one of them names, and for nothing else: a grant with only Services says
// nothing about workflows and workers. In each name * stands for any text.
//
// A caller may have several grants; together they give all that each of them gives. A
// caller sees nothing of what no grant covers: neither in lists nor by its name.
type Grant struct {
	// Subject is "user:NAME" or "group:NAME", as the authenticator knows them.
	Subject string `json:"subject" koanf:"subject" yaml:"subject"`
	Role    Role   `json:"role" koanf:"role" yaml:"role"`

	Services  []string `json:"services,omitempty" koanf:"services" yaml:"services,omitempty"`    // of processes
	Workflows []string `json:"workflows,omitempty" koanf:"workflows" yaml:"workflows,omitempty"` // types
	Workers   []string `json:"workers,omitempty" koanf:"workers" yaml:"workers,omitempty"`       // ids of hosted workers
	Tenants   []string `json:"tenants,omitempty" koanf:"tenants" yaml:"tenants,omitempty"`       // of hosted workers
}

// whole reports whether the grant is for the whole fleet.
func (g Grant) whole() bool {
	return g.Services == nil && g.Workflows == nil && g.Workers == nil && g.Tenants == nil
}

// check returns an error for a grant that cannot be meant. A list without a name is one:
// it would be read as the whole fleet, or as nothing.
func (g Grant) check() error {
	if _, err := ParseRole(string(g.Role)); err != nil {
		return err
	}
	for list, names := range map[string][]string{
		"services":  g.Services,
		"workflows": g.Workflows,
		"workers":   g.Workers,
		"tenants":   g.Tenants,
	} {
		if names != nil && len(names) == 0 || slices.Contains(names, "") {
			return fmt.Errorf("%s has no name, or an empty one: want names, or leave the list out", list)
		}
	}
	return nil
}

// checkGrants checks the grants of an authenticator.
func checkGrants(grants []Grant) error {
	if len(grants) == 0 {
		return errors.New("no user or group has a role")
	}
	for _, g := range grants {
		kind, name, _ := strings.Cut(g.Subject, ":")
		if kind != "user" && kind != "group" || name == "" {
			return fmt.Errorf("a grant has the subject %q: want user:NAME or group:NAME", g.Subject)
		}
		if err := g.check(); err != nil {
			return fmt.Errorf("the grant of %s: %w", g.Subject, err)
		}
	}
	return nil
}

// granted gives p what the grants have for its name and its groups. It returns
// ErrBadCredentials when that is nothing.
func granted(grants []Grant, p Principal, groups []string) (Principal, error) {
	for _, g := range grants {
		kind, name, _ := strings.Cut(g.Subject, ":")
		if kind == "user" && name != p.Name || kind == "group" && !slices.Contains(groups, name) {
			continue
		}
		if !g.whole() {
			p.Grants = append(p.Grants, g)
		} else if g.Role.atLeast(p.Role) {
			p.Role = g.Role
		}
	}
	if p.most() == RoleNone {
		return Principal{}, ErrBadCredentials
	}
	return p, nil
}

// matchName reports whether a name has the form of a pattern, in which * is any text.
func matchName(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	rest, ok := strings.CutPrefix(name, parts[0])
	if !ok {
		return false
	}
	last := len(parts) - 1
	for _, part := range parts[1:last] {
		_, after, ok := strings.Cut(rest, part)
		if !ok {
			return false
		}
		rest = after
	}
	return strings.HasSuffix(rest, parts[last])
}

func anyMatch(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matchName(p, name) })
}

// object is what a call is about: one of the services, the workflows or the workers.
type object struct {
	service, workflow, worker string
	tenant                    string // of the worker
}

func (g Grant) covers(x object) bool {
	return g.whole() ||
		x.service != "" && anyMatch(g.Services, x.service) ||
		x.workflow != "" && anyMatch(g.Workflows, x.workflow) ||
		x.worker != "" && anyMatch(g.Workers, x.worker) ||
		x.tenant != "" && anyMatch(g.Tenants, x.tenant)
}

// at returns the role of p at an object; the empty object is the whole fleet.
func (p Principal) at(x object) Role {
	role := p.Role
	for _, g := range p.Grants {
		if x != (object{}) && g.covers(x) && g.Role.atLeast(role) {
			role = g.Role
		}
	}
	return role
}

// most returns the highest role that p has anywhere.
func (p Principal) most() Role {
	role := p.Role
	for _, g := range p.Grants {
		if g.Role.atLeast(role) {
			role = g.Role
		}
	}
	return role
}

func (p Principal) sees(x object) bool { return p.at(x).atLeast(RoleViewer) }

// scoped reports whether p sees only parts of the fleet.
func (p Principal) scoped() bool { return !p.Role.atLeast(RoleViewer) }

func (p Principal) seesProcess(x *operatorv1.Process) bool {
	return p.sees(object{service: x.GetService()})
}

func workerObject(w *operatorv1.Worker) object {
	return object{worker: w.GetId(), tenant: w.GetSpec().GetTenant()}
}

// scope says where a caller must have the role that a call needs.
type scope int

const (
	scopeFleet scope = iota // the role in the whole fleet
	scopeOne                // the role at the object of the call
	scopeParts              // the role in any part: the method shows and does only what the caller may
)

// resolve finds the object of a request, and the process of a request about one.
func (s *Server) resolve(ctx context.Context, c *request) error {
	hasRoleInFleet := c.who.Role.atLeast(needs[c.action])
	service, _, _ := strings.Cut(c.action, ".")
	switch {
	case c.scope != scopeOne:
	case service == "ProcessService":
		p, err := s.process(ctx, c.object)
		switch {
		case err == nil: // the object may have been a part of the id, which names another process later
			c.process, c.object, c.at.service = p, p.GetId(), p.GetService()
		case hasRoleInFleet || !missing(err):
			return err
		}
	case service == "WorkflowService":
		c.at.workflow = c.object
	case service == "WorkerService" && c.letters && isHook(c.object):
		c.at.workflow, _, _ = hookOf(c.object)
	case service == "WorkerService" && !hasRoleInFleet:
		c.at.worker = c.object
		var err error
		c.at, err = s.tenantOf(ctx, c.who, c.at)
		return err
	}
	return nil
}

// permit returns an error unless the caller may do the action at an object. A caller that does
// not see the object gets the same error as when there is none.
func (s *Server) permit(who Principal, action string, x object) error {
	need := needs[action]
	role := who.at(x)
	service, _, _ := strings.Cut(action, ".")
	switch {
	case role.atLeast(need):
		return nil
	case x == object{} && service != "ProcessService":
		return forbidden("%s has no role in the whole fleet: %s needs the role %s there", who.Name, action, need)
	case !role.atLeast(RoleViewer) && action != "WorkerService.CreateWorker":
		return unseen(x)
	}
	return forbidden("%s has the role %s here: %s needs the role %s", who.Name, role, action, need)
}

func forbidden(format string, args ...any) error {
	return Errorf(connect.CodePermissionDenied, ReasonForbidden, "", format, args...)
}

// unseen is the error for an object that does not exist, or that the caller does not see.
func unseen(x object) error {
	if x.workflow != "" {
		return Errorf(connect.CodeNotFound, ReasonUnknownType, "type",
			"there is no workflow %q that you may see", clip(x.workflow, maxName))
	}
	if x.worker != "" {
		return Errorf(connect.CodeNotFound, ReasonNotFound, "id",
			"there is no worker %q that you may see", clip(x.worker, maxName))
	}
	return Errorf(connect.CodeNotFound, ReasonNotFound, "id", "there is no such process that you may see")
}

// tenantOf adds the tenant of a worker when a grant of the caller depends on it.
func (s *Server) tenantOf(ctx context.Context, who Principal, x object) (object, error) {
	if !slices.ContainsFunc(who.Grants, func(g Grant) bool { return len(g.Tenants) > 0 }) {
		return x, nil
	}
	if s.cfg.Workers == nil {
		return x, notServed("hosted workers")
	}
	w, err := s.cfg.Workers.Get(ctx, x.worker)
	switch {
	case err == nil:
		x.tenant = w.GetSpec().GetTenant()
	case !missing(err):
		return x, err
	}
	return x, nil
}

// missing reports whether an area says that there is no such object, or not exactly one.
func missing(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.Code == connect.CodeNotFound || e.Code == connect.CodeInvalidArgument)
}

// may reports whether the caller may call a method on the object with that name. Pages
// ask it before they show a button.
func (s *Server) may(ctx context.Context, action, of string) bool {
	who, err := s.authorize(ctx, action)
	if err != nil {
		return false
	}
	c := &request{action: action, scope: scopeOne, object: of, who: who, letters: isHook(of)}
	if of == "" {
		c.scope = scopeFleet
	}
	return s.resolve(ctx, c) == nil && s.permit(who, action, c.at) == nil
}

// mayApply returns an error unless the caller may apply a spec. The caller needs the role at the
// worker as the spec makes it, and at the worker as it is now: so a tenant cannot take another
// tenant's worker. A worker that comes to a tenant gets what that is granted, so the caller also
// needs the role at the tenant: a grant for names of workers is not enough.
func (s *Server) mayApply(ctx context.Context, who Principal, spec *operatorv1.WorkerSpec) error {
	const action = "WorkerService.ApplyWorker"
	if who.Role.atLeast(needs[action]) {
		return nil
	}
	if err := s.permit(who, action, object{worker: spec.GetId(), tenant: spec.GetTenant()}); err != nil {
		return forbidden("%s does not have the role %s at the worker %q of the tenant %q",
			who.Name, needs[action], clip(spec.GetId(), maxName), clip(spec.GetTenant(), maxName))
	}
	old, err := s.cfg.Workers.Get(ctx, spec.GetId())
	if err != nil && !missing(err) {
		return err
	}
	if err == nil {
		if err := s.permit(who, action, workerObject(old)); err != nil {
			return err
		}
		if old.GetSpec().GetTenant() == spec.GetTenant() {
			return nil
		}
	}
	if spec.GetTenant() == "" || who.at(object{tenant: spec.GetTenant()}).atLeast(needs[action]) {
		return nil
	}
	return forbidden("%s does not have the role %s at the tenant %q, whose secrets its worker %q would get",
		who.Name, needs[action], clip(spec.GetTenant(), maxName), clip(spec.GetId(), maxName))
}

func (s *Server) workersByID(ctx context.Context) (map[string]*operatorv1.Worker, error) {
	workers := map[string]*operatorv1.Worker{}
	if s.cfg.Workers == nil {
		return workers, nil
	}
	list, err := s.cfg.Workers.List(ctx)
	for _, w := range list {
		workers[w.GetId()] = w
	}
	return workers, err
}

// seesAudit returns a function that reports whether the caller sees an entry of the audit: its
// own attempts, and attempts at objects that it sees. A caller that sees a worker because of its
// tenant sees the entries since the worker was made, or since the oldest version in its history.
// An earlier worker of that id may have belonged to another tenant, which the entry does not say.
func (s *Server) seesAudit(ctx context.Context, who Principal) (func(*operatorv1.AuditEntry) bool, error) {
	workers := map[string]*operatorv1.Worker{}
	if slices.ContainsFunc(who.Grants, func(g Grant) bool { return len(g.Tenants) > 0 }) {
		var err error
		if workers, err = s.workersByID(ctx); err != nil {
			return nil, err
		}
	}
	return func(e *operatorv1.AuditEntry) bool {
		if e.GetWho() == who.Name && e.GetMethod() == who.Method {
			return true
		}
		kind, name, _ := strings.Cut(e.GetTarget(), "/")
		switch service, _, _ := strings.Cut(e.GetAction(), "."); {
		case service == "ProcessService":
			return who.sees(object{service: e.GetService()}) && e.GetService() != ""
		case service == "WorkflowService" && kind != "":
			return who.sees(object{workflow: kind})
		case service == "WorkerService" && kind == "hook":
			typ, _, _ := hookOf(name)
			return typ != "" && who.sees(object{workflow: typ})
		case service == "WorkerService" && kind == "worker" && name != "" && name != "*":
			x := object{worker: name}
			if w := workers[name]; !e.GetAt().AsTime().Before(w.GetCreatedAt().AsTime()) {
				x.tenant = w.GetSpec().GetTenant()
			}
			return who.sees(x)
		}
		return false
	}, nil
}

// seesFinding reports whether p sees what a finding is about. Every caller sees findings about the
// fleet itself, such as that NATS is away.
func (p Principal) seesFinding(f *operatorv1.Finding, known roster, workers map[string]*operatorv1.Worker) bool {
	switch kind, name, _ := strings.Cut(f.GetSubject(), "/"); kind {
	case "process":
		service, _ := known.service(name)
		return p.sees(object{service: service})
	case "service":
		return p.sees(object{service: name})
	case "workflow":
		return p.sees(object{workflow: name})
	case "worker":
		return p.sees(workerObject(workers[name]))
	}
	return true
}
