// Command beside is one release of a program, in TestReleasesSideBySide. It changes
// entities until it is killed, and prints what was acknowledged. The test builds it in
// this tree and in one of an older commit, so it uses what both have.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// Flight is the record of the program's first release.
type Flight struct {
	kind string

	ID     string         `json:"entity_id" lifecycle:"id"`
	State  string         `json:"phase" lifecycle:"phase,readonly"`
	Writer string         `json:"writer" lifecycle:"operator_writable"` // of the last change
	Tally  map[string]int `json:"tally"`                                // changes, by writer
	Crew   []Member       `json:"crew"`
	Site   Site           `json:"site"`
}

type Member struct {
	Name  string `json:"name" lifecycle:"key"`
	Trips int    `json:"trips"`
}

type Site struct {
	Visits int `json:"visits"`
}

func (f *Flight) EntityID() string       { return f.ID }
func (f *Flight) Workflow() string       { return f.kind }
func (f *Flight) Phase() string          { return f.State }
func (f *Flight) IsTerminal() bool       { return false }
func (f *Flight) KVBucket() string       { return "FLIGHTS" }
func (f *Flight) KVKey(id string) string { return f.kind + "." + id }
func (f *Flight) ParentEntityID() string { return "" }

// Flight2 is the record of the next release. It has new members at every depth, with
// numbers that a float does not hold.
type Flight2 struct {
	kind string

	ID      string           `json:"entity_id" lifecycle:"id"`
	State   string           `json:"phase" lifecycle:"phase,readonly"`
	Writer  string           `json:"writer" lifecycle:"operator_writable"`
	Tally   map[string]int   `json:"tally"`
	Crew    []Member2        `json:"crew"`
	Site    Site2            `json:"site"`
	Battery map[string]int64 `json:"battery,omitempty"`
}

type Member2 struct {
	Name  string           `json:"name" lifecycle:"key"`
	Trips int              `json:"trips"`
	Hours map[string]int64 `json:"hours,omitempty"`
}

type Site2 struct {
	Visits int              `json:"visits"`
	Seen   map[string]int64 `json:"seen,omitempty"`
}

func (f *Flight2) EntityID() string       { return f.ID }
func (f *Flight2) Workflow() string       { return f.kind }
func (f *Flight2) Phase() string          { return f.State }
func (f *Flight2) IsTerminal() bool       { return false }
func (f *Flight2) KVBucket() string       { return "FLIGHTS" }
func (f *Flight2) KVKey(id string) string { return f.kind + "." + id }
func (f *Flight2) ParentEntityID() string { return "" }

// beyond is more than a float64 counts in ones.
const beyond = 1 << 53

var table = workflow.Transitions{"idle": {"busy", "gone"}, "busy": {"idle", "gone"}, "gone": {}}

// table2 has one phase more.
var table2 = func() workflow.Transitions {
	t := maps.Clone(table)
	t["busy"] = []string{"idle", "gone", "held"}
	t["held"] = []string{"idle", "busy"}
	return t
}()

// release is what this process is: WRITER names it, GENERATION is 1 or 2, KINDS are the
// workflows that it writes, ENTITIES how many each has.
type release struct {
	writer string
	second bool
	m      *workflow.Manager
}

func main() {
	ctx := context.Background()
	quiet := slog.New(slog.DiscardHandler)
	var b *broker.Broker
	for err := errors.New("not yet"); err != nil; {
		b, err = broker.Connect(ctx, broker.Config{URL: os.Getenv("URL"), Logger: quiet, ReconnectWait: 20 * time.Millisecond})
	}
	r := &release{writer: os.Getenv("WRITER"), second: os.Getenv("GENERATION") == "2", m: workflow.NewManager(b.JetStream(), quiet)}
	var n int
	if _, err := fmt.Sscan(os.Getenv("ENTITIES"), &n); err != nil {
		fail(err)
	}
	kinds := strings.Split(os.Getenv("KINDS"), ",")
	for _, kind := range kinds {
		if err := r.register(kind); err != nil {
			fail(err)
		}
		for i := range n {
			err := r.create(ctx, kind, fmt.Sprint(i))
			if err != nil && !errors.Is(err, workflow.ErrEntityExists) && !errors.Is(err, workflow.ErrOutcomeUnknown) {
				fail(err)
			}
		}
	}
	var writers sync.WaitGroup
	for range 2 {
		writers.Go(func() {
			for {
				r.write(ctx, kinds[rand.IntN(len(kinds))], fmt.Sprint(rand.IntN(n)))
				time.Sleep(rand.N(6 * time.Millisecond)) // the others run on the same machine
			}
		})
	}
	writers.Wait()
}

