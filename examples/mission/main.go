// Command mission flies a few hundred drone surveys from two processes. Each
// mission is a durable workflow: its phases change along a table, in any
// process, and outlive all of them. Half-way one process is killed. Run it:
//
//	go run ./examples/mission
//
// It needs no setup: a NATS server runs inside the first process, and
// the second one connects to it on the loopback.
//
// At the end every mission is in a terminal phase, also the missions of the killed process,
// and the history of one is printed.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go"
	"github.com/pleme-io/lifecycle-go/fleet/broker"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// Mission is the state of a survey. The tags say what the library may do
// with its fields.
type Mission struct {
	ID       string `json:"id"       lifecycle:"id"`
	State    string `json:"phase"    lifecycle:"phase"`
	Pilot    string `json:"pilot"    lifecycle:"indexable"`
	Pictures int    `json:"pictures"`
}

const survey = "drone-survey"

func (m *Mission) EntityID() string       { return m.ID }
func (m *Mission) Workflow() string       { return survey }
func (m *Mission) Phase() string          { return m.State }
func (m *Mission) IsTerminal() bool       { return workflow.DefaultIsTerminal(m, phases) }
func (m *Mission) KVBucket() string       { return "MISSIONS" }
func (m *Mission) KVKey(id string) string { return id }
func (m *Mission) ParentEntityID() string { return "" }

var phases = workflow.Transitions{
	"planning":  {"flying", "aborted"},
	"flying":    {"capturing", "landing", "aborted"},
	"capturing": {"flying"},
	"landing":   {"completed", "failed"},
	"completed": {},
	"failed":    {},
	"aborted":   {},
}

// forgotten is the pilot of missions that no process flies. Their deadline ends
// them.
const forgotten = "no pilot"

func main() {
	url := flag.String("url", "", "the NATS of the first process, for the second one")
	missions := flag.Int("missions", 300, "how many to fly")
	flag.Parse()
	ctx, stop := lifecycle.SignalContext(context.Background())
	defer stop()
	lifecycle.Main(func() error { return run(ctx, os.Stdout, *url, *missions) })
}

// run is the first process, or with the url of its NATS the second one, the wing.
func run(ctx context.Context, out io.Writer, url string, missions int) (err error) {
	cfg := broker.Config{
		Name: "mission", URL: url, Logger: slog.New(slog.DiscardHandler),
		Buckets: []jetstream.KeyValueConfig{workflow.Bucket("MISSIONS")},
	}
	if url == "" {
		if cfg.StoreDir, err = os.MkdirTemp("", "mission-"); err != nil {
			return err
		}
		defer os.RemoveAll(cfg.StoreDir)
		cfg.Listen = "127.0.0.1:0"
	}
	b, err := broker.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer b.Close(context.WithoutCancel(ctx))
	mgr := workflow.NewManager(b.JetStream(), cfg.Logger)
	defer mgr.Close()
	err = mgr.Register(survey, func() workflow.Participant { return new(Mission) }, phases,
		workflow.WithDeadline("planning", "aborted", 3*time.Second))
	if err != nil {
		return err
	}
	if url != "" {
		fmt.Fprintln(out, "ready")
		_, _ = io.Copy(io.Discard, os.Stdin) // its end says that the missions are planned
		return fly(ctx, mgr, "wing", func(line string) { fmt.Fprintln(out, line) })
	}
	return command(ctx, out, mgr, b.ClientURL(), missions)
}

