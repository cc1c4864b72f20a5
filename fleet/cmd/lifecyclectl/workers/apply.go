package workers

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/host/codesign"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

// specHelp describes the files of apply and diff.
const specHelp = `A file is YAML or JSON, with one or more documents. A spec has the fields of
the contract's WorkerSpec: id, tenant, mimeType, topic, group, outputTopic, key,
limits, rate, env, secrets, http, rollout and code. Its code is {file: PATH} beside the file,
{text: ...}, or {url: URL, digest: ...}. A field that is unknown or there twice is
an error.`

func apply() *cobra.Command {
	var (
		files  specFlags
		dryRun bool
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "apply",
		Short: "Make workers be as files say: create them, or change what differs",
		Long: `Make workers be as files say: create them, or change what differs. It checks all
of them, with the server, before it changes the first one. It changes nothing of a
worker that is as its file says, and leaves workers alone that no file has.

` + specHelp,
		Example: `  lifecyclectl workers apply --file workers.yaml --dry-run
  lifecyclectl workers apply --file workers.yaml`,
	}, cli.OfWorker, func(c *cli.Call) error {
		specs, plans, err := planFiles(c, &files)
		if err != nil {
			return err
		}
		for i, s := range specs {
			if dryRun || !differs(plans[i]) {
				continue
			}
			if plans[i], err = c.Workers.ApplyWorker(c.Context(), &operatorv1.ApplyWorkerRequest{Spec: s}); err != nil {
				c.Warn("%d of %d workers were as their files say before this: %s", i, len(specs), s.GetId())
				return err
			}
		}
		return showPlans(c, specs, plans, dryRun)
	})
	files.register(cmd)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "check everything and change nothing")
	return cmd
}

func diff() *cobra.Command {
	var (
		files specFlags
		from  string
		to    string
	)
	cmd := cli.Command(&cobra.Command{
		Use:   "diff [ID]",
		Short: "Show what apply would change, or how two versions of a worker differ",
		Long: `Show what apply would change, and change nothing. The exit status is 1 when
something differs.

With ID show how two versions of a worker differ: the code, in the unified format, and the
settings as far as the server still knows them. Without --to it is the newest version, and
without --from the one before it. It needs the role operator.

` + specHelp,
		Example: `  lifecyclectl workers diff --file workers.yaml
  lifecyclectl workers diff thumbs --from sha256:… --to sha256:…`,
	}, cli.OfWorker, func(c *cli.Call) error {
		switch {
		case len(c.Args) > 0 && files.isGiven():
			return errors.New("an id and --file exclude each other")
		case len(c.Args) > 0:
			return diffVersions(c, c.Args[0], from, to)
		case from != "" || to != "":
			return errors.New("--from and --to go with the id of a worker")
		}
		specs, plans, err := planFiles(c, &files)
		if err != nil {
			return err
		}
		if err := showPlans(c, specs, plans, true); err != nil {
			return err
		}
		same := func(p *operatorv1.ApplyWorkerResponse) bool { return !differs(p) }
		if n := len(slices.DeleteFunc(plans, same)); n > 0 {
			return cli.Fail(cli.ExitFindings, "%d of %d workers differ", n, len(specs))
		}
		return nil
	})
	files.register(cmd)
	cmd.Flags().StringVar(&from, "from", "", "the `digest` of a version of the worker")
	cmd.Flags().StringVar(&to, "to", "", "the `digest` of a version of the worker")
	return cmd
}

// specFlags name files of specs, and of signatures.
type specFlags struct {
	files      []string
	signatures string
}

func (f *specFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringArrayVarP(&f.files, "file", "f", nil, "the specs, from this `file`; - is standard input; may be given more than once")
	cmd.Flags().StringVar(&f.signatures, "signatures", "", "the signatures of their code, from this `file` of workers sign")
}

func (f *specFlags) isGiven() bool { return len(f.files) > 0 || f.signatures != "" }

