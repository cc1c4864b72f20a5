package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func workerLogsCommand(r *remote) *cobra.Command {
	var (
		o      output
		tail   int32
		follow bool
	)
	cmd := &cobra.Command{
		Use:   "logs ID",
		Short: "Show what the code of a worker printed, and the errors of its messages",
		Long: `Show what the code of a worker printed, and the errors of its messages, oldest
first. The hosts keep the newest 1000 lines of each worker for a week, whichever host
ran it. It needs the role operator.`,
		Example: `  lifecyclectl workers logs thumbs --tail 20
  lifecyclectl workers logs thumbs --follow`,
		Args: words("ID"),
		RunE: asks(r, &o, ofWorker, func(a *api, cmd *cobra.Command, args []string) error {
			if tail < 1 || tail > atOnce {
				return fmt.Errorf("--tail is %d, want 1 to %d", tail, atOnce)
			}
			if follow {
				return followLogs(a, cmd, &o, args[0], tail)
			}
			page, err := a.Workers.ReadWorkerLogs(cmd.Context(), &operatorv1.ReadWorkerLogsRequest{Id: args[0], PageSize: tail})
			if err != nil {
				return err
			}
			for _, l := range page.GetLines() {
				if err := showLine(cmd, &o, l); err != nil {
					return err
				}
			}
			return nil
		}),
		ValidArgsFunction: completeWorkers(r),
	}
	cmd.Flags().Int32Var(&tail, "tail", 100, "the newest `lines`")
	cmd.Flags().BoolVar(&follow, "follow", false, "then show each new line, until it is interrupted")
	o.register(cmd)
	return cmd
}

// showLine writes a line of a log.
func showLine(cmd *cobra.Command, o *output, l *operatorv1.WorkerLogLine) error {
	if o.format != "table" {
		return o.item(cmd.OutOrStdout(), l)
	}
	t := &table{colours: colourful(cmd.OutOrStdout())}
	text := cell{text: l.GetText()}
	if l.GetError() {
		text = cell{"! " + l.GetText(), bad}
	}
	t.row(cell{moment(l.GetAt()), faint}, text)
	return send(cmd.OutOrStdout(), t.text())
}

