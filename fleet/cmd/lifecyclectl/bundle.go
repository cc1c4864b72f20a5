package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/internal/redact"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
)

func bundleCommand() *cobra.Command {
	var (
		r            remote
		file         string
		since        time.Duration
		statusz      []string
		logs, stacks bool
		config       bool
	)
	cmd := &cobra.Command{
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
		Args: words(),
		RunE: asks(&r, &output{format: "table"}, noSubject, func(a *api, cmd *cobra.Command, _ []string) error {
			if _, err := a.Access.WhoAmI(cmd.Context(), &operatorv1.WhoAmIRequest{}); err != nil {
				return err // the server is away: an archive would be empty
			}
			b := newBundle(time.Now().UTC())
			b.collect(cmd.Context(), a, since, logs, stacks, config)
			for i, from := range statusz {
				text, err := readStatusz(cmd.Context(), from, cmd.InOrStdin())
				b.add(fmt.Sprintf("statusz-%d.json", i+1), text, err)
			}
			if cmd.Context().Err() != nil {
				return context.Canceled
			}
			archive, err := b.archive()
			if err != nil {
				return err
			}
			if file == "-" {
				err = send(cmd.OutOrStdout(), archive)
			} else {
				if file == "" {
					file = b.name + ".tar.gz"
				}
				if err = os.WriteFile(file, archive, 0o600); err == nil {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s has %d files: look into it before you send it\n", file, len(b.files))
				}
			}
			if err == nil && len(b.missing) > 0 {
				err = &failure{status: exitFindings, err: fmt.Errorf("the archive is not complete: %s", strings.Join(b.missing, "; "))}
			}
			return err
		}),
	}
	f := cmd.Flags()
	f.StringVarP(&file, "file", "f", "", "write the archive to this `file`; - is standard output; default: lifecycle-bundle-TIME.tar.gz")
	f.DurationVar(&since, "since", 24*time.Hour, "the events and the audit of the last `time`")
	f.BoolVar(&logs, "logs", false, "with the end of each process's log")
	f.BoolVar(&stacks, "stacks", false, "with the stacks of each process")
	f.BoolVar(&config, "config", false, "with the configuration of each process, and the source of each value")
	f.StringArrayVar(&statusz, "statusz", nil, "the `URL` of a process's /statusz; may be given more than once")
	r.register(cmd)
	return cmd
}

// bundle is an archive under construction.
type bundle struct {
	name    string
	at      time.Time
	files   []bundleFile
	missing []string
}

type bundleFile struct {
	name string
	text []byte
}

func newBundle(at time.Time) *bundle {
	return &bundle{name: "lifecycle-bundle-" + at.Format("20060102T150405Z"), at: at}
}

// add adds a file without secrets, or notes why there is none.
func (b *bundle) add(name string, text []byte, err error) {
	if err != nil {
		b.missing = append(b.missing, name+": "+redact.Text(message(err)))
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

// message adds a message as JSON.
func (b *bundle) message(name string, m proto.Message, err error) {
	var text []byte
	if err == nil {
		text, err = asJSON(m, "  ")
	}
	b.add(name, text, err)
}

// bundlePages is how many pages of 1000 events or attempts a bundle has at most.
const bundlePages = 20

func (b *bundle) collect(ctx context.Context, a *api, since time.Duration, logs, stacks, config bool) {
	version, _ := built()
	b.add("about.txt", fmt.Appendf(nil, "made %s by lifecyclectl %s from %s\n", b.at.Format(time.RFC3339), version, a.url), nil)
	me, err := a.Access.WhoAmI(ctx, &operatorv1.WhoAmIRequest{})
	b.message("whoami.json", me, err)
	found, err := a.Processes.Diagnose(ctx, &operatorv1.DiagnoseRequest{})
	b.message("doctor.json", found, err)

	processes := &operatorv1.ListProcessesResponse{}
	err = paged(func(token string) (string, error) {
		page, err := a.Processes.ListProcesses(ctx, &operatorv1.ListProcessesRequest{PageSize: 1000, PageToken: token})
		processes.Processes, processes.Totals = append(processes.GetProcesses(), page.GetProcesses()...), page.GetTotals()
		return page.GetNextPageToken(), err
	})
	b.message("processes.json", processes, err)
	from := timestamppb.New(b.at.Add(-since))
	events := &operatorv1.ListEventsResponse{}
	err = paged(func(token string) (string, error) {
		page, err := a.Processes.ListEvents(ctx, &operatorv1.ListEventsRequest{Since: from, PageSize: 1000, PageToken: token})
		events.Events = append(events.GetEvents(), page.GetEvents()...)
		return page.GetNextPageToken(), err
	})
	b.message("events.json", events, err)
	attempts := &operatorv1.ListAuditResponse{}
	err = paged(func(token string) (string, error) {
		page, err := a.Access.ListAudit(ctx, &operatorv1.ListAuditRequest{Since: from, PageSize: 1000, PageToken: token})
		attempts.Entries = append(attempts.GetEntries(), page.GetEntries()...)
		return page.GetNextPageToken(), err
	})
	b.message("audit.json", attempts, err)
	if defs, err := a.Workflows.ListDefinitions(ctx, &operatorv1.ListDefinitionsRequest{}); !notServed(err) {
		b.message("workflows.json", defs, err)
	}
	if workers, err := a.Workers.ListWorkers(ctx, &operatorv1.ListWorkersRequest{PageSize: 1000}); !notServed(err) {
		b.message("workers.json", workers, err)
	}
	for _, p := range processes.GetProcesses() {
		if logs {
			answer, err := a.Processes.GetLogs(ctx, &operatorv1.GetLogsRequest{Id: p.GetId(), Limit: 1000})
			if !refused(err) { // it keeps none
				var text strings.Builder
				for _, l := range answer.GetLines() {
					text.WriteString(l.GetText() + "\n")
				}
				b.add("logs/"+fileName(p.GetId())+".txt", []byte(text.String()), err)
			}
		}
		if stacks {
			answer, err := a.Processes.GetStacks(ctx, &operatorv1.GetStacksRequest{Id: p.GetId()})
			b.add("stacks/"+fileName(p.GetId())+".txt", []byte(answer.GetText()), err)
		}
		if config {
			b.settings(ctx, a, p.GetId())
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// refused reports whether a process has answered that it will not, or cannot.
func refused(err error) bool {
	return err != nil && connect.CodeOf(err) == connect.CodeFailedPrecondition
}

// paged calls page until there is no next one, at most bundlePages times.
func paged(page func(token string) (next string, err error)) error {
	token := ""
	for range bundlePages {
		next, err := page(token)
		if err != nil || next == "" {
			return err
		}
		token = next
	}
	return nil
}

// fileName makes a name of a file from an id, which may have any text.
func fileName(id string) string {
	return strings.Map(func(r rune) rune {
		if r == '.' || r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		return '_'
	}, id[:min(len(id), 200)])
}

func (b *bundle) archive() ([]byte, error) {
	if len(b.missing) > 0 {
		b.files = append(b.files, bundleFile{"missing.txt", []byte(strings.Join(b.missing, "\n") + "\n")})
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	t := tar.NewWriter(z)
	for _, f := range b.files {
		if err := t.WriteHeader(&tar.Header{Name: b.name + "/" + f.name, Mode: 0o600, Size: int64(len(f.text)), ModTime: b.at}); err != nil {
			return nil, err
		}
		if _, err := io.Copy(t, bytes.NewReader(f.text)); err != nil {
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
