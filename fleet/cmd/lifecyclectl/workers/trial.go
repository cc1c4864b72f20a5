package workers

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func test() *cobra.Command {
	var (
		req          operatorv1.TestWorkerRequest
		data, dataIn string
		headers      []string
		code         codeFlags
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "test ID",
		Short: "Run the code of a worker with a message, and publish and store nothing",
		Long: `Run the code of a worker with a message, in a process of its own, and publish and
store nothing. It sends no HTTP requests without --http. It shows what the code would
publish and write, the timers that it would set, what it printed, and how long it ran. The
exit status is 1 when the message failed. It needs the role operator.`,
		Example: `  lifecyclectl workers test counter --data "one two"
  lifecyclectl workers test counter --data "one two" --code counter.js`,
		Args:              cli.Words("ID"),
		ValidArgsFunction: cli.CompleteWorkers,
	}, cli.OfWorker, func(c *cli.Call) error {
		req.Id = c.Args[0]
		if data != "" && dataIn != "" {
			return errors.New("--data and --data-file exclude each other")
		}
		req.Data = []byte(data)
		var err error
		if dataIn != "" {
			if req.Data, err = cli.ReadFile(dataIn, c.InOrStdin()); err != nil {
				return fmt.Errorf("--data-file: %w", err)
			}
		}
		if req.Headers, err = headerFlags(headers); err != nil {
			return err
		}
		if code.file != "" || code.url != "" {
			if req.Code, err = code.code(c); err != nil {
				return err
			}
		}
		t, err := c.Workers.TestWorker(c.Context(), &req)
		if err != nil {
			return err
		}
		if err := c.Write(t, func(out *output.Table) { trialTable(out, t) }); err != nil {
			return err
		}
		if t.GetError() != "" {
			return cli.Fail(cli.ExitFindings, "the message failed: %s", t.GetError())
		}
		return nil
	})
	f := cmd.Flags()
	f.StringVar(&data, "data", "", "the message's `text`")
	f.StringVar(&dataIn, "data-file", "", "the message, from this `file`; - is standard input")
	f.StringVar(&req.Topic, "topic", "", "the message's `topic`; default: the worker's")
	f.StringArrayVar(&headers, "header", nil, "a `header` of the message, as Name=value; may be given more than once")
	f.StringVar(&req.Digest, "digest", "", "the `digest` of code that the worker has or had; default: the current code")
	f.BoolVar(&req.Http, "http", false, "let the code send the HTTP requests that the worker may send; they take effect")
	f.StringVarP(&code.file, "code", "f", "", "other code, from this `file`; - is standard input")
	f.StringVar(&code.url, "url", "", "other code, fetched by the host from this `URL`")
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
func trialTable(t *output.Table, trial *operatorv1.TestWorkerResponse) {
	for _, line := range trial.GetLogs() {
		t.Row(output.Faint("log"), "", line)
	}
	for _, o := range trial.GetOutputs() {
		topic := output.In("", o.GetTopic())
		if o.GetTopic() == "" {
			topic = output.Wait("(no topic: discarded)")
		}
		t.Row(output.Good("output"), topic, shown(o.GetData()))
		for _, h := range o.GetHeaders() {
			t.Row("", output.Faint("header"), h.GetName()+": "+strings.Join(h.GetValues(), ", "))
		}
	}
	for _, c := range trial.GetChanges() {
		if c.GetDeleted() {
			t.Row(output.Wait("state"), c.GetKey(), output.Faint("(deleted)"))
			continue
		}
		t.Row(output.Wait("state"), c.GetKey(), shown(c.GetValue()))
	}
	for _, c := range trial.GetTimers() {
		if c.GetCancelled() {
			t.Row(output.Wait("timer"), c.GetName(), output.Faint("(cancelled)"))
			continue
		}
		t.Row(output.Wait("timer"), c.GetName(), output.Moment(c.GetDue())+"  "+shown(c.GetData()))
	}
	result := output.Good("handled")
	switch {
	case trial.GetRejected():
		result = output.Bad("rejected")
	case trial.GetError() != "":
		result = output.Bad("failed")
	}
	t.Row(result, trial.GetDuration().AsDuration().String(), output.Faint(short(trial.GetDigest())))
}
