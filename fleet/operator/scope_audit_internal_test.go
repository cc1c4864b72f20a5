package operator

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// remade is hosted workers with one that was made at a time.
type remade struct {
	Workers
	at time.Time
}

func (r remade) List(context.Context) ([]*operatorv1.Worker, error) {
	return []*operatorv1.Worker{{Id: "w", CreatedAt: timestamppb.New(r.at), Spec: &operatorv1.WorkerSpec{Id: "w", Tenant: "b"}}}, nil
}

// A tenant that takes the id of a deleted worker does not see what others did with that
// worker. Its own attempts stay, and so do the attempts of a caller that may see the id.
func TestAuditOfAnEarlierWorker(t *testing.T) {
	at := time.Now()
	s := &Server{cfg: Config{Workers: remade{at: at}}}
	entry := func(who, target string, after time.Duration) *operatorv1.AuditEntry {
		return &operatorv1.AuditEntry{Who: who, Method: "token", Action: "WorkerService.Stop", Target: target, At: timestamppb.New(at.Add(after))}
	}
	for what, tc := range map[string]struct {
		grant Grant
		entry *operatorv1.AuditEntry
		want  bool
	}{
		"before, by another":          {Grant{Tenants: []string{"b"}}, entry("ada", "worker/w", -time.Second), false},
		"before, its own":             {Grant{Tenants: []string{"b"}}, entry("bob", "worker/w", -time.Second), true},
		"its creation":                {Grant{Tenants: []string{"b"}}, entry("ada", "worker/w", 0), true},
		"after":                       {Grant{Tenants: []string{"b"}}, entry("ada", "worker/w", time.Second), true},
		"after, another tenant":       {Grant{Tenants: []string{"a"}}, entry("ada", "worker/w", time.Second), false},
		"before, who may see the id":  {Grant{Workers: []string{"w"}}, entry("ada", "worker/w", -time.Second), true},
		"a worker that is deleted":    {Grant{Tenants: []string{"b", "*"}}, entry("ada", "worker/gone", time.Second), false},
		"deleted, who may see the id": {Grant{Workers: []string{"gone"}}, entry("ada", "worker/gone", time.Second), true},
	} {
		tc.grant.Role = RoleViewer
		sees, err := s.seesAudit(t.Context(), Principal{Name: "bob", Method: "token", Grants: []Grant{tc.grant}})
		if err != nil || sees(tc.entry) != tc.want {
			t.Errorf("%s: %v, want %v (%v)", what, !tc.want, tc.want, err)
		}
	}
}
