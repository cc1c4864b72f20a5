package workflows

import (
	"context"
	"fmt"
	"io"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/output"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

func backUp() *cobra.Command {
	var s natsServer
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
			status, err := s.backUp(cmd.Context(), args[0], args[1])
			p.End()
			if err != nil {
				return err
			}
			return writeBackup(cmd.OutOrStdout(), status)
		},
	}
	s.register(cmd)
	return cmd
}

func restore() *cobra.Command {
	var (
		s     natsServer
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
				status, err = verify(args[0])
			} else {
				p := cli.Begin(cmd.ErrOrStderr(), "restoring "+args[0])
				status, err = s.restore(cmd.Context(), args[0])
				p.End()
			}
			if err != nil {
				return err
			}
			return writeBackup(cmd.OutOrStdout(), status)
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "verify the files only")
	s.register(cmd)
	return cmd
}

// backUp backs up a bucket into a new folder and verifies the result.
func (s *natsServer) backUp(ctx context.Context, bucket, dir string) (workflow.BackupStatus, error) {
	err := s.with(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		return workflow.Backup(ctx, js, bucket, dir)
	})
	if err != nil {
		return workflow.BackupStatus{}, err
	}
	return verify(dir)
}

// restore verifies a backup and creates its streams.
func (s *natsServer) restore(ctx context.Context, dir string) (workflow.BackupStatus, error) {
	status, err := verify(dir)
	if err != nil {
		return status, err
	}
	return status, s.with(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		return workflow.RestoreBackup(ctx, js, dir)
	})
}

// verify reads a backup, without a server.
func verify(dir string) (workflow.BackupStatus, error) {
	status, err := workflow.VerifyBackup(dir)
	return status, explained(err)
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
