package workers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/dev"
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
	}, cli.OfWorker, func(c *cli.Call) error {
		req.Id = c.Args[0]
		req.Data = []byte(data)
		var err error
		if dataIn != "" {
			if req.Data, err = cli.ReadFile(c.Context(), dataIn, c.InOrStdin()); err != nil {
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
	cmd.MarkFlagsMutuallyExclusive("data", "data-file")
	cmd.MarkFlagsMutuallyExclusive("code", "url")
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

func develop() *cobra.Command {
	var d devRun
	cmd := &cobra.Command{
		Use:   "dev FILE",
		Short: "Run the code of a spec on this machine against sample messages",
		Long: `Run the code of a spec on this machine against sample messages, one after the
other. It needs no server, and sends no HTTP requests. The code runs in a process of its own, within the limits of
its spec. The state is empty at first and lasts until the command ends. It shows what
each message would publish and write, the timers that it would set, and what the code
prints. After the messages it fires timers, in the order in which they are due and
without waiting, at most 10 unless --timers says another number. The exit status is 1
when a message failed.

` + specHelp,
		Example: `  lifecyclectl workers dev workers.yaml --message "one two" --message three
  lifecyclectl workers dev workers.yaml --id counter --messages samples.txt --env TOKEN=x`,
		RunE: func(cmd *cobra.Command, args []string) error { return d.once(cli.LocalCall(cmd, args)) },
	}
	output.AddFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&d.id, "id", "", "the `id` of the worker, in a file with several")
	f.StringArrayVar(&d.texts, "message", nil, "a message; may be given more than once")
	f.StringVar(&d.file, "messages", "", "messages, one in each line of this `file`; - is standard input")
	f.StringArrayVar(&d.headers, "header", nil, "a `header` of each message, as Name=value; may be given more than once")
	f.StringArrayVar(&d.env, "env", nil, "the value of a variable or secret of the spec, as `NAME=value`; may be given more than once")
	f.IntVar(&d.timers, "timers", 10, "how `many` timers to fire after the messages")
	cmd.MarkFlagsOneRequired("message", "messages")
	return cmd
}

// devRun is one command line.
type devRun struct {
	id, file            string
	texts, headers, env []string
	timers              int
}

// once runs the messages, and then the timers that they have set.
func (d *devRun) once(c *cli.Call) (err error) {
	spec, err := d.spec(c)
	if err != nil {
		return err
	}
	env, err := d.variables(spec)
	if err != nil {
		return err
	}
	messages, err := d.messages(c)
	if err != nil {
		return err
	}
	headers, err := headerFlags(d.headers)
	if err != nil {
		return err
	}
	header := map[string][]string{}
	for _, h := range headers {
		header[h.GetName()] = append(header[h.GetName()], h.GetValues()...)
	}
	r, err := dev.Open(c.Context(), spec, env)
	if err != nil {
		return cli.Fail(cli.ExitFindings, "%w", err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	handled, failed := 0, 0
	show := func(what string, data []byte, result *dev.Result) error {
		if c.Context().Err() != nil {
			return context.Canceled
		}
		handled++
		if result.GetError() != "" {
			failed++
		}
		return showResult(c, what+": "+preview(data, int64(len(data))), result)
	}
	for i, data := range messages {
		if err := show(fmt.Sprintf("message %d", i+1), data, r.Handle(c.Context(), header, data)); err != nil {
			return err
		}
	}
	for range d.timers {
		timer, result := r.Fire(c.Context())
		if result == nil {
			break
		}
		if err := show(timer.String(), timer.Data, result); err != nil {
			return err
		}
	}
	if failed > 0 {
		return cli.Fail(cli.ExitFindings, "%d of %d messages failed", failed, handled)
	}
	return nil
}

func (d *devRun) spec(c *cli.Call) (*operatorv1.WorkerSpec, error) {
	file := c.Args[0]
	specs, err := readSpecs(c.Context(), file, c.InOrStdin())
	if err != nil {
		return nil, err
	}
	if d.id != "" {
		i := slices.IndexFunc(specs, func(s *operatorv1.WorkerSpec) bool { return s.GetId() == d.id })
		if i < 0 {
			return nil, fmt.Errorf("%s has no worker %s", file, d.id)
		}
		specs = specs[i : i+1]
	}
	if len(specs) > 1 {
		return nil, fmt.Errorf("which worker? %s has %d: give --id", file, len(specs))
	}
	if specs[0].GetCode().GetUrl() != "" {
		return nil, fmt.Errorf("the code of %s is at a URL, which only a host fetches: give it as a file or a text", specs[0].GetId())
	}
	return specs[0], nil
}

// variables returns the values that the flags give to the names of a spec.
func (d *devRun) variables(spec *operatorv1.WorkerSpec) (map[string]string, error) {
	names := slices.Concat(spec.GetEnv(), spec.GetSecrets())
	env := map[string]string{}
	for _, text := range d.env {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, errors.New("--env: want NAME=value") // the text may be a secret
		}
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--env: the spec of %s asks for no %s: want %s", spec.GetId(), name, strings.Join(names, ", "))
		}
		env[name] = value
	}
	for _, name := range names {
		if _, ok := env[name]; !ok {
			return nil, fmt.Errorf("the spec of %s asks for %s: give --env %s=value", spec.GetId(), name, name)
		}
	}
	return env, nil
}

// messages returns the sample messages.
func (d *devRun) messages(c *cli.Call) (all [][]byte, err error) {
	for _, text := range d.texts {
		all = append(all, []byte(text))
	}
	if d.file == "" {
		return all, nil
	}
	text, err := cli.ReadFile(c.Context(), d.file, c.InOrStdin())
	if err != nil {
		return nil, fmt.Errorf("--messages: %w", err)
	}
	for line := range bytes.Lines(text) {
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 {
			all = append(all, line)
		}
	}
	return all, nil
}

// showResult shows what a message causes, in the form of workers test.
func showResult(c *cli.Call, what string, result *dev.Result) error {
	if !c.Format.IsTable() {
		return c.Format.Item(c.OutOrStdout(), result)
	}
	out := output.NewTable(c.OutOrStdout())
	out.Row(what)
	trialTable(out, result)
	if result.GetError() != "" {
		out.Row("  " + result.GetError())
	}
	return c.Send(out.Text())
}