func fail(err error) {
	fmt.Println("error", err)
	os.Exit(1)
}

func (r *release) register(kind string) error {
	if !r.second {
		return r.m.Register(kind, func() workflow.Participant { return &Flight{kind: kind} }, table)
	}
	var opts []workflow.RegisterOption
	if kind == "raised" {
		opts = append(opts, workflow.WithVersion(1, func(_ int, record []byte) ([]byte, error) { return record, nil }))
	}
	return r.m.Register(kind, func() workflow.Participant { return &Flight2{kind: kind} }, table2, opts...)
}

func (r *release) create(ctx context.Context, kind, id string) error {
	if r.second {
		return r.m.Create(ctx, &Flight2{kind: kind, ID: id, State: "idle", Tally: map[string]int{}, Crew: []Member2{{Name: "a"}, {Name: "b"}}})
	}
	return r.m.Create(ctx, &Flight{kind: kind, ID: id, State: "idle", Tally: map[string]int{}, Crew: []Member{{Name: "a"}, {Name: "b"}}})
}

// bump counts one change, in every member that the release knows.
func (r *release) bump(p workflow.Participant) error {
	switch f := p.(type) {
	case *Flight:
		f.Writer = r.writer
		f.Tally[r.writer]++
		f.Crew[rand.IntN(len(f.Crew))].Trips++
		f.Site.Visits++
	case *Flight2:
		member := &f.Crew[rand.IntN(len(f.Crew))]
		f.Writer = r.writer
		f.Tally[r.writer]++
		member.Trips++
		f.Site.Visits++
		f.Battery, member.Hours, f.Site.Seen = count(f.Battery, r.writer), count(member.Hours, r.writer), count(f.Site.Seen, r.writer)
	}
	return nil
}

func count(counts map[string]int64, writer string) map[string]int64 {
	if counts == nil {
		counts = make(map[string]int64)
	}
	counts[writer] = max(counts[writer], beyond) + 1
	return counts
}

// write does one write and prints its outcome: the word, the workflow and the entity.
func (r *release) write(ctx context.Context, kind, id string) {
	to := "idle"
	if p, err := r.m.Get(ctx, kind, id); err == nil && p.Phase() == "idle" {
		to = "busy"
	} else if err == nil && r.second && rand.IntN(2) == 0 {
		to = "held"
	}
	said, opts := "counted", []workflow.WriteOption{}
	var err error
	switch rand.IntN(6) {
	case 0, 1:
		err = r.m.Update(ctx, kind, id, r.bump)
	case 2, 3:
		err = r.m.TransitionWith(ctx, kind, id, to, workflow.TransitionSourceComponent, "", r.bump)
	case 4:
		if said = "wrote"; kind == "plain" { // whose writes name their writer
			return
		}
		if opts = r.extras(); len(opts) > 0 {
			said = "timed"
		}
		err = r.m.Transition(ctx, kind, id, to, workflow.TransitionSourceComponent, "", opts...)
	case 5:
		said = "wrote"
		err = r.m.UpdateFromOperator(ctx, kind, id, map[string]any{"writer": r.writer})
	}
	switch {
	case err == nil:
		fmt.Println(said, kind, id)
	case errors.Is(err, workflow.ErrOutcomeUnknown):
		fmt.Println("unknown", kind, id)
	case errors.Is(err, workflow.ErrInvalidTransition), errors.Is(err, workflow.ErrUpdateRetriesExhausted):
	case errors.Is(err, workflow.ErrDegraded):
		fmt.Println("refused", kind, id)
	default:
		fail(err)
	}
}
