package processes

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/internal/redact"
	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func bundle() *cobra.Command {
	var (
		file  string
		since time.Duration
		with  parts
	)
	cmd := cli.TextCommand(&cobra.Command{
		Use:   "bundle",
		Short: "Collect what support needs into one archive, without secrets",
		Long: `Collect what support needs into one archive (tar.gz): what is wrong, the processes
with their units and probes, the events, the audit, the workflows, and the hosted workers.
It has no entities, no code and no dead letters. With --logs, --stacks and --config it
also has the end of each process's log, its stacks, and its configuration with the source
of each value, which needs the role inspector.

Before a text is written, what looks like a secret is taken out: values of names such as
password, secret, token and key, credentials in URLs, bearer tokens, JSON web tokens,
private keys, seeds of NATS, and the headers Cookie and Authorization. Look into the archive
before you send it: a secret without such a mark stays.

What could not be read is in the file missing.txt of the archive; the exit status is then 1.`,
		Example: `  lifecyclectl bundle --logs --stacks --config
  lifecyclectl bundle --since 2h --file incident.tar.gz`,
	}, cli.OfNothing, func(c *cli.Call) error {
		if _, err := c.Access.WhoAmI(c.Context(), &operatorv1.WhoAmIRequest{}); err != nil {
			return err // the server is away: an archive would be empty
		}
		at := time.Now().UTC()
		b := &archive{name: "lifecycle-bundle-" + at.Format("20060102T150405Z"), at: at}
		b.collect(c, since, with)
		if c.Context().Err() != nil {
			return context.Canceled
		}
		if err := b.write(c, file); err != nil {
			return err
		}
		if len(b.missing) > 0 {
			return cli.Fail(cli.ExitFindings, "the archive is not complete: %s", strings.Join(b.missing, "; "))
		}
		return nil
	})
	f := cmd.Flags()
	f.StringVarP(&file, "file", "f", "", "write the archive to this `file`; - is standard output; default: lifecycle-bundle-TIME.tar.gz")
	f.DurationVar(&since, "since", 24*time.Hour, "the events and the audit of the last `time`")
	f.BoolVar(&with.logs, "logs", false, "with the end of each process's log")
	f.BoolVar(&with.stacks, "stacks", false, "with the stacks of each process")
	f.BoolVar(&with.config, "config", false, "with the configuration of each process, and the source of each value")
	return cmd
}

// parts are what a bundle has of each process besides its state.
type parts struct{ logs, stacks, config bool }

// archive is a bundle under construction.
type archive struct {
	name    string
	at      time.Time
	files   []bundleFile
	missing []string
}

type bundleFile struct {
	name string
	text []byte
}

// write writes the archive to the file; - is standard output.
func (b *archive) write(c *cli.Call, file string) error {
	packed, err := b.pack()
	if err != nil {
		return err
	}
	if file == "-" {
		return c.Send(packed)
	}
	if file == "" {
		file = b.name + ".tar.gz"
	}
	write := cli.ReplaceFile
	if info, err := os.Lstat(file); err == nil && !info.Mode().IsRegular() {
		write = os.WriteFile // such as /dev/stdout, and a link stays one
	}
	if err := write(file, packed, 0o600); err != nil {
		return err
	}
	fmt.Fprintf(c.ErrOrStderr(), "%s has %d files: look into it before you send it\n", file, len(b.files))
	return nil
}

// add adds a file without secrets, or notes why there is none.
func (b *archive) add(name string, text []byte, err error) {
	if err != nil {
		b.missing = append(b.missing, name+": "+redact.Text(client.Message(err)))
		return
	}
	if strings.HasSuffix(name, ".json") {
		clean, err := redact.JSON(text)
		if err != nil {
			b.missing = append(b.missing, name+": it is not JSON")
			return
		}
		b.files = append(b.files, bundleFile{name, clean})
		return
	}
	b.files = append(b.files, bundleFile{name, []byte(redact.Text(string(text)))})
}

// message returns a function that adds an answer as JSON. What the server does not serve, or a
// process does not report, is left out.
func (b *archive) message(name string) func(proto.Message, error) {
	return func(m proto.Message, err error) {
		var text []byte
		if err == nil {
			text, err = output.JSON(m, "  ")
		}
		if code := connect.CodeOf(err); err == nil || code != connect.CodeUnimplemented && code != connect.CodeFailedPrecondition {
			b.add(name, text, err)
		}
	}
}

// mostInBundle is how many events or attempts a bundle has at most.
const mostInBundle = 20_000

func (b *archive) collect(c *cli.Call, since time.Duration, with parts) {
	ctx := c.Context()
	about := fmt.Appendf(nil, "made %s by lifecyclectl %s from %s\n", b.at.Format(time.RFC3339), cli.Version(), c.URL)
	b.add("about.txt", about, nil)
	b.message("whoami.json")(c.Access.WhoAmI(ctx, &operatorv1.WhoAmIRequest{}))
	b.message("doctor.json")(c.Processes.Diagnose(ctx, &operatorv1.DiagnoseRequest{}))
	processes, err := cli.All(ctx, mostInBundle, &operatorv1.ListProcessesRequest{}, c.Processes.ListProcesses)
	b.message("processes.json")(processes, err)
	from := timestamppb.New(b.at.Add(-since))
	b.message("events.json")(cli.All(ctx, mostInBundle, &operatorv1.ListEventsRequest{Since: from}, c.Processes.ListEvents))
	b.message("audit.json")(cli.All(ctx, mostInBundle, &operatorv1.ListAuditRequest{Since: from}, c.Access.ListAudit))
	b.message("workflows.json")(c.Workflows.ListDefinitions(ctx, &operatorv1.ListDefinitionsRequest{}))
	b.message("workers.json")(cli.All(ctx, mostInBundle, &operatorv1.ListWorkersRequest{}, c.Workers.ListWorkers))
	for _, p := range processes.GetProcesses() {
		b.inside(c, p.GetId(), with)
		if ctx.Err() != nil {
			return
		}
	}
}

// inside adds parts of a process. Logs and a configuration that the process does not report
// are left out.
func (b *archive) inside(c *cli.Call, id string, with parts) {
	name := url.PathEscape(id) // an id may have any text
	if with.logs {
		answer, err := c.Processes.GetLogs(c.Context(), &operatorv1.GetLogsRequest{Id: id, Limit: 1000})
		var text strings.Builder
		for _, l := range answer.GetLines() {
			text.WriteString(l.GetText() + "\n")
		}
		if connect.CodeOf(err) != connect.CodeFailedPrecondition {
			b.add("logs/"+name+".txt", []byte(text.String()), err)
		}
	}
	if with.stacks {
		answer, err := c.Processes.GetStacks(c.Context(), &operatorv1.GetStacksRequest{Id: id})
		b.add("stacks/"+name+".txt", []byte(answer.GetText()), err)
	}
	if with.config {
		b.message("config/" + name + ".json")(c.Processes.GetConfig(c.Context(), &operatorv1.GetConfigRequest{Id: id}))
	}
}

func (b *archive) pack() ([]byte, error) {
	if len(b.missing) > 0 {
		b.files = append(b.files, bundleFile{"missing.txt", []byte(strings.Join(b.missing, "\n") + "\n")})
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	t := tar.NewWriter(z)
	for _, f := range b.files {
		head := &tar.Header{Name: b.name + "/" + f.name, Mode: 0o600, Size: int64(len(f.text)), ModTime: b.at}
		if err := t.WriteHeader(head); err != nil {
			return nil, err
		}
		if _, err := t.Write(f.text); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
