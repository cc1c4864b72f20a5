// Package top has the live view of a fleet in a terminal: its processes, and how many
// entities of each workflow are in each phase. Begin at [Command].
package top

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/processes"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// Command returns the command top.
func Command() *cobra.Command {
	var once bool
	cmd := cli.TextCommand(&cobra.Command{
		Use:   "top",
		Short: "A live view of the fleet: processes, and workflows by phase",
		Long: `A live view of the fleet: processes, and workflows by phase. It asks the server
once a second, and waits for one that is away.

  q, Esc, Ctrl-C   quit
  up, down, k, j   scroll; also page up and down, home and end

With --once, or when the output or the input is not a terminal, it prints the
current state and ends.`,
	}, cli.OfNothing, func(c *cli.Call) error {
		b, err := look(c.Context(), c.Server)
		if err != nil {
			return err // before the screen is taken over
		}
		if once || !output.IsTerminal(c.OutOrStdout()) || !output.IsTerminal(c.InOrStdin()) {
			return c.Send([]byte(strings.Join(b.lines(c.OutOrStdout(), time.Now()), "\n") + "\n"))
		}
		program := tea.NewProgram(screen{call: c, board: b},
			tea.WithInput(c.InOrStdin()), tea.WithOutput(c.OutOrStdout()), tea.WithoutSignalHandler())
		// Quit, and not tea.WithContext: a program that is killed closes the reader of
		// its input while its own goroutine still reads.
		defer context.AfterFunc(c.Context(), program.Quit)()
		_, err = program.Run()
		return err
	})
	cmd.Flags().BoolVar(&once, "once", false, "print the current state, and end")
	return cmd
}

// screen is the board on a terminal.
type screen struct {
	call          *cli.Call
	board         board
	width, height int
	first         int // the first visible line
}

// lookEvery is the pause between two questions to the server.
const lookEvery = time.Second

// Init is called by the program once.
func (s screen) Init() tea.Cmd { return s.nextBoard() }

// nextBoard asks the server for the next board. One that does not answer leaves the last
// known state.
func (s screen) nextBoard() tea.Cmd {
	return tea.Tick(lookEvery, func(time.Time) tea.Msg {
		ctx, cancel := context.WithTimeout(s.call.Context(), 10*lookEvery)
		defer cancel()
		next, err := look(ctx, s.call.Server)
		if err != nil {
			next = s.board
			next.lost = err
		}
		return next
	})
}

// Update is called by the program for each key, size and board.
func (s screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case board:
		s.board = msg
		return s, s.nextBoard()
	case tea.WindowSizeMsg:
		s.width, s.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		page := max(1, s.height-2)
		switch msg.String() {
		case "q", "Q", "esc", "ctrl+c":
			return s, tea.Quit
		case "ctrl+z":
			return s, tea.Suspend
		case "up", "k":
			s.first--
		case "down", "j":
			s.first++
		case "pgup":
			s.first -= page
		case "pgdown", "space":
			s.first += page
		case "home", "g":
			s.first = 0
		case "end", "G":
			s.first = 1 << 30
		}
		s.first = max(0, min(s.first, len(s.lines())-(s.height-1)))
	}
	return s, nil
}

func (s screen) lines() []string { return s.board.lines(s.call.OutOrStdout(), time.Now()) }

// View is called by the program after each Update.
func (s screen) View() tea.View {
	v := tea.NewView("")
	v.AltScreen = true
	if s.width <= 0 || s.height <= 1 {
		return v
	}
	lines := s.lines()
	first := max(0, min(s.first, len(lines)-(s.height-1)))
	seen := lines[first:min(len(lines), first+s.height-1)]
	var text strings.Builder
	for _, line := range seen {
		text.WriteString(ansi.Truncate(line, s.width, "…") + "\n")
	}
	text.WriteString(strings.Repeat("\n", s.height-1-len(seen)))
	foot := "q quit  ↑↓ scroll"
	if first+len(seen) < len(lines) {
		foot += "  ↓ more"
	}
	text.WriteString(ansi.Truncate(foot, s.width, "…"))
	v.SetContent(text.String())
	return v
}

// board is what top shows: the processes of a fleet, and how many entities of each workflow
// are in each phase.
type board struct {
	url  string
	lost error // why the server did not answer the latest question, nil when it did

	hasProcesses bool // the server has processes to show
	processes    []*operatorv1.Process
	definitions  []*operatorv1.Definition
}

// look asks the server for the board.
func look(ctx context.Context, s *cli.Server) (board, error) {
	b := board{url: s.URL}
	list, err := cli.All(ctx, 0, new(operatorv1.ListProcessesRequest), s.Processes.ListProcesses)
	b.processes = list.GetProcesses()
	b.hasProcesses = err == nil
	if err != nil && !cli.IsNotServed(err) {
		return b, err
	}
	definitions, err := s.Workflows.ListDefinitions(ctx, &operatorv1.ListDefinitionsRequest{})
	if err != nil && !cli.IsNotServed(err) {
		return b, err
	}
	b.definitions = definitions.GetDefinitions()
	return b, nil
}

// lines returns the board as text in the colours that w supports, with lines of any length.
func (b board) lines(w io.Writer, now time.Time) []string {
	t := output.NewTable(w)
	t.Row(output.Strong(b.url))
	if b.lost != nil {
		t.Row(output.Bad(fmt.Sprintf("lost the server (%s); trying again; this is the last known state", cli.Message(b.lost))))
	}
	if b.hasProcesses {
		t.Gap()
		b.addProcesses(t, now)
	}
	if len(b.definitions) > 0 {
		t.Gap()
		b.addWorkflows(t)
	}
	return strings.Split(strings.TrimSuffix(string(t.Text()), "\n"), "\n")
}

func (b board) addProcesses(t *output.Table, now time.Time) {
	list := slices.SortedFunc(slices.Values(b.processes), func(x, y *operatorv1.Process) int {
		return cmp.Or(strings.Compare(x.GetService(), y.GetService()), strings.Compare(x.GetId(), y.GetId()))
	})
	ready := 0
	for _, p := range list {
		if p.GetReady() {
			ready++
		}
	}
	t.Row(output.Strong(fmt.Sprintf("%d processes, %d ready", len(list), ready)))
	t.Head("SERVICE", "PROCESS", "PHASE", "READY", "UNITS", "IN FLIGHT", "AGE", "REASON")
	for _, p := range list {
		why := cmp.Or(p.GetSuspended(), p.GetReason())
		t.Row(p.GetService(), p.GetId(), output.State(p.GetPhase()), processes.ReadyCell(p), processes.Units(p),
			fmt.Sprint(processes.InFlight(p)), output.Age(p.GetStartedAt(), now), why)
	}
}

func (b board) addWorkflows(t *output.Table) {
	t.Row(output.Strong(fmt.Sprintf("%d workflows", len(b.definitions))))
	t.Head("TYPE", "ENTITIES", "PHASES")
	for _, d := range b.definitions {
		var counts []string
		for _, p := range d.GetPhases() {
			if p.GetCount() > 0 {
				counts = append(counts, fmt.Sprintf("%s %d", p.GetName(), p.GetCount()))
			}
		}
		if d.GetDegraded() > 0 { // in a phase that the table does not have
			counts = append(counts, fmt.Sprintf("degraded! %d", d.GetDegraded()))
		}
		t.Row(d.GetType(), fmt.Sprint(d.GetTotal()), strings.Join(counts, "  "))
	}
}