// read returns the specs of all files, with the signatures of their code.
func (f *specFlags) read(ctx context.Context, stdin io.Reader) ([]*operatorv1.WorkerSpec, error) {
	if len(f.files) == 0 {
		return nil, errors.New("which workers? give --file FILE")
	}
	var all []*operatorv1.WorkerSpec
	var faults []error
	from := map[string]string{}
	for _, file := range f.files {
		specs, err := readSpecs(ctx, file, stdin)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		for _, s := range specs {
			if other, twice := from[s.GetId()]; twice {
				faults = append(faults, fmt.Errorf("%s: the worker %s is in %s already", file, s.GetId(), other))
			}
			from[s.GetId()] = file
		}
		all = append(all, specs...)
	}
	if f.signatures != "" && len(faults) == 0 {
		faults = append(faults, addSignatures(ctx, f.signatures, all))
	}
	return all, errors.Join(faults...)
}

// planFiles reads specs and asks the server what each would change.
func planFiles(c *cli.Call, files *specFlags) ([]*operatorv1.WorkerSpec, []*operatorv1.ApplyWorkerResponse, error) {
	specs, err := files.read(c.Context(), c.InOrStdin())
	if err != nil {
		return nil, nil, err
	}
	p := cli.Begin(c.ErrOrStderr(), "checking")
	defer p.End()
	plans := make([]*operatorv1.ApplyWorkerResponse, len(specs))
	for i, s := range specs {
		p.Say("checking %s", s.GetId())
		if plans[i], err = c.Workers.ApplyWorker(c.Context(), &operatorv1.ApplyWorkerRequest{Spec: s, DryRun: true}); err != nil {
			return nil, nil, err
		}
	}
	return specs, plans, nil
}

func differs(p *operatorv1.ApplyWorkerResponse) bool {
	return p.GetCreated() || len(p.GetChanges()) > 0
}

// showPlans writes what was changed, or what would be.
func showPlans(c *cli.Call, specs []*operatorv1.WorkerSpec, plans []*operatorv1.ApplyWorkerResponse, dryRun bool) error {
	if !c.Format.IsTable() {
		for _, p := range plans {
			if err := c.Format.Item(c.OutOrStdout(), p); err != nil {
				return err
			}
		}
		return nil
	}
	t := output.NewTable(c.OutOrStdout())
	for i, p := range plans {
		would := ""
		if dryRun {
			would = "would be "
		}
		result := output.Faint("unchanged")
		switch {
		case p.GetCreated():
			result = output.Good(would + "created")
		case differs(p):
			result = output.Wait(would + "changed")
		}
		t.Row(specs[i].GetId(), result)
		for _, change := range p.GetChanges() {
			t.Row("  "+change.GetField(), short(change.GetFrom())+" -> "+short(change.GetTo()))
		}
	}
	return c.Send(t.Text())
}

// short shows a digest by its first digits, and no value as (none).
func short(value string) string {
	if rest, ok := strings.CutPrefix(value, "sha256:"); ok && len(rest) > 12 {
		return "sha256:" + rest[:12]
	}
	if value == "" {
		return "(none)"
	}
	return value
}

// diffVersions shows how two versions of a worker differ. The exit status is 1 when they
// do.
func diffVersions(c *cli.Call, id, from, to string) error {
	d, err := c.Workers.DiffWorkerCode(c.Context(), &operatorv1.DiffWorkerCodeRequest{Id: id, From: from, To: to})
	if err != nil {
		return err
	}
	err = c.Write(d, func(t *output.Table) {
		t.Line("from", d.GetFrom())
		t.Line("to", d.GetTo())
		if !d.GetSettingsKnown() {
			t.Line("settings", "not known any more")
		}
		for _, change := range d.GetChanges() {
			t.Row(output.Wait(change.GetField()), fmt.Sprintf("%q -> %q", change.GetFrom(), change.GetTo()))
		}
		if d.GetNotCompared() != "" {
			t.Line("code", fmt.Sprintf("%s: %d bytes became %d", d.GetNotCompared(), d.GetFromBytes(), d.GetToBytes()))
		}
	})
	if err != nil {
		return err
	}
	if c.Format.IsTable() && d.GetDiff() != "" {
		diff := d.GetDiff()
		if output.IsTerminal(c.OutOrStdout()) { // in a pipe it is as it is, for patch
			diff = output.PrintableText(diff)
		}
		if err := c.Send([]byte(diff)); err != nil {
			return err
		}
	}
	if d.GetDiff() != "" || d.GetNotCompared() != "" || len(d.GetChanges()) > 0 {
		return cli.Fail(cli.ExitFindings, "the versions of %s differ", id)
	}
	return nil
}