func followLogs(a *api, cmd *cobra.Command, o *output, id string, tail int32) error {
	ctx, stop := whileRead(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	last := int64(0)
	return follow(ctx, notices(cmd.ErrOrStderr(), a), func(ctx context.Context) (*connect.ServerStreamForClient[operatorv1.FollowWorkerLogsResponse], error) {
		if last > 0 {
			tail = atOnce // what was printed while the server was away
		}
		return a.Workers.FollowWorkerLogs(ctx, &operatorv1.FollowWorkerLogsRequest{Id: id, Tail: tail})
	}, func() {}, func(m *operatorv1.FollowWorkerLogsResponse) error {
		l := m.GetLine()
		if l.GetNumber() <= last {
			return nil
		}
		last = l.GetNumber()
		return showLine(cmd, o, l)
	})
}

func workerStateCommand(r *remote) *cobra.Command {
	var (
		o     output
		limit int
	)
	cmd := &cobra.Command{
		Use:   "state ID [KEY]",
		Short: "Show what a worker has stored, or the value of one key",
		Long: `Show what a worker has stored, in the order in which the keys were last written,
with the beginning of each value. With KEY show its whole value as it is. It needs
the role operator.`,
		Example: `  lifecyclectl workers state counter
  lifecyclectl workers state counter total`,
		Args: words("ID", "[KEY]"),
		RunE: asks(r, &o, ofWorker, func(a *api, cmd *cobra.Command, args []string) error {
			if limit < 0 {
				return fmt.Errorf("--limit is %d, want 0 for all or more", limit)
			}
			if len(args) > 1 {
				answer, err := a.Workers.ReadWorkerState(cmd.Context(), &operatorv1.ReadWorkerStateRequest{Id: args[0], Key: args[1]})
				if err != nil {
					return err
				}
				value := answer.GetEntries()[0].GetValue()
				if o.format == "table" && !terminal(cmd.OutOrStdout()) {
					return send(cmd.OutOrStdout(), value)
				}
				return o.write(cmd.OutOrStdout(), answer, func(t *table) { t.row(shown(value)) })
			}
			all := &operatorv1.ReadWorkerStateResponse{}
			req := &operatorv1.ReadWorkerStateRequest{Id: args[0]}
			for more := true; more; more = req.GetPageToken() != "" && (limit == 0 || len(all.GetEntries()) < limit) {
				req.PageSize = pageSize(limit, len(all.GetEntries()))
				page, err := a.Workers.ReadWorkerState(cmd.Context(), req)
				if err != nil {
					return err
				}
				all.Entries = append(all.Entries, page.GetEntries()...)
				req.PageToken = page.GetNextPageToken()
			}
			return o.write(cmd.OutOrStdout(), all, func(t *table) {
				t.head("KEY", "BYTES", "AT", "VALUE")
				for _, e := range all.GetEntries() {
					t.row(e.GetKey(), fmt.Sprint(e.GetSize()), moment(e.GetAt()), preview(e.GetValue(), e.GetSize()))
				}
			})
		}),
		ValidArgsFunction: completeWorkers(r),
	}
	cmd.Flags().IntVar(&limit, "limit", 100, "at most this `many` keys; 0 is all")
	o.register(cmd)
	return cmd
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

func workerTestCommand(r *remote) *cobra.Command {
	var (
		o             output
		req           operatorv1.TestWorkerRequest
		data, dataIn  string
		headers       []string
		codeFile, url string
	)
	cmd := &cobra.Command{
		Use:   "test ID",
		Short: "Run the code of a worker with a message, and publish and store nothing",
		Long: `Run the code of a worker with a message, in a process of its own, and publish and
store nothing. It sends no HTTP requests without --http. It shows what the code would
publish and write, the timers that it would set, what it printed, and how long it ran. The
exit status is 1 when the message failed. It needs the role operator.`,
		Example: `  lifecyclectl workers test counter --data "one two"
  lifecyclectl workers test counter --data "one two" --code counter.js`,
		Args: words("ID"),
		RunE: asks(r, &o, ofWorker, func(a *api, cmd *cobra.Command, args []string) error {
			req.Id = args[0]
			if data != "" && dataIn != "" {
				return errors.New("--data and --data-file exclude each other")
			}
			req.Data = []byte(data)
			var err error
			if dataIn != "" {
				if req.Data, err = readAll(dataIn, cmd.InOrStdin()); err != nil {
					return fmt.Errorf("--data-file: %w", err)
				}
			}
			if req.Headers, err = headerFlags(headers); err != nil {
				return err
			}
			if codeFile != "" || url != "" {
				own := codeFlags{file: codeFile, url: url}
				if req.Code, err = own.code(cmd); err != nil {
					return err
				}
			}
			t, err := a.Workers.TestWorker(cmd.Context(), &req)
			if err != nil {
				return err
			}
			if err := o.write(cmd.OutOrStdout(), t, func(out *table) { trialTable(out, t) }); err != nil {
				return err
			}
			if t.GetError() != "" {
				return &failure{status: exitFindings, err: errors.New("the message failed: " + t.GetError())}
			}
			return nil
		}),
		ValidArgsFunction: completeWorkers(r),
	}
	f := cmd.Flags()
	f.StringVar(&data, "data", "", "the message's `text`")
	f.StringVar(&dataIn, "data-file", "", "the message, from this `file`; - is standard input")
	f.StringVar(&req.Topic, "topic", "", "the message's `topic`; default: the worker's")
	f.StringArrayVar(&headers, "header", nil, "a `header` of the message, as Name=value; may be given more than once")
	f.StringVar(&req.Digest, "digest", "", "the `digest` of code that the worker has or had; default: the current code")
	f.BoolVar(&req.Http, "http", false, "let the code send the HTTP requests that the worker may send; they take effect")
	f.StringVarP(&codeFile, "code", "f", "", "other code, from this `file`; - is standard input")
	f.StringVar(&url, "url", "", "other code, fetched by the host from this `URL`")
	o.register(cmd)
	return cmd
}

// headerFlags reads headers in the form Name=value.
func headerFlags(flags []string) (list []*operatorv1.Header, err error) {
	for _, text := range flags {
		name, value, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("--header is %q, want Name=value", text)
		}
		list = append(list, &operatorv1.Header{Name: name, Values: []string{value}})
	}
	return list, nil
}

// trialTable shows what a message would cause.
func trialTable(t *table, trial *operatorv1.TestWorkerResponse) {
	for _, line := range trial.GetLogs() {
		t.row(cell{"log", faint}, "", line)
	}
	for _, o := range trial.GetOutputs() {
		topic := cell{text: o.GetTopic()}
		if o.GetTopic() == "" {
			topic = cell{"(no topic: discarded)", wait}
		}
		t.row(cell{"output", good}, topic, shown(o.GetData()))
		for _, h := range o.GetHeaders() {
			t.row("", cell{"header", faint}, h.GetName()+": "+strings.Join(h.GetValues(), ", "))
		}
	}
	for _, c := range trial.GetChanges() {
		if c.GetDeleted() {
			t.row(cell{"state", wait}, c.GetKey(), cell{"(deleted)", faint})
			continue
		}
		t.row(cell{"state", wait}, c.GetKey(), shown(c.GetValue()))
	}
	for _, c := range trial.GetTimers() {
		if c.GetCancelled() {
			t.row(cell{"timer", wait}, c.GetName(), cell{"(cancelled)", faint})
			continue
		}
		t.row(cell{"timer", wait}, c.GetName(), moment(c.GetDue())+"  "+shown(c.GetData()))
	}
	result := cell{"handled", good}
	switch {
	case trial.GetRejected():
		result = cell{"rejected", bad}
	case trial.GetError() != "":
		result = cell{"failed", bad}
	}
	t.row(result, trial.GetDuration().AsDuration().String(), cell{short(trial.GetDigest()), faint})
}
