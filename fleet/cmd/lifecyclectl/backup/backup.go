// Package backup connects to NATS for the backups of lifecyclectl. All other commands
// ask an operator server and need no NATS.
package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// Server says how to reach NATS.
type Server struct {
	// URL is the URL of a server, or the URLs of several, separated by commas.
	URL string
	// Credentials is a .creds file, NKey a file with an nkey's seed. At most one is set.
	Credentials, NKey string
	// CA, Cert and Key are files in PEM: the authorities that may sign the server's
	// certificate, and the client's own certificate. Empty means the system's, and none.
	CA, Cert, Key string
	// Domain is the JetStream domain, "" for the account's own.
	Domain string
}

// Create backs up a bucket into a new folder and verifies the result.
func Create(ctx context.Context, s Server, bucket, dir string, opts ...workflow.BackupOption) (workflow.BackupStatus, error) {
	err := s.with(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		return workflow.Backup(ctx, js, bucket, dir, opts...)
	})
	if err != nil {
		return workflow.BackupStatus{}, err
	}
	return Verify(dir)
}

// Verify reads a backup, without a server.
func Verify(dir string) (workflow.BackupStatus, error) {
	status, err := workflow.VerifyBackup(dir)
	return status, explained(err)
}

// Restore verifies a backup and creates its streams.
func Restore(ctx context.Context, s Server, dir string, opts ...workflow.BackupOption) (workflow.BackupStatus, error) {
	status, err := Verify(dir)
	if err != nil {
		return status, err
	}
	return status, s.with(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		return workflow.RestoreBackup(ctx, js, dir, opts...)
	})
}

// with connects and calls do. Its context ends when the connection breaks, or when the
// server denies a request: NATS answers such a request with no message.
func (s Server) with(ctx context.Context, do func(context.Context, jetstream.JetStream) error) error {
	opts, err := s.options()
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	opts = append(opts,
		nats.Name("lifecyclectl"), nats.NoReconnect(), nats.Timeout(10*time.Second), nats.PingInterval(20*time.Second),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				end(denied("%w", err))
			}
		}),
		nats.ClosedHandler(func(*nats.Conn) { end(unreachable("the connection to NATS was lost")) }),
	)
	nc, err := nats.Connect(s.URL, opts...)
	if err != nil {
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) {
			return denied("connect to NATS at %s: %w", s.URL, err)
		}
		return unreachable("connect to NATS at %s: %w", s.URL, err)
	}
	defer nc.Close()
	var js jetstream.JetStream
	if s.Domain == "" {
		js, err = jetstream.New(nc)
	} else {
		js, err = jetstream.NewWithDomain(nc, s.Domain)
	}
	if err != nil {
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	err = do(ctx, js)
	if _, broken := errors.AsType[*cli.Failure](context.Cause(ctx)); err != nil && broken {
		return context.Cause(ctx)
	}
	return explained(err)
}

func (s Server) options() (opts []nats.Option, err error) {
	for _, one := range strings.Split(s.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		switch {
		case err != nil || u.Host == "":
			return nil, errors.New("the URL of NATS is not valid, want one such as nats://127.0.0.1:4222")
		case u.User != nil:
			return nil, fmt.Errorf("the URL %s has a user's name in it: credentials belong in a file", u.Redacted())
		}
	}
	switch {
	case s.Credentials != "" && s.NKey != "":
		return nil, errors.New("a credentials file and an nkey exclude each other")
	case (s.Cert == "") != (s.Key == ""):
		return nil, errors.New("a certificate and its key belong together: one is missing")
	case s.Credentials != "":
		opts = append(opts, nats.UserCredentials(s.Credentials))
	case s.NKey != "":
		opt, err := nats.NkeyOptionFromSeed(s.NKey)
		if err != nil {
			return nil, fmt.Errorf("read the nkey: %w", err)
		}
		opts = append(opts, opt)
	}
	if s.CA != "" {
		opts = append(opts, nats.RootCAs(s.CA))
	}
	if s.Cert != "" {
		opts = append(opts, nats.ClientCert(s.Cert, s.Key))
	}
	return opts, nil
}

func denied(format string, args ...any) *cli.Failure {
	return cli.Fail(cli.ExitDenied, format, args...).Hint("the user of --nats-creds needs the permissions that --help names")
}

func unreachable(format string, args ...any) *cli.Failure {
	return cli.Fail(cli.ExitUnreachable, format, args...).Hint("say where NATS is with --nats URL or LIFECYCLECTL_NATS")
}

// The server's codes for a stream that exists.
const streamExists, restoreExists = 10058, 10130

// explained gives an error its exit status and hints.
func explained(err error) error {
	var api *jetstream.APIError
	isStatus := func(all ...error) bool {
		return slices.ContainsFunc(all, func(one error) bool { return errors.Is(err, one) })
	}
	exists := errors.As(err, &api) && (api.ErrorCode == streamExists || api.ErrorCode == restoreExists)
	switch {
	case err == nil:
		return nil
	case isStatus(workflow.ErrBackup):
		return cli.Fail(cli.ExitFindings, "%w", err)
	case isStatus(jetstream.ErrStreamNotFound):
		return cli.Fail(cli.ExitNotFound, "%w", err).Hint("lifecyclectl definitions TYPE names the bucket of a workflow")
	case exists || isStatus(jetstream.ErrStreamNameAlreadyInUse):
		return cli.Fail(cli.ExitConflict, "%w", err).Hint("a stream that differs from the backup is not touched: delete it first, to go back in time")
	case isStatus(nats.ErrNoResponders, jetstream.ErrJetStreamNotEnabled):
		return unreachable("%w", err)
	case isStatus(fs.ErrExist, fs.ErrNotExist, fs.ErrPermission):
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	return cli.Fail(cli.ExitFindings, "%w", err)
}
