// Package backup connects to NATS for the backups of lifecyclectl. All other commands
// ask an operator server and need no NATS.
package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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

// Reason says what kind of error it is.
type Reason int

// The reasons.
const (
	Failed      Reason = iota
	Usage              // a Server that cannot be right, or a file or folder: nothing was sent
	Unreachable        // the server cannot be reached, or went away
	Denied             // the server refuses the credentials, or they lack a permission
	NotFound           // the bucket does not exist
	Exists             // a stream that would be restored exists
	Damaged            // the folder is not a complete, unchanged backup
)

// Error is an error with its reason.
type Error struct {
	Reason Reason
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

func fail(reason Reason, format string, args ...any) error {
	return &Error{reason, fmt.Errorf(format, args...)}
}

// Create backs up a bucket into a new folder and verifies the result.
func Create(ctx context.Context, s Server, bucket, dir string) (workflow.BackupStatus, error) {
	err := s.with(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		return workflow.Backup(ctx, js, bucket, dir)
	})
	if err != nil {
		return workflow.BackupStatus{}, err
	}
	return Verify(dir)
}

// Verify reads a backup, without a server.
func Verify(dir string) (workflow.BackupStatus, error) {
	status, err := workflow.ReadBackup(dir)
	return status, sorted(err)
}

// Restore verifies a backup and creates its streams.
func Restore(ctx context.Context, s Server, dir string) (workflow.BackupStatus, error) {
	status, err := Verify(dir)
	if err != nil {
		return status, err
	}
	return status, s.with(ctx, func(ctx context.Context, js jetstream.JetStream) error {
		return workflow.RestoreBackup(ctx, js, dir)
	})
}

// with connects and calls do. Its context ends when the connection breaks, or when the
// server denies a request: NATS answers such a request with no message.
func (s Server) with(ctx context.Context, do func(context.Context, jetstream.JetStream) error) error {
	opts, err := s.options()
	if err != nil {
		return &Error{Usage, err}
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	opts = append(opts,
		nats.Name("lifecyclectl"), nats.NoReconnect(), nats.Timeout(10*time.Second), nats.PingInterval(20*time.Second),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				end(&Error{Denied, err})
			}
		}),
		nats.ClosedHandler(func(*nats.Conn) { end(fail(Unreachable, "the connection to NATS was lost")) }),
	)
	nc, err := nats.Connect(s.URL, opts...)
	if err != nil {
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) {
			return fail(Denied, "connect to NATS at %s: %w", s.URL, err)
		}
		return fail(Unreachable, "connect to NATS at %s: %w", s.URL, err)
	}
	defer nc.Close()
	var js jetstream.JetStream
	if s.Domain == "" {
		js, err = jetstream.New(nc)
	} else {
		js, err = jetstream.NewWithDomain(nc, s.Domain)
	}
	if err != nil {
		return &Error{Usage, err}
	}
	err = do(ctx, js)
	if _, broken := errors.AsType[*Error](context.Cause(ctx)); err != nil && broken {
		return context.Cause(ctx)
	}
	return sorted(err)
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

// The server's codes for a stream that exists.
const streamExists, restoreExists = 10058, 10130

// sorted gives an error its reason.
func sorted(err error) error {
	var api *jetstream.APIError
	reason := Failed
	switch {
	case err == nil:
		return nil
	case errors.Is(err, workflow.ErrBackup):
		reason = Damaged
	case errors.Is(err, jetstream.ErrStreamNotFound):
		reason = NotFound
	case errors.As(err, &api) && (api.ErrorCode == streamExists || api.ErrorCode == restoreExists), errors.Is(err, jetstream.ErrStreamNameAlreadyInUse):
		reason = Exists
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrJetStreamNotEnabled):
		reason = Unreachable
	case errors.Is(err, fs.ErrExist), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		reason = Usage
	}
	return &Error{reason, err}
}
