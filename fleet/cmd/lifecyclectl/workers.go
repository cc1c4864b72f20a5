package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func workersCommand() *cobra.Command {
	var r remote
	cmd := group(&cobra.Command{
		Use:     "workers",
		Aliases: []string{"worker"},
		Short:   "Hosted workers: code that is loaded at run time and fed by topics",
	},
		workerListCommand(&r), workerGetCommand(&r), workerDescribeCommand(&r), workerCreateCommand(&r), workerUpdateCommand(&r),
		workerApplyCommand(&r), workerDiffCommand(&r), workerLogsCommand(&r), workerStateCommand(&r), workerTimersCommand(&r), workerCancelTimerCommand(&r),
		workerTestCommand(&r), workerDevCommand(), workerSignCommand(),
		workerPromoteCommand(&r), workerRollbackCommand(&r), workerHistoryCommand(&r), workerDeleteCommand(&r), workerRecoverCommand(&r),
		workerVerb(&r, "start ID", "Feed a stopped worker again, from where it stopped", func(a *api, cmd *cobra.Command, id string) (*operatorv1.Worker, error) {
			return a.Workers.StartWorker(cmd.Context(), &operatorv1.StartWorkerRequest{Id: id})
		}),
		workerVerb(&r, "stop ID", "Stop feeding a worker; its messages wait", func(a *api, cmd *cobra.Command, id string) (*operatorv1.Worker, error) {
			return a.Workers.StopWorker(cmd.Context(), &operatorv1.StopWorkerRequest{Id: id})
		}),
	)
	r.register(cmd)
	return cmd
}

// workerVerb returns a command that changes one worker and shows it.
func workerVerb(r *remote, use, short string, do func(a *api, cmd *cobra.Command, id string) (*operatorv1.Worker, error)) *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use: use, Short: short, Args: words("ID"),
		RunE: asks(r, &o, ofWorker, func(a *api, cmd *cobra.Command, args []string) error {
			w, err := do(a, cmd, args[0])
			if err != nil {
				return err
			}
			return showWorker(cmd, &o, w)
		}),
		ValidArgsFunction: completeWorkers(r),
	}
	o.register(cmd)
	return cmd
}

func showWorker(cmd *cobra.Command, o *output, w *operatorv1.Worker) error {
	return o.write(cmd.OutOrStdout(), w, func(t *table) {
		t.line("id", w.GetId())
		t.row(cell{"state", faint}, state(w.GetState()))
		t.line("desired", w.GetDesired())
		if w.GetError() != "" {
			t.row(cell{"error", faint}, cell{w.GetError(), bad})
		}
		t.line("type", w.GetMimeType())
		t.line("topics", strings.Join(w.GetTopics(), ", "))
		t.line("group", w.GetGroup())
		t.line("output topic", w.GetOutputTopic())
		t.line("limits", limits(w.GetLimits()))
		t.line("rate", rate(w.GetSpec().GetRate()))
		t.line("tenant", w.GetSpec().GetTenant())
		t.line("key", w.GetSpec().GetKey())
		t.line("env", strings.Join(w.GetSpec().GetEnv(), ", "))
		t.line("secrets", strings.Join(w.GetSpec().GetSecrets(), ", "))
		t.line("http", strings.Join(w.GetSpec().GetHttp().GetAllow(), ", "))
		t.line("http secrets", strings.Join(w.GetSpec().GetHttp().GetSecrets(), ", "))
		t.line("host", w.GetHost())
		t.line("digest", w.GetDigest())
		t.line("canary", canary(w.GetCanary()))
		t.line("backlog", fmt.Sprint(w.GetBacklog()))
		t.line("dead letters", fmt.Sprint(w.GetDeadLetters()))
		t.line("created", moment(w.GetCreatedAt()))
		t.line("updated", moment(w.GetUpdatedAt()))
	})
}

