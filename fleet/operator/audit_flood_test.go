package operator

import (
	"testing"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Refused attempts, which every viewer can make, push out no attempt that was done.
func TestRefusedAttemptsPushOutNoOther(t *testing.T) {
	a := new(auditMemory)
	add := func(n int, outcome string) {
		for range n {
			if err := a.Append(t.Context(), &operatorv1.AuditEntry{Outcome: outcome}); err != nil {
				t.Fatal(err)
			}
		}
	}
	count := func() (done, refused int) {
		t.Helper()
		for next := uint64(0); ; {
			page, more, err := a.List(t.Context(), AuditQuery{Before: next, Limit: 70})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page {
				if e.GetOutcome() == "ok" {
					done++
				} else {
					refused++
				}
			}
			if next = more; more == 0 {
				return done, refused
			}
		}
	}
	add(3, "ok")
	add(5000, "permission_denied: no")
	if done, refused := count(); done != 3 || refused != auditSize-3 {
		t.Errorf("after 3 attempts and 5000 refused ones the audit has %d and %d", done, refused)
	}
	add(5000, "ok")
	add(5000, "permission_denied: no")
	if done, refused := count(); done != auditSize-auditRefused || refused != auditRefused {
		t.Errorf("after 5000 of each the audit has %d and %d", done, refused)
	}
	add(5000, "ok")
	if done, refused := count(); done != auditSize || refused != 0 {
		t.Errorf("after 5000 newer attempts the audit has %d and %d", done, refused)
	}
}