func sign() *cobra.Command {
	var (
		files specFlags
		key   string
	)
	cmd := &cobra.Command{
		Use:   "sign",
		Short: "Sign the code of specs, for hosts that run only signed code",
		Long: `Sign the code of specs, for hosts that run only signed code. It needs no server. It
writes a line for each worker, with its id and the signature; apply and diff read
these lines with --signatures. A signature is for the code, its kind, the worker and
its tenant. It is not for the other fields of the spec. The key is an Ed25519 key in
PEM, as openssl genpkey -algorithm ed25519 makes it.`,
		Example: `  lifecyclectl workers sign --file workers.yaml --key code.key > workers.sig
  lifecyclectl workers apply --file workers.yaml --signatures workers.sig`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := cli.ReadFile(cmd.Context(), key, nil)
			if err != nil {
				return fmt.Errorf("--key: %w", err)
			}
			private, err := codesign.ParsePrivate(text)
			if err != nil {
				return fmt.Errorf("--key: %s: %w", key, err)
			}
			specs, err := files.read(cmd.Context(), cmd.InOrStdin())
			if err != nil {
				return err
			}
			for _, s := range specs {
				signature, err := signatureOf(private, s)
				if err != nil {
					return err
				}
				line := fmt.Appendf(nil, "%s %s\n", s.GetId(), base64.StdEncoding.EncodeToString(signature))
				if err := output.Send(cmd.OutOrStdout(), line); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVarP(&files.files, "file", "f", nil, "the specs, from this `file`; - is standard input; may be given more than once")
	cmd.Flags().StringVar(&key, "key", "", "the private key, from this `file`")
	_ = cmd.MarkFlagRequired("key") // the flag exists
	return cmd
}

// signatureOf signs the code of a spec. Code at a URL has the digest that the spec names.
func signatureOf(key ed25519.PrivateKey, s *operatorv1.WorkerSpec) ([]byte, error) {
	digest := strings.ToLower(strings.TrimPrefix(s.GetCode().GetDigest(), "sha256:"))
	if s.GetCode().GetUrl() == "" {
		digest = codesign.DigestOf(s.GetCode().GetContent())
	}
	if digest == "" {
		return nil, fmt.Errorf("the code of %s is at a URL and has no digest: a signature is for one code", s.GetId())
	}
	return codesign.Sign(key, codesign.Code{
		Tenant:   s.GetTenant(),
		Worker:   s.GetId(),
		MIMEType: s.GetMimeType(),
		Digest:   digest,
	})
}

// addSignatures reads the lines of sign. A spec without a line keeps what it has.
func addSignatures(ctx context.Context, file string, specs []*operatorv1.WorkerSpec) error {
	text, err := cli.ReadFile(ctx, file, nil)
	if err != nil {
		return fmt.Errorf("--signatures: %w", err)
	}
	found := map[string][]byte{}
	for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		id, encoded, _ := strings.Cut(strings.TrimSpace(line), " ")
		signature, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
		if err != nil || len(signature) != ed25519.SignatureSize {
			return fmt.Errorf("--signatures: %s:%d: want the id of a worker and its signature, as workers sign writes them", file, i+1)
		}
		found[id] = signature
	}
	for _, s := range specs {
		if signature := found[s.GetId()]; signature != nil && s.GetCode() != nil {
			s.Code.Signature = signature
		}
	}
	return nil
}