// rate returns a worker's rate for people, "" for none.
func rate(r *operatorv1.Rate) string {
	if r == nil {
		return ""
	}
	text := fmt.Sprintf("%d per ", r.GetMessages())
	if r.GetPer() == nil {
		text += "second"
	} else {
		text += r.GetPer().AsDuration().String()
	}
	if r.GetBurst() > 0 {
		text += fmt.Sprintf(", burst %d", r.GetBurst())
	}
	return text
}

// limits returns a worker's own limits in the form of the flags of create.
func limits(l *operatorv1.Limits) string {
	var all []string
	if l.GetTime() != nil {
		all = append(all, "time "+l.GetTime().AsDuration().String())
	}
	if l.GetLoad() != nil {
		all = append(all, "load "+l.GetLoad().AsDuration().String())
	}
	for _, n := range []struct {
		name  string
		value int64
	}{{"memory", l.GetMemory()}, {"output", l.GetOutput()}, {"outputs", int64(l.GetOutputs())}} {
		if n.value != 0 {
			all = append(all, n.name+" "+strconv.FormatInt(n.value, 10))
		}
	}
	return strings.Join(all, ", ")
}

// limitFlags set a worker's own limits.
type limitFlags struct {
	time, load     time.Duration
	memory, output int64
	outputs        int32
}

func (l *limitFlags) register(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&l.time, "limit-time", 0, "how long one message may take; default: the host's limit")
	cmd.Flags().DurationVar(&l.load, "limit-load", 0, "how long the code may take to load")
	cmd.Flags().Int64Var(&l.memory, "limit-memory", 0, "`bytes` that the code may hold")
	cmd.Flags().Int64Var(&l.output, "limit-output", 0, "`bytes` that one message may publish and print")
	cmd.Flags().Int32Var(&l.outputs, "limit-outputs", 0, "how many `messages` one message may publish")
}

// limits returns nil when no flag is given.
func (l *limitFlags) limits() *operatorv1.Limits {
	if *l == (limitFlags{}) {
		return nil
	}
	m := &operatorv1.Limits{Memory: l.memory, Output: l.output, Outputs: l.outputs}
	if l.time != 0 {
		m.Time = durationpb.New(l.time)
	}
	if l.load != 0 {
		m.Load = durationpb.New(l.load)
	}
	return m
}

func workerGetCommand(r *remote) *cobra.Command {
	return workerVerb(r, "get ID", "Show one hosted worker", func(a *api, cmd *cobra.Command, id string) (*operatorv1.Worker, error) {
		return a.Workers.GetWorker(cmd.Context(), &operatorv1.GetWorkerRequest{Id: id})
	})
}

// codeFlags say where the code of a worker is.
type codeFlags struct{ file, url, digest string }

func (c *codeFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&c.file, "code", "f", "", "the code, from this `file`; - is standard input")
	cmd.Flags().StringVar(&c.url, "url", "", "the code, fetched by the host from this `URL`")
	cmd.Flags().StringVar(&c.digest, "digest", "", "the `digest` that the code must have: sha256:…")
}

func (c *codeFlags) code(cmd *cobra.Command) (*operatorv1.Code, error) {
	switch {
	case c.file == "" && c.url == "":
		return nil, errors.New("no code is given: want --code FILE or --url URL")
	case c.file != "" && c.url != "":
		return nil, errors.New("--code and --url exclude each other")
	case c.url != "":
		return &operatorv1.Code{Source: &operatorv1.Code_Url{Url: c.url}, Digest: c.digest}, nil
	}
	text, err := readAll(c.file, cmd.InOrStdin())
	if err != nil {
		return nil, fmt.Errorf("--code: %w", err)
	}
	return &operatorv1.Code{Source: &operatorv1.Code_Content{Content: text}, Digest: c.digest}, nil
}