// command is the first process: it plans the missions, flies too, and has the
// second process killed half-way.
func command(ctx context.Context, out io.Writer, mgr *workflow.Manager, url string, missions int) error {
	fleet := workflow.For[*Mission](mgr, survey)
	work, done := context.WithCancel(ctx)
	defer done()
	// It starts before the missions are planned, because some of them have a deadline.
	second := startWing(work, url)
	defer second.kill()
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer done() // runs before the wait for the tasks

	for i := range missions {
		m := &Mission{ID: fmt.Sprintf("m-%04d", i), State: "planning"}
		if i%25 == 0 {
			m.Pilot = forgotten
		}
		if err := fleet.Create(ctx, m); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%d missions are planned\n", missions)

	// In a service with several processes: app.Lead("deadlines", lease, mgr.Deadlines).
	tasks.Go(func() { _ = mgr.Deadlines(work) })
	both, began := context.WithCancel(work)
	tasks.Go(func() {
		defer began()
		legs, err := second.killAfter(work, missions/3, began)
		if err != nil {
			fmt.Fprintln(out, "the second process:", err)
			return
		}
		fmt.Fprintf(out, "the second process was killed after it had flown %d legs\n", legs)
	})
	flown := make(chan error, 1)
	tasks.Go(func() {
		<-both.Done() // otherwise this process could fly everything alone
		flown <- fly(work, mgr, "home", func(string) {})
	})
	for active := missions; active > 0; {
		list, err := mgr.List(ctx, survey, workflow.ListOptions{Active: true})
		if err != nil {
			return err
		}
		active = len(list)
		select {
		case err := <-flown:
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
	return report(ctx, out, fleet)
}

// report prints how the missions ended, and the history of one that both
// processes have flown.
func report(ctx context.Context, out io.Writer, fleet workflow.Typed[*Mission]) error {
	counts := make(map[string]int)
	list, err := fleet.List(ctx, workflow.ListOptions{})
	if err != nil {
		return err
	}
	var most []workflow.TransitionEvent
	id := ""
	for _, m := range list {
		counts[m.State]++
		events, err := fleet.History(ctx, m.ID)
		if err != nil {
			return err
		}
		notes := fmt.Sprint(events)
		if strings.Contains(notes, "wing") && strings.Contains(notes, "home") && len(events) > len(most) || most == nil {
			most, id = events, m.ID
		}
	}
	fmt.Fprintf(out, "all %d have ended:", len(list))
	for _, phase := range phases.TerminalPhases() {
		fmt.Fprintf(out, " %d %s", counts[phase], phase)
	}
	fmt.Fprintf(out, "\n\nthe history of %s:\n", id)
	for _, e := range most {
		fmt.Fprintf(out, "  %s  %-10s -> %-10s by %-9s  %s\n", e.At.Format("15:04:05.000"), e.From, e.To, e.Triggered, e.Note)
	}
	return nil
}

// fly runs four pilots. Each takes an active mission, moves it one leg, and
// takes the next. No pilot owns a mission: the table and the server ensure
// that every leg is flown once. fly returns when ctx ends.
func fly(ctx context.Context, mgr *workflow.Manager, base string, told func(string)) error {
	fleet := workflow.For[*Mission](mgr, survey)
	var pilots sync.WaitGroup
	errs := make(chan error, 4)
	var mu sync.Mutex
	for i := range cap(errs) {
		pilots.Go(func() {
			name := fmt.Sprintf("%s-%d", base, i+1)
			for ctx.Err() == nil {
				list, err := fleet.List(ctx, workflow.ListOptions{Active: true, Limit: 20, After: fmt.Sprintf("m-%04d", rand.N(1000))})
				if err == nil && len(list) == 0 {
					list, err = fleet.List(ctx, workflow.ListOptions{Active: true})
				}
				for _, m := range list {
					if m.Pilot == forgotten || err != nil {
						continue
					}
					if err = leg(ctx, fleet, m, name); err == nil {
						mu.Lock()
						told(m.ID)
						mu.Unlock()
					}
					// Another pilot was faster, which is normal for shared missions.
					if errors.Is(err, workflow.ErrInvalidTransition) || errors.Is(err, workflow.ErrTerminalPhase) {
						err = nil
					}
				}
				if err != nil && ctx.Err() == nil {
					errs <- err
					return
				}
				if len(list) == 0 {
					select {
					case <-time.After(20 * time.Millisecond):
					case <-ctx.Done():
					}
				}
			}
		})
	}
	pilots.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// leg moves a mission to one of its next phases.
func leg(ctx context.Context, fleet workflow.Typed[*Mission], m *Mission, pilot string) error {
	next := phases[m.State]
	to := next[0]
	if rand.N(8) == 0 {
		to = next[rand.N(len(next))]
	}
	if m.Pictures >= 2 && m.State == "flying" {
		to = "landing"
	}
	return fleet.TransitionWith(ctx, m.ID, to, workflow.TransitionSourceComponent, pilot, func(m *Mission) error {
		m.Pilot = pilot
		if to == "capturing" {
			m.Pictures++
		}
		return nil
	})
}

// wing is the second process.
type wing struct {
	cmd *exec.Cmd
	in  io.Closer // its end lets the process fly
	out *bufio.Scanner
	err error
}

// startWing starts the second process, and waits until it is connected.
func startWing(ctx context.Context, url string) *wing {
	cmd := exec.CommandContext(ctx, os.Args[0], "-url", url)
	cmd.Env = append(os.Environ(), "MISSION_WING="+url)
	cmd.Stderr = os.Stderr
	w := &wing{cmd: cmd}
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		w.out = bufio.NewScanner(pipe)
		w.in, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		w.out.Scan() // "ready"
	}
	w.err = err
	return w
}

// kill ends the process, if it has not ended.
func (w *wing) kill() {
	if w.err == nil {
		_ = w.cmd.Process.Kill()
		_ = w.cmd.Wait()
	}
}

// killAfter lets the second process fly this many legs, and then kills it at a
// random moment, or when ctx ends. It calls began after each leg, and returns their
// number.
func (w *wing) killAfter(ctx context.Context, legs int, began func()) (flown int, err error) {
	if w.err != nil {
		return 0, w.err
	}
	_ = w.in.Close()
	for flown < legs && w.out.Scan() {
		flown++
		began()
	}
	w.kill()
	if flown < legs && ctx.Err() == nil {
		return flown, fmt.Errorf("it ended after %d legs", flown)
	}
	return flown, nil
}
