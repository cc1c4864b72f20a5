package metrics_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/pleme-io/lifecycle-go/fleet/broker/brokertest"
	"github.com/pleme-io/lifecycle-go/fleet/internal/diagnosis"
	"github.com/pleme-io/lifecycle-go/fleet/operator"
	"github.com/pleme-io/lifecycle-go/fleet/operator/metrics"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, brokertest.ServerLeaks(goleak.IgnoreTopFunction)...)
}

// workers are hosted workers of which one has dead letters.
type workers struct{ operator.Workers }

func (workers) List(context.Context) ([]*operatorv1.Worker, error) {
	return []*operatorv1.Worker{{Id: "thumbs", State: "running", Desired: "running", DeadLetters: 3}}, nil
}

func (workers) DeadLetters(context.Context, string, string, uint64, int) ([]*operatorv1.DeadLetter, error) {
	return nil, nil
}

// The metrics count what the front page shows.
func TestFindingsAreCounted(t *testing.T) {
	s, err := operator.New(operator.Config{Workers: workers{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	c := metrics.New(s)
	if problems, err := testutil.CollectAndLint(c); err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	if n := testutil.CollectAndCount(c, "lifecycle_fleet_findings"); n != len(diagnosis.Rules) {
		t.Errorf("%d series for %d rules", n, len(diagnosis.Rules))
	}
	var want strings.Builder
	want.WriteString("# HELP lifecycle_fleet_findings Things that are wrong in the fleet now, by rule.\n# TYPE lifecycle_fleet_findings gauge\n")
	for _, r := range diagnosis.Rules {
		fmt.Fprintf(&want, "lifecycle_fleet_findings{rule=%q,severity=%q} %d\n", r.Name, r.Severity, map[bool]int{true: 1}[r.Name == "dead-letters"])
	}
	want.WriteString("# HELP lifecycle_fleet_not_looked_at Areas of the fleet that could not be looked at.\n# TYPE lifecycle_fleet_not_looked_at gauge\nlifecycle_fleet_not_looked_at 0\n")
	if err := testutil.CollectAndCompare(c, strings.NewReader(want.String()), "lifecycle_fleet_findings", "lifecycle_fleet_not_looked_at"); err != nil {
		t.Error(err)
	}
}
