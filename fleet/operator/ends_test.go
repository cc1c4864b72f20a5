package operator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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
	slow  time.Duration
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
	time.Sleep(l.slow)
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

// What was not read of the last hour stays unread until it is older, also when few of the events are
// kept.
func TestEventsThatWereNotReadAreTold(t *testing.T) {
	l := &ledger{}
	began := time.Now()
	l.add(began, maxPast+1000, "web.1", "clean")
	l.add(began.Add(time.Minute), 1, "web.2", "oom")
	var events recentEvents
	isBad := func(e *operatorv1.Event) bool { return e.GetTo() != "clean" }
	for _, look := range []struct {
		at   time.Duration
		told bool
	}{{time.Minute, true}, {2 * time.Minute, true}, {59 * time.Minute, true}, {61 * time.Minute, false}} {
		err := events.read(t.Context(), l, began.Add(look.at), []string{"exit"}, isBad)
		if told := errors.Is(err, errEnds); told != look.told || err != nil && !told {
			t.Errorf("after %v: %v", look.at, err)
		}
		if isOld := look.at > time.Hour+time.Minute; len(events.list) != 1 && !isOld {
			t.Errorf("after %v there are %d events", look.at, len(events.list))
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

// A number of dead letters that grows says by how many, and within which time; one that stands
// still or falls says nothing.
func TestDeadLettersThatGrow(t *testing.T) {
	var d diagnosed
	now := time.Now()
	look := func(after time.Duration, n int64) string { return d.noteLetters(now.Add(after), "w", n) }
	for _, step := range []struct {
		after time.Duration
		n     int64
		want  string
	}{
		{0, 5, ""}, {10 * time.Second, 9, ""}, {5 * time.Minute, 17, ", 12 of them within 5m0s"},
		{6 * time.Minute, 17, ", 12 of them within 6m0s"}, {17 * time.Minute, 17, ""}, {18 * time.Minute, 3, ""}, {20 * time.Minute, 4, ", 1 of them within 2m0s"},
	} {
		if got := look(step.after, step.n); got != step.want {
			t.Errorf("%d after %v: %q, want %q", step.n, step.after, got, step.want)
		}
	}
}

// A page that shows what is wrong does not wait for a diagnosis that takes long: it shows the latest
// one. When another one says something else, the page is told, although no process has changed.
func TestPageIsToldOfAnotherDiagnosis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{}
		s, err := New(Config{Processes: l})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close(t.Context())
		ctx, cancel := context.WithCancel(WithPrincipal(t.Context(), Principal{Name: "ann", Role: RoleViewer}))
		wrong := func() (n int, took time.Duration) {
			t.Helper()
			begun := time.Now()
			answer, err := processService{s: s, isPage: true}.Diagnose(context.WithoutCancel(ctx), &operatorv1.DiagnoseRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return len(answer.GetFindings()), time.Since(begun)
		}
		if n, _ := wrong(); n != 0 {
			t.Fatalf("a fleet without a fault has %d findings", n)
		}
		news, done := 0, make(chan error)
		go func() {
			done <- s.changed(ctx, "processes", "", func(isNew bool) error {
				if isNew {
					news++
				}
				return nil
			})
		}()
		time.Sleep(time.Minute + pageBeat/2) // between two beats
		synctest.Wait()
		quiet := news
		l.slow = 700 * time.Millisecond
		l.add(time.Now(), 1, "web.1", "failed")
		if n, took := wrong(); n != 0 || took != 0 {
			t.Errorf("the page has %d findings after %v, want the latest diagnosis at once", n, took)
		}
		time.Sleep(3 * pageBeat)
		synctest.Wait()
		if news != quiet+1 {
			t.Errorf("the page is told %d times, and %d before, of a process that failed", news, quiet)
		}
		if n, took := wrong(); n != 1 || took != 0 {
			t.Errorf("the page has %d findings after %v, want the one at once", n, took)
		}
		cancel()
		<-done
		time.Sleep(time.Minute)
		if n, took := wrong(); n != 1 || took == 0 {
			t.Errorf("after a minute in which nobody looked the page has %d findings after %v, want those of a new look", n, took)
		}
	})
}
