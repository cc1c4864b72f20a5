package workers

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// codeFlags say where the code of a worker is.
type codeFlags struct{ file, url, digest string }

func (f *codeFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.file, "code", "f", "", "the code, from this `file`; - is standard input")
	cmd.Flags().StringVar(&f.url, "url", "", "the code, fetched by the host from this `URL`")
	cmd.Flags().StringVar(&f.digest, "digest", "", "the `digest` that the code must have: sha256:…")
	cmd.MarkFlagsMutuallyExclusive("code", "url")
}

func (f *codeFlags) code(c *cli.Call) (*operatorv1.Code, error) {
	switch {
	case f.file == "" && f.url == "":
		return nil, errors.New("no code is given: want --code FILE or --url URL")
	case f.url != "":
		return &operatorv1.Code{Source: &operatorv1.Code_Url{Url: f.url}, Digest: f.digest}, nil
	}
	text, err := cli.ReadFile(c.Context(), f.file, c.InOrStdin())
	if err != nil {
		return nil, fmt.Errorf("--code: %w", err)
	}
	return &operatorv1.Code{Source: &operatorv1.Code_Content{Content: text}, Digest: f.digest}, nil
}

func create() *cobra.Command {
	var (
		req  operatorv1.CreateWorkerRequest
		code codeFlags
	)
	cmd := cli.Command(&cobra.Command{
		Use:               "create [ID]",
		ValidArgsFunction: cobra.NoFileCompletions, // the id is new
		Short:             "Load code and begin to feed it; a worker with limits or more comes from workers apply",
		Example: `  lifecyclectl workers create thumbs --type application/wasm --topic images.new --code thumbs.wasm
  lifecyclectl workers create --type application/javascript --topic orders --group shop --url https://example.com/orders.js --digest sha256:…`,
	}, cli.OfWorker, func(c *cli.Call) error {
		req.Id = c.Arg(0)
		var err error
		if req.Code, err = code.code(c); err != nil {
			return err
		}
		w, err := c.Workers.CreateWorker(c.Context(), &req)
		return show(c, w, err)
	})
	cmd.Flags().StringVar(&req.MimeType, "type", "", "the MIME `type` of the code")
	cmd.Flags().StringArrayVar(&req.Topics, "topic", nil, "a `topic` that feeds it; may be given more than once")
	cmd.Flags().StringVar(&req.Group, "group", "", "workers of one `group` handle one message at a time between them")
	cmd.Flags().StringVar(&req.OutputTopic, "output-topic", "", "the `topic` of what the code returns; default: it is dropped")
	code.register(cmd)
	for _, name := range []string{"type", "topic"} {
		_ = cmd.MarkFlagRequired(name) // the flag exists
	}
	return cmd
}

func update() *cobra.Command {
	var code codeFlags
	cmd := one("update ID", "Give a worker new code, between two messages", func(c *cli.Call, id string) (*operatorv1.Worker, error) {
		given, err := code.code(c)
		if err != nil {
			return nil, err
		}
		return c.Workers.LoadCode(c.Context(), &operatorv1.LoadCodeRequest{Id: id, Code: given})
	})
	code.register(cmd)
	return cmd
}

func remove() *cobra.Command {
	var yes cli.Consent
	cmd := cli.Command(&cobra.Command{
		Use:   "delete ID",
		Short: "Let a worker finish its message, and remove it for good",
	}, cli.OfWorker, func(c *cli.Call) error {
		if err := yes.Ask(c.Command, fmt.Sprintf("The worker %s and its history will be removed for good.", c.Args[0])); err != nil {
			return err
		}
		answer, err := c.Workers.DeleteWorker(c.Context(), &operatorv1.DeleteWorkerRequest{Id: c.Args[0]})
		return c.Answer(answer, err, func(t *output.Table) { t.Row(c.Args[0] + " is deleted") })
	})
	yes.Register(cmd)
	return cmd
}

func recoverAll() *cobra.Command {
	return cli.Command(&cobra.Command{
		Use:   "recover",
		Short: "Recover every stored worker that should run and does not",
		Long: `Recover every stored worker that should run and does not. One that fails does
not stop the others; the exit status is then 1.`,
	}, cli.OfWorker, func(c *cli.Call) error {
		p := cli.Begin(c.ErrOrStderr(), "recovering")
		answer, err := c.Workers.RecoverWorkers(c.Context(), &operatorv1.RecoverWorkersRequest{})
		p.End()
		if err != nil {
			return err
		}
		err = c.Write(answer, func(t *output.Table) {
			t.Head("ID", "RESULT")
			for _, id := range answer.GetRecovered() {
				t.Row(id, output.Good("running"))
			}
			for _, f := range answer.GetFailures() {
				t.Row(f.GetId(), output.Bad(f.GetError()))
			}
		})
		if err == nil && len(answer.GetFailures()) > 0 {
			failed := len(answer.GetFailures())
			err = cli.Fail(cli.ExitFindings, "%d of %d workers could not be recovered", failed, failed+len(answer.GetRecovered()))
		}
		return err
	})
}

func promote() *cobra.Command {
	return one("promote ID", "Give every message to the canary of a worker", func(c *cli.Call, id string) (*operatorv1.Worker, error) {
		return c.Workers.PromoteWorker(c.Context(), &operatorv1.PromoteWorkerRequest{Id: id})
	})
}

// percent returns the share of a canary, "" without one.
func percent(c *operatorv1.Canary) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%d%%", c.GetPercent())
}

// canary says which version gets which share, until when.
func canary(c *operatorv1.Canary) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%d%% to %s since %s, at least until %s",
		c.GetPercent(), short(c.GetDigest()), output.Moment(c.GetSince()), output.Moment(c.GetUntil()))
}

func rollback() *cobra.Command {
	var to string
	cmd := one("rollback ID", "Give a worker the code that it had before, or end its canary", func(c *cli.Call, id string) (*operatorv1.Worker, error) {
		if to == "" {
			w, err := c.Workers.GetWorker(c.Context(), &operatorv1.GetWorkerRequest{Id: id})
			if err != nil {
				return nil, err
			}
			if w.GetCanary() != nil {
				to = w.GetDigest()
			}
		}
		if to == "" {
			h, err := c.Workers.GetWorkerHistory(c.Context(), &operatorv1.GetWorkerHistoryRequest{Id: id})
			if err != nil {
				return nil, err
			}
			if to = codeBefore(h.GetVersions()); to == "" {
				return nil, cli.Fail(cli.ExitFindings, "%s has no earlier code", id)
			}
		}
		return c.Workers.Rollback(c.Context(), &operatorv1.RollbackRequest{Id: id, Digest: to})
	})
	cmd.Flags().StringVar(&to, "to", "",
		"the `digest` of the code; default: the current code when there is a canary, which ends it, and otherwise the code before it")
	return cmd
}

// codeBefore returns the digest of the code before the current one, "" when
// there is none. Versions are oldest first.
func codeBefore(versions []*operatorv1.CodeVersion) (digest string) {
	for i, v := range versions {
		if !v.GetCurrent() {
			continue
		}
		for _, earlier := range versions[:i] {
			if earlier.GetDigest() != v.GetDigest() {
				digest = earlier.GetDigest()
			}
		}
	}
	return digest
}
