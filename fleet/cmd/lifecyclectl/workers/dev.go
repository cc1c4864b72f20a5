package workers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/dev"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func develop() *cobra.Command {
	var d devRun
	cmd := cli.LocalCommand(&cobra.Command{
		Use:   "dev FILE",
		Short: "Run the code of a spec on this machine against sample messages",
		Long: `Run the code of a spec on this machine against sample messages, one after the
other. It needs no server. The code runs in a process of its own, within the limits of
its spec. The state is empty at first and lasts until the command ends. It shows what
each message would publish and write, the timers that it would set, and what the code
prints. After the messages it fires timers, in the order in which they are due and
without waiting, at most 10 unless --timers says another number. The exit status is 1
when a message failed.

` + specHelp,
		Example: `  lifecyclectl workers dev workers.yaml --message "one two" --message three
  lifecyclectl workers dev workers.yaml --id counter --messages samples.txt --env TOKEN=x`,
		Args: cli.Words("FILE"),
	}, func(c *cli.Call) error {
		if len(d.texts) == 0 && d.file == "" {
			return errors.New("which messages? give --message TEXT, or --messages FILE with one in each line")
		}
		return d.once(c)
	})
	f := cmd.Flags()
	f.StringVar(&d.id, "id", "", "the `id` of the worker, in a file with several")
	f.StringArrayVar(&d.texts, "message", nil, "a message; may be given more than once")
	f.StringVar(&d.file, "messages", "", "messages, one in each line of this `file`; - is standard input")
	f.StringArrayVar(&d.headers, "header", nil, "a `header` of each message, as Name=value; may be given more than once")
	f.StringArrayVar(&d.env, "env", nil, "the value of a variable or secret of the spec, as `NAME=value`; may be given more than once")
	f.BoolVar(&d.http, "http", false, "let the code send the HTTP requests that its spec allows; without it they fail")
	f.StringArrayVar(&d.networks, "http-network", nil,
		"a `network` that requests may reach although it is not public, such as 127.0.0.0/8; may be given more than once")
	f.IntVar(&d.timers, "timers", 10, "how `many` timers to fire after the messages")
	return cmd
}

// devRun is one command line.
type devRun struct {
	id, file            string
	texts, headers, env []string
	networks            []string
	http                bool
	timers              int
}

// once runs the messages, and then the timers that they have set.
func (d *devRun) once(c *cli.Call) error {
	w, err := d.worker(c)
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
	r, err := dev.Open(c.Context(), *w)
	if err != nil {
		return cli.Fail(cli.ExitFindings, "%w", err)
	}
	handled, failed, err := d.handle(c, r, header, messages)
	if err := errors.Join(err, r.Close()); err != nil {
		return cli.Fail(cli.ExitFindings, "%w", err)
	}
	switch {
	case c.Context().Err() != nil:
		return context.Canceled
	case failed > 0:
		return cli.Fail(cli.ExitFindings, "%d of %d messages failed", failed, handled)
	}
	return nil
}

// handle gives the messages to the worker, and then fires its timers.
func (d *devRun) handle(c *cli.Call, r *dev.Runner, header map[string][]string, messages [][]byte) (handled, failed int, err error) {
	show := func(what string, data []byte, result dev.Result) error {
		handled++
		if result.Err != nil {
			failed++
		}
		return showResult(c, what+": "+preview(data, int64(len(data))), result)
	}
	for i, data := range messages {
		if c.Context().Err() != nil {
			break
		}
		if err := show(fmt.Sprintf("message %d", i+1), data, r.Handle(c.Context(), header, data)); err != nil {
			return handled, failed, err
		}
	}
	for i := 0; i < d.timers && c.Context().Err() == nil; i++ {
		timer, result, ok := r.Fire(c.Context())
		if !ok {
			break
		}
		if err := show(timer.String(), timer.Data, result); err != nil {
			return handled, failed, err
		}
	}
	return handled, failed, nil
}

