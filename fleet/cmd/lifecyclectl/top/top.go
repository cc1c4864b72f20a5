// Package top has the live view of a fleet in a terminal: its processes, and how many
// entities of each workflow are in each phase. [Command] is the command; board.go asks the
// server, and top.go shows its answer once a second.
package top

import (
	"context"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
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
		Args: cli.Words(),
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
