package main

import (
	"context"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func topCommand() *cobra.Command {
	var (
		r    remote
		once bool
	)
	cmd := &cobra.Command{
		Use:   "top",
		Short: "A live view of the fleet: processes, and workflows by phase",
		Long: `A live view of the fleet: processes, and workflows by phase. It follows every
change, and waits for a server that is away.

  q, Esc, Ctrl-C   quit
  up, down, k, j   scroll; also page up and down, home and end

With --once, or when the output or the input is not a terminal, it prints the
current state and ends.`,
		Args: words(),
		RunE: asks(&r, &output{format: "table"}, noSubject, func(a *api, cmd *cobra.Command, _ []string) error {
			b := newBoard(a.url)
			if once || !terminal(cmd.OutOrStdout()) || !terminal(cmd.InOrStdin()) {
				if err := b.load(cmd.Context(), a); err != nil {
					return err
				}
				text := strings.Join(b.lines(time.Now(), colourful(cmd.OutOrStdout())), "\n") + "\n"
				return send(cmd.OutOrStdout(), []byte(text))
			}
			// Report a bad connection before taking over the screen.
			if _, err := a.Access.WhoAmI(cmd.Context(), &operatorv1.WhoAmIRequest{}); err != nil {
				return err
			}
			return live(cmd, a, b)
		}),
	}
	cmd.Flags().BoolVar(&once, "once", false, "print the current state, and end")
	r.register(cmd)
	return cmd
}

// live shows the board until the user quits, the context ends, or there is
// nothing to show.
func live(cmd *cobra.Command, a *api, b *board) error {
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	s := screen{board: b, colours: colourful(cmd.OutOrStdout())}
	program := tea.NewProgram(s, tea.WithInput(cmd.InOrStdin()), tea.WithOutput(cmd.OutOrStdout()), tea.WithoutSignalHandler())
	// Quit, and not tea.WithContext: a program that is killed closes the reader of
	// its input while its own goroutine still reads.
	defer context.AfterFunc(ctx, program.Quit)()
	fed := make(chan error, 1)
	go func() {
		defer cancel() // no board, no screen
		fed <- b.feed(ctx, a)
	}()
	_, err := program.Run()
	cancel()
	if feedErr := <-fed; feedErr != nil {
		return feedErr
	}
	return err
}

// screen is the board on a terminal.
type screen struct {
	board         *board
	colours       bool
	width, height int
	first         int // the first visible line
}

// frame is the time of a redraw.
type frame time.Time

// frameEvery bounds the age of the screen. Faster changes are
// drawn together.
const frameEvery = 250 * time.Millisecond

func nextFrame() tea.Cmd {
	return tea.Tick(frameEvery, func(t time.Time) tea.Msg { return frame(t) })
}

// Init is called by the program once.
func (s screen) Init() tea.Cmd { return nextFrame() }

// Update is called by the program for each key, size and frame.
func (s screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case frame:
		return s, nextFrame()
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
		s.first = max(0, min(s.first, len(s.board.lines(time.Now(), false))-(s.height-1)))
	}
	return s, nil
}

// View is called by the program after each Update.
func (s screen) View() tea.View {
	v := tea.NewView("")
	v.AltScreen = true
	if s.width <= 0 || s.height <= 1 {
		return v
	}
	lines := s.board.lines(time.Now(), s.colours)
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
