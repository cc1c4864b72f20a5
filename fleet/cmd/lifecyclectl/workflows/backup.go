package workflows

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/backup"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// direct is how to reach NATS itself: the flags of the commands that do not ask an
// operator server.
type direct struct {
	backup.Server
	flags *pflag.FlagSet
}

func (d *direct) register(cmd *cobra.Command) {
	d.flags = pflag.NewFlagSet("nats", pflag.ContinueOnError)
	add := func(to *string, name, initial, usage string) {
		d.flags.StringVar(to, name, initial, usage+"; also "+cli.Variable(name))
	}
	add(&d.URL, "nats", "nats://127.0.0.1:4222", "`URL` of NATS, or several with commas between")
	add(&d.Credentials, "nats-creds", "", "`file` with the user's credentials")
	add(&d.NKey, "nats-nkey-file", "", "`file` with the seed of an nkey")
	add(&d.CA, "nats-ca-file", "", "`file` with the certificates (PEM) that may sign the server's; default: the system's")
	add(&d.Cert, "nats-cert-file", "", "`file` with the client's certificate (PEM)")
	add(&d.Key, "nats-key-file", "", "`file` with the client's key (PEM)")
	add(&d.Domain, "nats-domain", "", "the JetStream `domain`")
	cmd.Flags().AddFlagSet(d.flags)
}

// server returns the server, with the variables of the flags that were not given.
func (d *direct) server() backup.Server {
	_ = cli.ReadVariables(d.flags, d.flags) // a string takes any value
	return d.Server
}

func backUp() *cobra.Command {
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
		RunE: func(cmd *cobra.Command, args []string) error {
			p := cli.Begin(cmd.ErrOrStderr(), "backing up "+args[0])
			status, err := backup.Create(cmd.Context(), d.server(), args[0], args[1], tell(p, "backing up"))
			p.End()
			if err != nil {
				return failed(cmd, err)
			}
			return writeBackup(cmd.OutOrStdout(), status)
		},
	}
	d.register(cmd)
	return cmd
}

func restore() *cobra.Command {
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

A restore that was interrupted is called again and goes on. When one of the streams
exists and differs from the backup, it creates none: to go back in time, delete the
streams first (KV_BUCKET, JOURNAL_BUCKET and KV_BUCKET_HOOKS). Running processes notice.
Revisions are given a second time: see docs/guides/workflows.md. Restore only a backup that
you trust: it configures its streams. It asks NATS itself; the user needs
$JS.API.STREAM.INFO.*, $JS.API.STREAM.RESTORE.* and, to remove what an interrupted restore
has left, $JS.API.STREAM.DELETE.*, and may publish on $JS.SNAPSHOT.RESTORE.>.`,
		Example: `  lifecyclectl workflows restore missions-monday --check
  lifecyclectl workflows restore missions-monday`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var status workflow.BackupStatus
			var err error
			if check {
				status, err = backup.Verify(args[0])
			} else {
				p := cli.Begin(cmd.ErrOrStderr(), "restoring "+args[0])
				status, err = backup.Restore(cmd.Context(), d.server(), args[0], tell(p, "restoring"))
				p.End()
			}
			if err != nil {
				return failed(cmd, err)
			}
			return writeBackup(cmd.OutOrStdout(), status)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "verify the files only")
	d.register(cmd)
	return cmd
}

// tell shows how far a backup or a restore is.
func tell(p *cli.Progress, doing string) workflow.BackupOption {
	return workflow.TellProgress(func(stream string, bytes int64) {
		p.Say("%s %s: %.1f MB", doing, stream, float64(bytes)/1e6)
	})
}

func writeBackup(w io.Writer, status workflow.BackupStatus) error {
	t := output.NewTable(w)
	t.Head("STREAM", "MESSAGES", "LAST REVISION", "BYTES")
	for _, s := range status.Streams {
		t.Row(s.Name, fmt.Sprint(s.Messages), fmt.Sprint(s.Last), fmt.Sprint(s.Bytes))
	}
	t.Row("verified, of " + output.Moment(timestamppb.New(status.At)))
	return output.Send(w, t.Text())
}

// failed returns the error of a command, which may have been interrupted.
func failed(cmd *cobra.Command, err error) error {
	if cmd.Context().Err() != nil {
		return context.Canceled
	}
	return err
}