func workerCreateCommand(r *remote) *cobra.Command {
	var (
		o    output
		req  operatorv1.CreateWorkerRequest
		code codeFlags
		own  limitFlags
	)
	cmd := &cobra.Command{
		Use:   "create [ID]",
		Short: "Load code and begin to feed it",
		Example: `  lifecyclectl workers create thumbs --type application/wasm --topic images.new --output-topic images.small --limit-time 5s --code thumbs.wasm
  lifecyclectl workers create --type application/javascript --topic orders --group shop --url https://example.com/orders.js --digest sha256:…`,
		Args: words("[ID]"),
		RunE: asks(r, &o, ofWorker, func(a *api, cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				req.Id = args[0]
			}
			if req.GetMimeType() == "" || len(req.GetTopics()) == 0 {
				return errors.New("--type and --topic are required: the kind of code, and the topic that feeds it")
			}
			var err error
			if req.Code, err = code.code(cmd); err != nil {
				return err
			}
			req.Limits = own.limits()
			w, err := a.Workers.CreateWorker(cmd.Context(), &req)
			if err != nil {
				return err
			}
			return showWorker(cmd, &o, w)
		}),
	}
	cmd.Flags().StringVar(&req.MimeType, "type", "", "the MIME `type` of the code")
	cmd.Flags().StringArrayVar(&req.Topics, "topic", nil, "a `topic` that feeds it; may be given more than once")
	cmd.Flags().StringVar(&req.Group, "group", "", "workers of one `group` handle one message at a time between them")
	cmd.Flags().StringVar(&req.OutputTopic, "output-topic", "", "the `topic` of what the code returns; default: it is dropped")
	own.register(cmd)
	code.register(cmd)
	o.register(cmd)
	return cmd
}

func workerUpdateCommand(r *remote) *cobra.Command {
	var code codeFlags
	cmd := workerVerb(r, "update ID", "Give a worker new code, between two messages", func(a *api, cmd *cobra.Command, id string) (*operatorv1.Worker, error) {
		c, err := code.code(cmd)
		if err != nil {
			return nil, err
		}
		return a.Workers.LoadCode(cmd.Context(), &operatorv1.LoadCodeRequest{Id: id, Code: c})
	})
	code.register(cmd)
	return cmd
}

func workerDeleteCommand(r *remote) *cobra.Command {
	var (
		o   output
		yes consent
	)
	cmd := &cobra.Command{
		Use:   "delete ID",
		Short: "Let a worker finish its message, and remove it for good",
		Args:  words("ID"),
		RunE: asks(r, &o, ofWorker, func(a *api, cmd *cobra.Command, args []string) error {
			if err := yes.ask(cmd, fmt.Sprintf("The worker %s and its history will be removed for good.", args[0])); err != nil {
				return err
			}
			answer, err := a.Workers.DeleteWorker(cmd.Context(), &operatorv1.DeleteWorkerRequest{Id: args[0]})
			if err != nil {
				return err
			}
			return o.write(cmd.OutOrStdout(), answer, func(t *table) { t.row(args[0] + " is deleted") })
		}),
		ValidArgsFunction: completeWorkers(r),
	}
	yes.register(cmd)
	o.register(cmd)
	return cmd
}

func workerRecoverCommand(r *remote) *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Recover every stored worker that should run and does not",
		Long: `Recover every stored worker that should run and does not. One that fails does
not stop the others; the exit status is then 1.`,
		Args: words(),
		RunE: asks(r, &o, ofWorker, func(a *api, cmd *cobra.Command, _ []string) error {
			p := begin(cmd.ErrOrStderr(), "recovering")
			answer, err := a.Workers.RecoverWorkers(cmd.Context(), &operatorv1.RecoverWorkersRequest{})
			p.end()
			if err != nil {
				return err
			}
			err = o.write(cmd.OutOrStdout(), answer, func(t *table) {
				t.head("ID", "RESULT")
				for _, id := range answer.GetRecovered() {
					t.row(id, cell{"running", good})
				}
				for _, f := range answer.GetFailures() {
					t.row(f.GetId(), cell{f.GetError(), bad})
				}
			})
			if err == nil && len(answer.GetFailures()) > 0 {
				err = &failure{status: exitFindings, err: fmt.Errorf("%d of %d workers could not be recovered", len(answer.GetFailures()), len(answer.GetFailures())+len(answer.GetRecovered()))}
			}
			return err
		}),
	}
	o.register(cmd)
	return cmd
}
