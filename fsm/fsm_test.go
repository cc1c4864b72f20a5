package fsm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/pleme-io/lifecycle-go/fsm"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type phase string

var door = fsm.Table[phase]{
	"open":   {"closed"},
	"closed": {"open", "locked", "closed"}, // a slammed door stays closed
	"locked": {},
}

func TestTableValidateNamesEveryFault(t *testing.T) {
	if err := door.Validate(); err != nil {
		t.Fatalf("a sound table: %v", err)
	}
	tests := map[string]struct {
		table fsm.Table[phase]
		want  []string
	}{
		"empty": {nil, []string{"declares no states"}},
		"typo":  {fsm.Table[phase]{"open": {"colsed"}, "closed": {}}, []string{`"open" -> "colsed"`, "not declared", `"closed"`}},
		"twice": {fsm.Table[phase]{"open": {"shut", "shut"}, "shut": {}}, []string{`"open" -> "shut" is declared twice`}},
		"blank": {fsm.Table[phase]{"": {}}, []string{"empty name"}},
		"both":  {fsm.Table[phase]{"a": {"b", "c", "c"}, "c": {}}, []string{`"a" -> "b"`, `"a" -> "c" is declared twice`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := test.table.Validate()
			if !errors.Is(err, fsm.ErrInvalidTable) {
				t.Fatalf("got %v, want ErrInvalidTable", err)
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
}

func TestTableAnswersFromItsEdgesAlone(t *testing.T) {
	if !door.IsTerminal("locked") || door.IsTerminal("open") || !door.IsTerminal("window") {
		t.Error("a state without a successor and an unknown state must be terminal")
	}
	if !door.IsValidTransition("closed", "closed") || door.IsValidTransition("open", "open") || door.IsValidTransition("window", "open") {
		t.Error("a declared edge, also a self-edge, must be valid, and no other")
	}
	if got := door.Phases(); !slices.Equal(got, []phase{"closed", "locked", "open"}) {
		t.Errorf("Phases() = %v, want them sorted", got)
	}
	if got := door.TerminalPhases(); !slices.Equal(got, []phase{"locked"}) {
		t.Errorf("TerminalPhases() = %v", got)
	}
	if got := len(door.Edges()); got != 4 {
		t.Errorf("Edges() has %d, want 4", got)
	}
}

func TestMachineRefusesWhatTheTableDoesNotAllow(t *testing.T) {
	var events fsm.Dispatcher
	sub := events.Subscribe(8)
	defer sub.Close()
	m := fsm.MustNew("door", "front", door, "open", &events)

	err := m.To("locked", nil)
	var refused *fsm.TransitionError
	if !errors.As(err, &refused) || !errors.Is(err, fsm.ErrInvalidTransition) {
		t.Fatalf("got %v, want a TransitionError", err)
	}
	if refused.From != "open" || refused.To != "locked" || !slices.Equal(refused.Allowed, []string{"closed"}) {
		t.Errorf("got %+v", refused)
	}
	if got := m.State(); got != "open" {
		t.Errorf("a refused change moved the machine to %q", got)
	}
	if err := m.To("Banana", nil); !errors.Is(err, fsm.ErrInvalidTransition) {
		t.Errorf("To an unknown state: %v", err)
	}
	if err := m.To("closed", nil); err != nil {
		t.Fatal(err)
	}
	if e, _ := sub.Next(t.Context()); e.Seq != 1 || e.To != "closed" {
		t.Errorf("first event is %+v: a refused change must not make one", e)
	}
	if _, err := fsm.New("door", "back", door, "ajar", nil); !errors.Is(err, fsm.ErrInvalidTable) {
		t.Errorf("an unknown initial state: %v", err)
	}
}

func TestMachineDoneClosesOnTerminalStates(t *testing.T) {
	m := fsm.MustNew("door", "front", door, "closed", nil)
	done := m.Done()
	select {
	case <-done:
		t.Fatal("done before the end")
	default:
	}
	if err := m.To("locked", nil); err != nil {
		t.Fatal(err)
	}
	<-done
	<-m.Done()
	late := fsm.MustNew("door", "front", door, "locked", nil)
	<-late.Done()
}

func TestMachineWaitSeesStatesThatAreLeftAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := fsm.MustNew("door", "front", door, "open", nil)
		got := make(chan phase, 1)
		go func() {
			s, err := m.Wait(t.Context(), func(s phase) bool { return s == "closed" })
			if err != nil {
				t.Error(err)
			}
			got <- s
		}()
		synctest.Wait()
		_ = m.To("closed", nil)
		_ = m.To("open", nil)
		if s := <-got; s != "closed" {
			t.Errorf("Wait returned %q", s)
		}

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if s, err := m.Wait(ctx, func(s phase) bool { return s == "locked" }); !errors.Is(err, context.Canceled) || s != "open" {
			t.Errorf("cancelled Wait = %q, %v", s, err)
		}
	})
}

func TestEventsArriveInOrderPerMachine(t *testing.T) {
	var events fsm.Dispatcher
	const machines, changes = 8, 200
	sub := events.Subscribe(machines * changes)
	var wg sync.WaitGroup
	for i := range machines {
		m := fsm.MustNew("door", fmt.Sprint(i), door, "open", &events)
		for range 2 { // two goroutines change each machine
			wg.Go(func() {
				for done := 0; done < changes/2; {
					to := phase("open")
					if m.State() == "open" {
						to = "closed"
					}
					if m.To(to, nil) == nil {
						done++
					}
				}
			})
		}
	}
	wg.Wait()
	sub.Close()
	seq, last := map[string]uint64{}, map[string]string{}
	for e := range sub.All(t.Context()) {
		if e.Seq != seq[e.Name]+1 {
			t.Fatalf("machine %s: event %d after %d", e.Name, e.Seq, seq[e.Name])
		}
		if last[e.Name] != "" && e.From != last[e.Name] {
			t.Fatalf("machine %s left %q, but had entered %q", e.Name, e.From, last[e.Name])
		}
		seq[e.Name], last[e.Name] = e.Seq, e.To
	}
	for name, n := range seq {
		if n != changes {
			t.Errorf("machine %s: %d events, want %d", name, n, changes)
		}
	}
}

func TestSlowReaderGetsAGapAndTheNewestEvents(t *testing.T) {
	var events fsm.Dispatcher
	sub := events.Subscribe(4)
	defer sub.Close()
	m := fsm.MustNew("door", "front", door, "closed", &events)
	for range 10 {
		if err := m.To("closed", nil); err != nil {
			t.Fatal(err)
		}
	}
	e, _ := sub.Next(t.Context())
	if !e.IsGap() || e.Seq != 6 {
		t.Fatalf("first is %+v, want a gap of 6", e)
	}
	for want := uint64(7); want <= 10; want++ {
		if e, _ := sub.Next(t.Context()); e.Seq != want {
			t.Errorf("got event %d, want %d", e.Seq, want)
		}
	}
}

func TestListenerThatBlocksDelaysNoTransition(t *testing.T) {
	var events fsm.Dispatcher
	release, got := make(chan struct{}), 0
	stop := events.Listen(2, func(e fsm.Event) {
		<-release
		got++
	})
	m := fsm.MustNew("door", "front", door, "closed", &events)
	for range 1000 { // would block for ever if a listener could block a machine
		_ = m.To("closed", nil)
	}
	close(release)
	stop()
	stop()
	if got < 2 || got > 4 {
		t.Errorf("%d calls, want the last two events, a gap, and at most one taken before", got)
	}
}

func TestForwardedEventsReachTheReadersOfTheWhole(t *testing.T) {
	var whole, part fsm.Dispatcher
	part.Forward(&whole)
	sub := whole.Subscribe(2)
	defer sub.Close()
	m := fsm.MustNew("door", "front", door, "closed", &part)
	_ = m.To("open", nil)
	if e, err := sub.Next(t.Context()); err != nil || e.To != "open" {
		t.Errorf("got %+v, %v", e, err)
	}
	defer func() {
		if recover() == nil {
			t.Error("forwarding in a circle must panic, or it would never end")
		}
	}()
	whole.Forward(&part)
}

func TestSubscriptionCloseLetsTheRestBeRead(t *testing.T) {
	var events fsm.Dispatcher
	sub := events.Subscribe(0) // keeps at least one event
	m := fsm.MustNew("door", "front", door, "closed", &events)
	_ = m.To("open", errors.New("wind"))
	sub.Close()
	sub.Close()
	_ = m.To("closed", nil)
	if e, err := sub.Next(t.Context()); err != nil || e.To != "open" || e.Cause == nil {
		t.Errorf("got %+v, %v", e, err)
	}
	for range 2 {
		if _, err := sub.Next(t.Context()); !errors.Is(err, fsm.ErrClosed) {
			t.Errorf("after the rest: %v", err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	open := events.Subscribe(1)
	defer open.Close()
	if _, err := open.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled Next: %v", err)
	}
}

func TestDiagramsEscapeEveryName(t *testing.T) {
	nasty := fsm.Table[phase]{
		`a"b]-->c`: {"end"},
		"end":      {"s0", "x\n[*]"},
		"s0":       {},
		"x\n[*]":   {},
	}
	d := fsm.Drawing[phase]{
		Initial: `a"b]-->c`, Current: "s0",
		Label: func(e fsm.Edge[phase]) string {
			if e.To == "end" {
				return "50% \"; drop"
			}
			return ""
		},
	}
	mermaid := nasty.Mermaid(d)
	for _, line := range strings.Split(strings.TrimSpace(mermaid), "\n")[1:] {
		ok := strings.HasPrefix(line, "    ") && strings.Count(line, "-->") <= 1
		if !ok {
			t.Errorf("a name is not escaped: %q", line)
		}
	}
	for _, want := range []string{"s2 --> s0", "class s0 current", "[*] --> s1", "#59; drop"} {
		if !strings.Contains(mermaid, want) {
			t.Errorf("no %q in\n%s", want, mermaid)
		}
	}
	dot := nasty.DOT(d)
	for _, want := range []string{`"a\"b]-->c" -> "end" [label="50% \"; drop"]`, `"end" -> "s0"`, `"x [*]" [peripheries=2]`} {
		if !strings.Contains(dot, want) {
			t.Errorf("no %q in\n%s", want, dot)
		}
	}
}

func FuzzMermaidKeepsOneStatementALine(f *testing.F) {
	f.Add("plain", "with space", "label")
	f.Add("end", "-->", "; %% {}")
	f.Fuzz(func(t *testing.T, a, b, label string) {
		table := fsm.Table[string]{a: {b}, b: {}}
		out := table.Mermaid(fsm.Drawing[string]{Initial: a, Label: func(fsm.Edge[string]) string { return label }})
		for _, line := range strings.Split(strings.TrimSuffix(out, "\n"), "\n")[1:] {
			if !strings.HasPrefix(line, "    ") || strings.Count(line, "-->") > 1 || strings.Contains(line, "%%") {
				t.Errorf("a name or label is not escaped: %q", line)
			}
		}
	})
}

func ExampleTable() {
	door := fsm.Table[string]{"open": {"closed"}, "closed": {"open", "locked"}, "locked": {}}
	fmt.Println(door.Validate(), door.TerminalPhases())
	fmt.Print(door.Mermaid(fsm.Drawing[string]{Initial: "open"}))
	// Output:
	// <nil> [locked]
	// stateDiagram-v2
	//     [*] --> open
	//     closed --> open
	//     closed --> locked
	//     open --> closed
	//     locked --> [*]
}

func ExampleMachine() {
	door := fsm.Table[string]{"open": {"closed"}, "closed": {"open", "locked"}, "locked": {}}
	m := fsm.MustNew("door", "front", door, "open", nil)
	fmt.Println(m.To("locked", nil))
	fmt.Println(m.To("closed", nil), m.State())
	// Output:
	// door "front": fsm: invalid transition: "open" -> "locked" (allowed are "closed")
	// <nil> closed
}

func ExampleDispatcher_Subscribe() {
	var events fsm.Dispatcher
	sub := events.Subscribe(16)
	m := fsm.MustNew("door", "front", fsm.Table[string]{"open": {"closed"}, "closed": {}}, "open", &events)
	_ = m.To("closed", nil)
	sub.Close()
	for e := range sub.All(context.Background()) {
		fmt.Println(e.Kind, e.Name, e.Seq, e.From, "->", e.To)
	}
	// Output: door front 1 open -> closed
}

func BenchmarkMachineTo(b *testing.B) {
	for _, readers := range []int{0, 1} {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) {
			var events fsm.Dispatcher
			for range readers {
				defer events.Subscribe(64).Close()
			}
			m := fsm.MustNew("door", "front", door, "closed", &events)
			b.ReportAllocs()
			for b.Loop() {
				_ = m.To("closed", nil)
			}
		})
	}
}