// worker returns what runs: the spec, with the values of the flags.
func (d *devRun) worker(c *cli.Call) (*dev.Worker, error) {
	spec, err := d.spec(c)
	if err != nil {
		return nil, err
	}
	env, err := d.variables(spec)
	if err != nil {
		return nil, err
	}
	if len(d.networks) > 0 && !d.http {
		return nil, errors.New("--http-network is for --http: without it there are no requests")
	}
	l := spec.GetLimits()
	w := &dev.Worker{
		ID:          spec.GetId(),
		MIMEType:    spec.GetMimeType(),
		Topic:       spec.GetTopic(),
		OutputTopic: spec.GetOutputTopic(),
		Key:         spec.GetKey(),
		Env:         only(env, slices.Concat(spec.GetEnv(), spec.GetSecrets())),
		Code:        spec.GetCode().GetContent(),
		Limits: engine.Limits{
			Time:    l.GetTime().AsDuration(),
			Load:    l.GetLoad().AsDuration(),
			Memory:  l.GetMemory(),
			Output:  l.GetOutput(),
			Outputs: int(l.GetOutputs()),
		},
	}
	if d.http {
		w.HTTP = &dev.HTTP{Allow: spec.GetHttp().GetAllow(), Networks: d.networks, Secrets: only(env, spec.GetHttp().GetSecrets())}
	}
	return w, nil
}

// spec returns the spec to run.
func (d *devRun) spec(c *cli.Call) (*operatorv1.WorkerSpec, error) {
	file := c.Args[0]
	specs, err := readSpecs(file, c.InOrStdin())
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
	names := slices.Concat(spec.GetEnv(), spec.GetSecrets(), spec.GetHttp().GetSecrets())
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

// only returns the variables with these names.
func only(env map[string]string, names []string) map[string]string {
	some := map[string]string{}
	for _, name := range names {
		some[name] = env[name]
	}
	return some
}

// messages returns the sample messages.
func (d *devRun) messages(c *cli.Call) (all [][]byte, err error) {
	for _, text := range d.texts {
		all = append(all, []byte(text))
	}
	if d.file == "" {
		return all, nil
	}
	text, err := cli.ReadFile(d.file, c.InOrStdin())
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
func showResult(c *cli.Call, what string, r dev.Result) error {
	t := &operatorv1.TestWorkerResponse{Logs: r.Lines, Duration: durationpb.New(r.Took.Round(time.Microsecond))}
	for _, out := range r.Outputs {
		m := &operatorv1.TestWorkerResponse_Output{Topic: out.Topic, Data: out.Data}
		for name, values := range out.Header {
			m.Headers = append(m.Headers, &operatorv1.Header{Name: name, Values: values})
		}
		slices.SortFunc(m.Headers, func(a, b *operatorv1.Header) int { return strings.Compare(a.GetName(), b.GetName()) })
		t.Outputs = append(t.Outputs, m)
	}
	for _, change := range r.Changes {
		t.Changes = append(t.Changes, &operatorv1.TestWorkerResponse_Change{Key: change.Key, Value: change.Data, Deleted: change.Deleted})
	}
	for _, set := range r.Timers {
		timer := &operatorv1.TestWorkerResponse_Timer{Name: set.Name, Data: set.Data, Cancelled: set.Cancelled}
		if !set.Cancelled {
			timer.Due = timestamppb.New(set.Due)
		}
		t.Timers = append(t.Timers, timer)
	}
	if r.Err != nil {
		var rejected *engine.RejectError
		t.Error, t.Rejected = r.Err.Error(), errors.As(r.Err, &rejected)
	}
	if !c.Format.IsTable() {
		return c.Format.Item(c.OutOrStdout(), t)
	}
	out := output.NewTable(c.OutOrStdout())
	out.Row(output.Strong(what))
	trialTable(out, t)
	if t.GetError() != "" {
		out.Row("  " + t.GetError())
	}
	return c.Send(out.Text())
}
