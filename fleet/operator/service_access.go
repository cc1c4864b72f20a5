package operator

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// accessService implements the contract's AccessService.
type accessService struct{ s *Server }

func (a accessService) WhoAmI(ctx context.Context, req *operatorv1.WhoAmIRequest) (*operatorv1.WhoAmIResponse, error) {
	c := requestOf(req)
	return call(ctx, a.s, c, func(context.Context) (*operatorv1.WhoAmIResponse, error) {
		me := &operatorv1.WhoAmIResponse{Name: c.who.Name, Role: string(c.who.Role), Method: c.who.Method}
		for _, g := range c.who.Grants {
			me.Grants = append(me.Grants, &operatorv1.Grant{
				Role:      string(g.Role),
				Services:  g.Services,
				Workflows: g.Workflows,
				Workers:   g.Workers,
				Tenants:   g.Tenants,
			})
		}
		return me, nil
	})
}

func (a accessService) ListAudit(ctx context.Context, req *operatorv1.ListAuditRequest) (*operatorv1.ListAuditResponse, error) {
	c := requestOf(req)
	page := c.paging(req)
	q := AuditQuery{
		Who:     req.GetWho(),
		Action:  req.GetAction(),
		Target:  req.GetTarget(),
		Refused: req.GetRefused(),
		Since:   c.time("since", req.GetSince()),
		Until:   c.time("until", req.GetUntil()),
		Before:  page.number(&c.violations),
		Limit:   page.size,
	}
	return call(ctx, a.s, c, func(ctx context.Context) (*operatorv1.ListAuditResponse, error) {
		sees := func(*operatorv1.AuditEntry) bool { return true }
		if c.who.scoped() {
			var err error
			if sees, err = a.s.seesAudit(ctx, c.who); err != nil {
				return nil, err
			}
		}
		entries, next, err := seenPage(q.Limit, q.Before, func(before uint64, limit int) ([]*operatorv1.AuditEntry, uint64, error) {
			q.Before, q.Limit = before, limit
			return a.s.cfg.AuditLog.List(ctx, q)
		}, sees)
		for i, e := range entries { // of an attempt of its own at a process that it does not see
			if e.GetService() != "" && !c.who.sees(object{service: e.GetService()}) {
				entries[i] = proto.CloneOf(e)
				entries[i].Service = ""
			}
		}
		return &operatorv1.ListAuditResponse{Entries: entries, NextPageToken: page.nextNumber(next)}, err
	})
}
