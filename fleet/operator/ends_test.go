package operator

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/fleet/presence"
)

// ledger is a journal in memory, oldest first.
type ledger struct {
	chatty
	list []*operatorv1.Event
}

func (l *ledger) Watch(ctx context.Context, to Sink[*operatorv1.Process]) error {
	to.Sync()
	<-ctx.Done()
	return ctx.Err()
}

func (l *ledger) add(now time.Time, n int, process, to string) {
	for range n {
		l.list = append(l.list, &operatorv1.Event{Seq: uint64(len(l.list) + 1), At: timestamppb.New(now), Service: "web", Process: process, Kind: "exit", To: to})
	}
}

func (l *ledger) Events(_ context.Context, q presence.EventQuery) (page []*operatorv1.Event, next uint64, err error) {
	for _, e := range slices.Backward(l.list) {
		switch {
		case e.GetSeq() <= q.After || q.Before != 0 && e.GetSeq() >= q.Before || e.GetAt().AsTime().Before(q.Since):
		case len(page) == q.Limit:
			return page, page[len(page)-1].GetSeq(), nil
		default:
			page = append(page, e)
		}
	}
	return page, 0, nil
}

// A bad end is found among thousands of clean ones, also in a journal that was emptied. When
// there are too many, the diagnosis says so.
func TestBadEndAmongManyCleanOnes(t *testing.T) {
	l := &ledger{}
	s, err := New(Config{Processes: l})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	look := func() (rules []string, not string) {
		t.Helper()
		answer := s.diagnose(t.Context())
		for _, f := range answer.GetFindings() {
			rules = append(rules, f.GetRule())
		}
		return rules, strings.Join(answer.GetNotLookedAt(), "\n")
	}
	now := time.Now()
	l.add(now, 1, "web.1", "oom")
	l.add(now, 5000, "web.2", "clean")
	rules, _ := look()
	if !slices.Contains(rules, "out-of-memory") {
		t.Errorf("behind 5000 clean ends the findings are %v", rules)
	}
	l.add(now, 1, "web.3", "failed")
	if rules, _ := look(); !slices.Contains(rules, "out-of-memory") || !slices.Contains(rules, "process-failed") {
		t.Errorf("after another end the findings are %v", rules)
	}
	l.list = nil
	l.add(now, 1, "web.4", "hung")
	if rules, not := look(); !slices.Contains(rules, "stop-hung") || slices.Contains(rules, "out-of-memory") || strings.Contains(not, "journal") {
		t.Errorf("of a new journal the findings are %v; not looked at: %s", rules, not)
	}
	l.add(now, 30_000, "web.5", "clean")
	l.add(now, 1, "web.6", "oom")
	for range 2 {
		if rules, not := look(); !slices.Contains(rules, "out-of-memory") || !strings.Contains(not, "the journal: there are more ends") {
			t.Errorf("of 30000 ends at once the findings are %v; not looked at: %s", rules, not)
		}
	}
}
