package workers

import (
	"context"
	"fmt"
	"strings"
	"time"
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
	}, cli.OfWorker, func(c *cli.Call) error {
		if len(c.Args) > 1 {
			return showValue(c)
		}
		answer, err := cli.All(c.Context(), limit, &operatorv1.ReadWorkerStateRequest{Id: c.Args[0]}, c.Workers.ReadWorkerState)
		return c.Answer(answer, err, func(t *output.Table) {
			t.Head("KEY", "BYTES", "AT", "VALUE")
			for _, e := range answer.GetEntries() {
				t.Row(e.GetKey(), fmt.Sprint(e.GetSize()), output.Moment(e.GetAt()), preview(e.GetValue(), e.GetSize()))
			}
		})
	})
	cmd.Flags().IntVar(&limit, "limit", 100, "at most `N` keys; 0 is all")
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

func timers() *cobra.Command {
	var limit int
	cmd := cli.Command(&cobra.Command{
		Use:   "timers ID",
		Short: "Show the timers that a worker has set",
		Long: `Show the timers that a worker has set, in the order in which it has, each with its
key, when it is due, and the beginning of its data. It needs the role operator.`,
		Example: `  lifecyclectl workers timers counter`,
	}, cli.OfWorker, func(c *cli.Call) error {
		answer, err := cli.All(c.Context(), limit, &operatorv1.ListWorkerTimersRequest{Id: c.Args[0]}, c.Workers.ListWorkerTimers)
		return c.Answer(answer, err, func(t *output.Table) {
			t.Head("NAME", "KEY", "DUE", "FAILED", "DATA")
			for _, timer := range answer.GetTimers() {
				t.Row(timer.GetName(), timer.GetKey(), output.Moment(timer.GetDue()), fmt.Sprint(timer.GetFailed()),
					preview(timer.GetData(), timer.GetSize()))
			}
		})
	})
	cmd.Flags().IntVar(&limit, "limit", 100, "at most `N` timers; 0 is all")
	return cmd
}

func cancelTimer() *cobra.Command {
	var key string
	cmd := cli.Command(&cobra.Command{
		Use:   "cancel-timer ID NAME",
		Short: "Remove a timer of a worker before it is due",
		Long: `Remove a timer of a worker before it is due, also of a worker that is stopped. A
timer that the worker handles at this moment is not affected. It needs the role operator.`,
		Example: `  lifecyclectl workers cancel-timer counter report --key alice`,
	}, cli.OfWorker, func(c *cli.Call) error {
		answer, err := c.Workers.CancelWorkerTimer(c.Context(), &operatorv1.CancelWorkerTimerRequest{Id: c.Args[0], Name: c.Args[1], Key: key})
		return c.Answer(answer, err, func(t *output.Table) { t.Row(c.Args[1], output.Good("cancelled")) })
	})
	cmd.Flags().StringVar(&key, "key", "", "the `key` of the timer, as workers timers shows it")
	_ = cmd.MarkFlagRequired("key") // the flag exists
	return cmd
}

// keptLines is how many lines of a worker the hosts keep.
const keptLines = 1000

func logs() *cobra.Command {
	var (
		limit  int32
		follow bool
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "logs ID",
		Short: "Show what the code of a worker printed, and the errors of its messages",
		Long: `Show what the code of a worker printed, and the errors of its messages, oldest
first. The hosts keep the newest 1000 lines of each worker for a week, whichever host
ran it. It needs the role operator.`,
		Example: `  lifecyclectl workers logs thumbs --limit 20
  lifecyclectl workers logs thumbs --follow`,
	}, cli.OfWorker, func(c *cli.Call) error {
		if limit < 1 || limit > keptLines {
			return fmt.Errorf("--limit is %d, want 1 to %d", limit, keptLines)
		}
		if follow {
			return followLogs(c, limit)
		}
		page, err := c.Workers.ReadWorkerLogs(c.Context(), &operatorv1.ReadWorkerLogsRequest{Id: c.Args[0], PageSize: limit})
		if err != nil {
			return err
		}
		for _, l := range page.GetLines() {
			if err := showLine(c, l); err != nil {
				return err
			}
		}
		return nil
	})
	cmd.Flags().Int32Var(&limit, "limit", 100, "at most `N`, the newest")
	cmd.Flags().BoolVar(&follow, "follow", false, "then show each new line, until it is interrupted")
	return cmd
}

// showLine writes a line of a log.
func showLine(c *cli.Call, l *operatorv1.WorkerLogLine) error {
	if !c.Format.IsTable() {
		return c.Format.Item(c.OutOrStdout(), l)
	}
	t := output.NewTable(c.OutOrStdout())
	text := output.In("", l.GetText())
	if l.GetError() {
		text = output.Bad("! " + l.GetText())
	}
	t.Row(output.Faint(output.Moment(l.GetAt())), text)
	return c.Send(t.Text())
}

// maxSilence is the time of three missed heartbeats: the server is gone.
const maxSilence = 45 * time.Second

// followLogs shows each new line. A look is a stream, as long as it lasts: the audit has one entry
// for it.
func followLogs(c *cli.Call, tail int32) error {
	last := int64(0)
	var failed error // of a line that cannot be written
	return cli.Watch(c, func(context.Context) (any, error) {
		ctx, cancel := context.WithCancel(c.Context())
		defer cancel()
		silence := time.AfterFunc(maxSilence, cancel)
		defer silence.Stop()
		s, err := c.Workers.FollowWorkerLogs(ctx, &operatorv1.FollowWorkerLogsRequest{Id: c.Args[0], Tail: tail})
		if err != nil {
			return nil, err
		}
		defer s.Close()
		isOpen := false
		for cli.HasReader(c.OutOrStdout()) && s.Receive() {
			silence.Reset(maxSilence)
			isOpen, tail = true, keptLines // another stream begins with what was printed meanwhile
			if l := s.Msg().GetLine(); l.GetNumber() > last {
				last = l.GetNumber()
				if failed = showLine(c, l); failed != nil {
					return nil, nil
				}
			}
		}
		if isOpen { // the next look says whether the server is away
			return nil, nil
		}
		return nil, s.Err()
	}, func(any) error { return failed })
}
