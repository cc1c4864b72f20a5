package workflows

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pleme-io/lifecycle-go/fleet/cmd/lifecyclectl/cli"
	"github.com/pleme-io/lifecycle-go/fleet/workflow"
)

// natsServer is how to reach NATS itself: the flags of the commands that do not ask an operator
// server.
type natsServer struct {
	// url is the URL of a server, or the URLs of several, separated by commas.
	url string
	// creds is a .creds file, nkey a file with an nkey's seed. At most one is set.
	creds, nkey string
	// ca, cert and key are files in PEM: the authorities that may sign the server's
	// certificate, and the client's own certificate. Empty means the system's, and none.
	ca, cert, key string
	// domain is the JetStream domain, "" for the account's own.
	domain string

	flags *pflag.FlagSet // nil for none
}

func (s *natsServer) register(cmd *cobra.Command) {
	s.flags = pflag.NewFlagSet("nats", pflag.ContinueOnError)
	add := func(to *string, name, initial, usage string) {
		s.flags.StringVar(to, name, initial, usage+"; also "+cli.Variable(name))
	}
	add(&s.url, "nats", "nats://127.0.0.1:4222", "`URL` of NATS, or several with commas between")
	add(&s.creds, "nats-creds", "", "`file` with the user's credentials")
	add(&s.nkey, "nats-nkey-file", "", "`file` with the seed of an nkey")
	add(&s.ca, "nats-ca-file", "", "`file` with the certificates (PEM) that may sign the server's; default: the system's")
	add(&s.cert, "nats-cert-file", "", "`file` with the client's certificate (PEM)")
	add(&s.key, "nats-key-file", "", "`file` with the client's key (PEM)")
	add(&s.domain, "nats-domain", "", "the JetStream `domain`")
	cmd.Flags().AddFlagSet(s.flags)
	cmd.MarkFlagsMutuallyExclusive("nats-creds", "nats-nkey-file")
	cmd.MarkFlagsRequiredTogether("nats-cert-file", "nats-key-file")
}

// with connects and calls do. Its context ends when the connection breaks, or when the
// server denies a request: NATS answers such a request with no message.
func (s *natsServer) with(ctx context.Context, do func(context.Context, jetstream.JetStream) error) error {
	if s.flags != nil {
		_ = cli.ReadVariables(s.flags, s.flags) // a string takes any value
	}
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
	nc, err := nats.Connect(s.url, opts...)
	if err != nil {
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) {
			return denied("connect to NATS at %s: %w", s.url, err)
		}
		return unreachable("connect to NATS at %s: %w", s.url, err)
	}
	defer nc.Close()
	var js jetstream.JetStream
	if s.domain == "" {
		js, err = jetstream.New(nc)
	} else {
		js, err = jetstream.NewWithDomain(nc, s.domain)
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

func (s *natsServer) options() (opts []nats.Option, err error) {
	if strings.Contains(s.url, "@") {
		return nil, errors.New("the URL of NATS has a user's name in it: credentials belong in a file")
	}
	if s.creds != "" {
		opts = append(opts, nats.UserCredentials(s.creds))
	}
	if s.nkey != "" {
		opt, err := nats.NkeyOptionFromSeed(s.nkey)
		if err != nil {
			return nil, fmt.Errorf("read the nkey: %w", err)
		}
		opts = append(opts, opt)
	}
	if s.ca != "" {
		opts = append(opts, nats.RootCAs(s.ca))
	}
	if s.cert != "" {
		opts = append(opts, nats.ClientCert(s.cert, s.key))
	}
	return opts, nil
}

func denied(format string, args ...any) *cli.Failure {
	return cli.Fail(cli.ExitDenied, format, args...).Hint("the user of --nats-creds needs the permissions that --help names")
}

func unreachable(format string, args ...any) *cli.Failure {
	return cli.Fail(cli.ExitUnreachable, format, args...).Hint("say where NATS is with --nats URL or LIFECYCLECTL_NATS")
}

// errRestored is the server's error when a stream that is restored exists.
var errRestored = &jetstream.APIError{ErrorCode: 10130}

// explained gives an error its exit status and hints.
func explained(err error) error {
	isStatus := func(all ...error) bool {
		return slices.ContainsFunc(all, func(one error) bool { return errors.Is(err, one) })
	}
	switch {
	case err == nil:
		return nil
	case isStatus(workflow.ErrBackup):
		return cli.Fail(cli.ExitFindings, "%w", err)
	case isStatus(jetstream.ErrStreamNotFound):
		return cli.Fail(cli.ExitNotFound, "%w", err).Hint("lifecyclectl definitions TYPE names the bucket of a workflow")
	case isStatus(jetstream.ErrStreamNameAlreadyInUse, errRestored):
		return cli.Fail(cli.ExitConflict, "%w", err).Hint("a stream that differs from the backup is not touched: delete it first, to go back in time")
	case isStatus(nats.ErrNoResponders, jetstream.ErrJetStreamNotEnabled):
		return unreachable("%w", err)
	case isStatus(fs.ErrExist, fs.ErrNotExist, fs.ErrPermission):
		return cli.Fail(cli.ExitUsage, "%w", err)
	}
	return cli.Fail(cli.ExitFindings, "%w", err)
}
