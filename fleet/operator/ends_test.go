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
	list  []*operatorv1.Event
	asked []presence.EventQuery
	told  int // events
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
	l.asked = append(l.asked, q)
	for _, e := range slices.Backward(l.list) {
		switch {
		case !slices.Contains(q.Kinds, e.GetKind()) || q.Service != "" && e.GetService() != q.Service:
		case e.GetSeq() <= q.After || q.Before != 0 && e.GetSeq() >= q.Before || e.GetAt().AsTime().Before(q.Since):
		case len(page) == q.Limit:
			return page, page[len(page)-1].GetSeq(), nil
		default:
			page = append(page, e)
			l.told++
		}
	}
	return page, 0, nil
}

// What was not read of the last hour stays unread until it is older.
func TestEventsThatWereNotReadAreTold(t *testing.T) {
	l := &ledger{}
	began := time.Now()
	l.add(began, maxPast+1000, "web.1", "clean")
	l.add(began.Add(time.Minute), 1, "web.2", "oom")
	var events recentEvents
	for _, look := range []struct {
		at   time.Duration
		told bool
	}{{time.Minute, true}, {2 * time.Minute, true}, {59 * time.Minute, true}, {61 * time.Minute, false}} {
		err := events.read(t.Context(), l, began.Add(look.at), "exit")
		if tooMany := events.tooMany(); tooMany != nil != look.told || err != nil {
			t.Errorf("after %v: %v, %v", look.at, tooMany, err)
		}
		if events.list[0].GetTo() != "oom" {
			t.Errorf("after %v the newest of %d events is %v", look.at, len(events.list), events.list[0])
		}
	}
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

// A diagnosis reads each event once, and how the processes of the fleet began only when one has
// disappeared.
func TestEventsAreReadOnce(t *testing.T) {
	l := &ledger{}
	s, err := New(Config{Processes: l})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	look := func() (events, starts int) {
		t.Helper()
		l.asked, l.told = nil, 0
		s.diagnose(t.Context())
		for _, q := range l.asked {
			if slices.Contains(q.Kinds, "joined") {
				starts++
			}
		}
		return l.told, starts
	}
	now := time.Now()
	l.add(now, 5000, "web.1", "clean")
	if n, starts := look(); n != 5000 || starts != 0 {
		t.Errorf("the first look reads %d of 5000 ends, and the starts %d times", n, starts)
	}
	l.add(now, 2, "web.2", "failed")
	if n, starts := look(); n != 3 || starts != 0 { // one that it knows shows that the journal is the same
		t.Errorf("the next look reads %d events, and the starts %d times", n, starts)
	}
	lost := &operatorv1.Event{Seq: 5003, At: timestamppb.New(now), Service: "shop", Process: "shop.1", Kind: "lost", To: "lost", Life: timestamppb.New(now)}
	l.list = append(l.list, lost)
	if _, starts := look(); starts != 1 {
		t.Errorf("when a process has disappeared, the starts are read %d times", starts)
	}
}

// A process that disappeared has the end that its next life tells, whenever that begins. The end
// of another life changes nothing.
func TestNextLifeHasTheBetterWords(t *testing.T) {
	l := &ledger{}
	s, err := New(Config{Processes: l})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	look := func() (list []string) {
		for _, f := range s.diagnose(t.Context()).GetFindings() {
			list = append(list, f.GetRule()+" "+f.GetSubject()+" "+f.GetCause())
		}
		return list
	}
	now := time.Now()
	life := func(n int) *timestamppb.Timestamp { return timestamppb.New(now.Add(-time.Duration(n) * time.Hour)) }
	event := func(e *operatorv1.Event) {
		e.Seq, e.At, e.Service = uint64(len(l.list)+1), timestamppb.New(now), "web"
		l.list = append(l.list, e)
	}
	event(&operatorv1.Event{Kind: "joined", Process: "web.0"})
	event(&operatorv1.Event{Kind: "lost", Process: "web.1", To: "lost", Cause: "not heard since 11:59", Life: life(1)})
	event(&operatorv1.Event{Kind: "joined", Process: "web.9", From: "failed", Cause: "no route", Life: life(9)})
	event(&operatorv1.Event{Kind: "joined", Process: "web.8"})
	if list := look(); len(list) != 1 || list[0] != "process-lost process/web.1 not heard since 11:59" {
		t.Errorf("before its next life: %q", list)
	}
	event(&operatorv1.Event{Kind: "joined", Process: "web.2", From: "panicked", ExitStatus: 2, Cause: "the previous life ended: index out of range", Life: life(1)})
	list := look()
	if len(list) != 1 || !strings.HasPrefix(list[0], "process-failed process/web.1 it panicked") || !strings.Contains(list[0], "index out of range; not heard since") {
		t.Errorf("after its next life: %q", list)
	}
	event(&operatorv1.Event{Kind: "lost", Process: "web.2", To: "lost", Cause: "not heard since 12:01", Life: life(2)})
	event(&operatorv1.Event{Kind: "joined", Process: "web.3", From: "clean", Life: life(2)})
	if again := look(); !slices.Equal(again, list) {
		t.Errorf("a life that ended cleanly while NATS was away: %q", again)
	}
}
