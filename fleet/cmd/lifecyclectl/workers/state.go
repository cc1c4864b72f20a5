package workers

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func state() *cobra.Command {
	var limit int
	cmd := cli.Command(&cobra.Command{
		Use:   "state ID [KEY]",
		Short: "Show what a worker has stored, or the value of one key",
		Long: `Show what a worker has stored, in the order in which the keys were last written,
with the beginning of each value. With KEY show its whole value as it is. It needs
the role operator.`,
		Example: `  lifecyclectl workers state counter
  lifecyclectl workers state counter total`,
		Args:              cli.Words("ID", "[KEY]"),
		ValidArgsFunction: cli.CompleteWorkers,
	}, cli.OfWorker, func(c *cli.Call) error {
		if len(c.Args) > 1 {
			return showValue(c)
		}
		list, err := cli.Pages(limit, func(size int32, token string) ([]*operatorv1.StateEntry, string, error) {
			req := &operatorv1.ReadWorkerStateRequest{Id: c.Args[0], PageSize: size, PageToken: token}
			page, err := c.Workers.ReadWorkerState(c.Context(), req)
			return page.GetEntries(), page.GetNextPageToken(), err
		})
		if err != nil {
			return err
		}
		return c.Write(&operatorv1.ReadWorkerStateResponse{Entries: list}, func(t *output.Table) {
			t.Head("KEY", "BYTES", "AT", "VALUE")
			for _, e := range list {
				t.Row(e.GetKey(), fmt.Sprint(e.GetSize()), output.Moment(e.GetAt()), preview(e.GetValue(), e.GetSize()))
			}
		})
	})
	cmd.Flags().IntVar(&limit, "limit", 100, "at most this `many` keys; 0 is all")
	return cmd
}

// showValue shows the whole value of one key: as it is in a pipe.
func showValue(c *cli.Call) error {
	answer, err := c.Workers.ReadWorkerState(c.Context(), &operatorv1.ReadWorkerStateRequest{Id: c.Args[0], Key: c.Args[1]})
	if err != nil {
		return err
	}
	value := answer.GetEntries()[0].GetValue()
	if c.Format.IsTable() && !output.IsTerminal(c.OutOrStdout()) {
		return c.Send(value)
	}
	return c.Write(answer, func(t *output.Table) { t.Row(shown(value)) })
}

// shown returns bytes as text, or says how many there are.
func shown(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return fmt.Sprintf("(%d bytes that are not text)", len(b))
}

// preview returns the beginning of a value on one line.
func preview(b []byte, size int64) string {
	const most = 60
	for cut := 0; cut < 4 && int64(len(b)) < size && !utf8.Valid(b); cut++ {
		b = b[:len(b)-1] // a character was cut in two
	}
	text := []rune(strings.Join(strings.Fields(shown(b)), " "))
	if len(text) > most || int64(len(b)) < size {
		return string(text[:min(len(text), most)]) + "…"
	}
	return string(text)
}
