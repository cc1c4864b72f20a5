package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/dev"
	"github.com/pleme-io/lifecycle-go/fleet/host/engine"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func workerDevCommand() *cobra.Command {
	var (
		o   output
		run devRun
	)
	cmd := &cobra.Command{
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
  lifecyclectl workers dev workers.yaml --id counter --messages samples.txt --env TOKEN=x --watch`,
		Args: words("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return err
			}
			if len(run.texts) == 0 && run.file == "" {
				return errors.New("which messages? give --message TEXT, or --messages FILE with one in each line")
			}
			if run.watch && (args[0] == "-" || run.file == "-") {
				return errors.New("--watch needs files: standard input cannot be read again")
			}
			if run.watch {
				return run.again(cmd, &o, args[0])
			}
			return run.once(cmd, &o, args[0])
		},
	}
	f := cmd.Flags()
	f.StringVar(&run.id, "id", "", "the `id` of the worker, in a file with several")
	f.StringArrayVar(&run.texts, "message", nil, "a message; may be given more than once")
	f.StringVar(&run.file, "messages", "", "messages, one in each line of this `file`; - is standard input")
	f.StringArrayVar(&run.headers, "header", nil, "a `header` of each message, as Name=value; may be given more than once")
	f.StringArrayVar(&run.env, "env", nil, "the value of a variable or secret of the spec, as `NAME=value`; may be given more than once")
	f.BoolVar(&run.http, "http", false, "let the code send the HTTP requests that its spec allows; without it they fail")
	f.StringArrayVar(&run.networks, "http-network", nil, "a `network` that requests may reach although it is not public, such as 127.0.0.0/8; may be given more than once")
	f.IntVar(&run.timers, "timers", 10, "how `many` timers to fire after the messages")
	f.BoolVar(&run.watch, "watch", false, "run all messages again when a file changes, until it is interrupted")
	o.register(cmd)
	return cmd
}

// devRun is one command line.
type devRun struct {
	id, file            string
	texts, headers, env []string
	networks            []string
	watch, http         bool
	timers              int
}

// again runs the messages each time that a file has changed.
func (d *devRun) again(cmd *cobra.Command, o *output, file string) error {
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for before := ""; ; {
		if now := d.stamp(file); now != before {
			before = now
			if err := d.once(cmd, o, file); err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "lifecyclectl: %s\n", printableLines(err.Error()))
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "lifecyclectl: waiting for a change of %s\n", file)
		}
		select {
		case <-tick.C:
		case <-cmd.Context().Done():
			return nil
		}
	}
}

// stamp changes when a file of the run does: the spec, a file beside it, or the messages.
func (d *devRun) stamp(file string) string {
	var all strings.Builder
	names, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "*")) // the pattern is valid
	for _, name := range append(names, d.file) {
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
			fmt.Fprintln(&all, name, info.Size(), info.ModTime().UnixNano())
		}
	}
	return all.String()
}

// once runs the messages.
func (d *devRun) once(cmd *cobra.Command, o *output, file string) error {
	spec, err := d.spec(cmd, file)
	if err != nil {
		return err
	}
	messages, err := d.messages(cmd)
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
	env, err := d.variables(spec)
	if err != nil {
		return err
	}
	l := spec.GetLimits()
	topic := spec.GetTopic()
	var web *dev.HTTP
	if d.http {
		web = &dev.HTTP{Allow: spec.GetHttp().GetAllow(), Networks: d.networks, Secrets: only(env, spec.GetHttp().GetSecrets())}
	} else if len(d.networks) > 0 {
		return errors.New("--http-network is for --http: without it there are no requests")
	}
	r, err := dev.Open(cmd.Context(), dev.Worker{
		HTTP: web,
		ID:   spec.GetId(), MIMEType: spec.GetMimeType(), Topic: topic, OutputTopic: spec.GetOutputTopic(), Key: spec.GetKey(), Env: only(env, slices.Concat(spec.GetEnv(), spec.GetSecrets())), Code: spec.GetCode().GetContent(),
		Limits: engine.Limits{Time: l.GetTime().AsDuration(), Load: l.GetLoad().AsDuration(), Memory: l.GetMemory(), Output: l.GetOutput(), Outputs: int(l.GetOutputs())},
	})
	if err != nil {
		return &failure{status: exitFindings, err: err}
	}
	failed := 0
	for i, data := range messages {
		if cmd.Context().Err() != nil {
			break
		}
		result := r.Handle(cmd.Context(), header, data)
		if result.Err != nil {
			failed++
		}
		if err := showResult(cmd, o, fmt.Sprintf("message %d: %s", i+1, preview(data, int64(len(data)))), result); err != nil {
			return errors.Join(err, r.Close())
		}
	}
	fired := 0
	for ; fired < d.timers && cmd.Context().Err() == nil; fired++ {
		timer, result, ok := r.Fire(cmd.Context())
		if !ok {
			break
		}
		if result.Err != nil {
			failed++
		}
		if err := showResult(cmd, o, fmt.Sprintf("%v: %s", timer, preview(timer.Data, int64(len(timer.Data)))), result); err != nil {
			return errors.Join(err, r.Close())
		}
	}
	switch err := r.Close(); {
	case err != nil:
		return &failure{status: exitFindings, err: err}
	case cmd.Context().Err() != nil:
		return context.Canceled
	case failed > 0:
		return &failure{status: exitFindings, err: fmt.Errorf("%d of %d messages failed", failed, len(messages)+fired)}
	}
	return nil
}

// spec returns the spec to run.
func (d *devRun) spec(cmd *cobra.Command, file string) (*operatorv1.WorkerSpec, error) {
	specs, err := readSpecs(file, cmd.InOrStdin())
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
func (d *devRun) messages(cmd *cobra.Command) (all [][]byte, err error) {
	for _, text := range d.texts {
		all = append(all, []byte(text))
	}
	if d.file == "" {
		return all, nil
	}
	text, err := readAll(d.file, cmd.InOrStdin())
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
func showResult(cmd *cobra.Command, o *output, what string, r dev.Result) error {
	t := &operatorv1.TestWorkerResponse{Logs: r.Lines, Duration: durationpb.New(r.Took.Round(time.Microsecond))}
	for _, out := range r.Outputs {
		m := &operatorv1.TestWorkerResponse_Output{Topic: out.Topic, Data: out.Data}
		for name, values := range out.Header {
			m.Headers = append(m.Headers, &operatorv1.Header{Name: name, Values: values})
		}
		slices.SortFunc(m.Headers, func(a, b *operatorv1.Header) int { return strings.Compare(a.GetName(), b.GetName()) })
		t.Outputs = append(t.Outputs, m)
	}
	for _, c := range r.Changes {
		t.Changes = append(t.Changes, &operatorv1.TestWorkerResponse_Change{Key: c.Key, Value: c.Data, Deleted: c.Deleted})
	}
	for _, c := range r.Timers {
		timer := &operatorv1.TestWorkerResponse_Timer{Name: c.Name, Data: c.Data, Cancelled: c.Cancelled}
		if !c.Cancelled {
			timer.Due = timestamppb.New(c.Due)
		}
		t.Timers = append(t.Timers, timer)
	}
	if r.Err != nil {
		var rejected *engine.RejectError
		t.Error, t.Rejected = r.Err.Error(), errors.As(r.Err, &rejected)
	}
	if o.format != "table" {
		return o.item(cmd.OutOrStdout(), t)
	}
	out := &table{colours: colourful(cmd.OutOrStdout())}
	out.row(cell{what, strong})
	trialTable(out, t)
	if t.GetError() != "" {
		out.row("  " + t.GetError())
	}
	return send(cmd.OutOrStdout(), out.text())
}
