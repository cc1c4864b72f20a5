package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/backup"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// natsVariables are the flags of a connection to NATS and the environment variable of
// each.
var natsVariables = map[string]string{
	"nats":           "LIFECYCLECTL_NATS",
	"nats-creds":     "LIFECYCLECTL_NATS_CREDS",
	"nats-nkey-file": "LIFECYCLECTL_NATS_NKEY_FILE",
	"nats-ca-file":   "LIFECYCLECTL_NATS_CA_FILE",
	"nats-cert-file": "LIFECYCLECTL_NATS_CERT_FILE",
	"nats-key-file":  "LIFECYCLECTL_NATS_KEY_FILE",
	"nats-domain":    "LIFECYCLECTL_NATS_DOMAIN",
}

// direct is how to reach NATS itself: the flags of the commands that do not ask an
// operator server.
type direct struct {
	backup.Server
	flags *pflag.FlagSet
}

func (d *direct) register(cmd *cobra.Command) {
	f := pflag.NewFlagSet("nats", pflag.ContinueOnError)
	from := func(name, usage string) string { return fmt.Sprintf("%s; also %s", usage, natsVariables[name]) }
	for _, flag := range []struct {
		to                   *string
		name, initial, usage string
	}{
		{&d.URL, "nats", "nats://127.0.0.1:4222", "`URL` of NATS, or several with commas between"},
		{&d.Credentials, "nats-creds", "", "`file` with the user's credentials"},
		{&d.NKey, "nats-nkey-file", "", "`file` with the seed of an nkey"},
		{&d.CA, "nats-ca-file", "", "`file` with the certificates (PEM) that may sign the server's; default: the system's"},
		{&d.Cert, "nats-cert-file", "", "`file` with the client's certificate (PEM)"},
		{&d.Key, "nats-key-file", "", "`file` with the client's key (PEM)"},
		{&d.Domain, "nats-domain", "", "the JetStream `domain`"},
	} {
		f.StringVar(flag.to, flag.name, flag.initial, from(flag.name, flag.usage))
	}
	cmd.Flags().AddFlagSet(f)
	d.flags = f
}

// server returns the server, with the variables of the flags that were not given.
func (d *direct) server() backup.Server {
	d.flags.VisitAll(func(f *pflag.Flag) {
		if value := os.Getenv(natsVariables[f.Name]); value != "" && !f.Changed {
			_ = d.flags.Set(f.Name, value) // a string takes any value
		}
	})
	return d.Server
}

func workflowsBackupCommand() *cobra.Command {
	var d direct
	cmd := &cobra.Command{
		Use:   "backup BUCKET DIR",
		Short: "Write a bucket of workflows into a new folder, and verify it",
		Long: `Write a bucket of workflows into the new folder DIR: every record with its history,
revisions and times, the bucket's journal, and the progress of its hooks. The server
checks every message, and the command reads what it has written once more. Writers
need not stop.

It asks NATS itself, not the operator server, with the credentials of an operator of
NATS: the user needs $JS.API.STREAM.INFO.* and $JS.API.STREAM.SNAPSHOT.*, and may
publish on $JS.SNAPSHOT.ACK.>. lifecyclectl definitions names the bucket of a
workflow. Without manifest.json the folder is of a backup that failed.`,
		Example: `  lifecyclectl workflows backup MISSIONS missions-monday`,
		Args:    words("BUCKET", "DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p := begin(cmd.ErrOrStderr(), "backing up "+args[0])
			status, err := backup.Create(cmd.Context(), d.server(), args[0], args[1])
			p.end()
			if err != nil {
				return backupFailure(cmd.Context(), err, "lifecyclectl definitions TYPE names the bucket of a workflow")
			}
			return writeBackup(cmd.OutOrStdout(), status)
		},
	}
	d.register(cmd)
	return cmd
}

func workflowsRestoreCommand() *cobra.Command {
	var (
		d     direct
		check bool
	)
	cmd := &cobra.Command{
		Use:   "restore DIR",
		Short: "Verify a backup of workflows, and create its bucket as it was",
		Long: `Verify a backup, and create its bucket, journal and hooks' progress as they were,
with their revisions and times. With --check it verifies the files and asks no
server. A damaged backup is refused before anything is created.

When one of the streams exists it creates none: to go back in time, delete the streams
first (KV_BUCKET, JOURNAL_BUCKET and KV_BUCKET_HOOKS). Running processes notice.
Revisions are given a second time: see docs/workflows.md. Restore only a backup that
you trust: it configures its streams. It asks NATS itself; the user needs
$JS.API.STREAM.INFO.* and $JS.API.STREAM.RESTORE.*, and may publish on
$JS.API.STREAM.RESTORE.> and $JS.SNAPSHOT.RESTORE.>.`,
		Example: `  lifecyclectl workflows restore missions-monday --check
  lifecyclectl workflows restore missions-monday`,
		Args: words("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var status workflow.BackupStatus
			var err error
			if check {
				status, err = backup.Verify(args[0])
			} else {
				p := begin(cmd.ErrOrStderr(), "restoring "+args[0])
				status, err = backup.Restore(cmd.Context(), d.server(), args[0])
				p.end()
			}
			if err != nil {
				return backupFailure(cmd.Context(), err, "")
			}
			return writeBackup(cmd.OutOrStdout(), status)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "verify the files only")
	d.register(cmd)
	return cmd
}

func writeBackup(w io.Writer, status workflow.BackupStatus) error {
	t := &table{colours: colourful(w)}
	t.head("STREAM", "MESSAGES", "LAST REVISION", "BYTES")
	for _, s := range status.Streams {
		t.row(s.Name, fmt.Sprint(s.Messages), fmt.Sprint(s.Last), fmt.Sprint(s.Bytes))
	}
	t.row("verified, of " + moment(timestamppb.New(status.At)))
	return send(w, t.text())
}

// backupFailure gives an error its exit status.
func backupFailure(ctx context.Context, err error, missing string) error {
	var e *backup.Error
	if ctx.Err() != nil {
		return context.Canceled
	}
	if !errors.As(err, &e) {
		return err
	}
	f := &failure{status: exitFindings, err: err}
	switch e.Reason {
	case backup.Usage:
		f.status = exitUsage
	case backup.Unreachable:
		f.status, f.hints = exitUnreachable, []string{"say where NATS is with --nats URL or LIFECYCLECTL_NATS"}
	case backup.Denied:
		f.status, f.hints = exitDenied, []string{"the user of --nats-creds needs the permissions that --help names"}
	case backup.NotFound:
		f.status, f.hints = exitNotFound, []string{missing}
	case backup.Exists:
		f.status, f.hints = exitConflict, []string{"a stream that exists is not touched: delete it first, to go back in time"}
	}
	return f
}
