package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/pleme-io/lifecycle-go/fleet/operator/client"
	"github.com/pleme-io/lifecycle-go/fleet/operator/operatorv1"
	"github.com/pleme-io/lifecycle-go/internal/suggest"
)

// The reasons of a google.rpc.ErrorInfo for which this program has hints. They
// are constants of package operator, which would link a NATS server; a test
// checks that they are equal.
const (
	reasonUnknownType = "UNKNOWN_TYPE"
	reasonNotFound    = "NOT_FOUND"
	reasonStale       = "STALE_ETAG"
	reasonContention  = "CONTENTION"
	reasonExpired     = "CREDENTIALS_EXPIRED"
	reasonInvalid     = "INVALID_TRANSITION"
	reasonNotWritable = "FIELD_NOT_WRITABLE"
)

// Explain turns the error of a call into one that says what happened, to
// which object, and what to do about it.
func (s *Server) Explain(ctx context.Context, err error, about Subject, args []string) error {
	var own *Failure // of the login
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Canceled
	case errors.As(err, &own):
		return own
	case !connect.IsWireError(err):
		return s.unreachable(err)
	}
	var answer *connect.Error
	errors.As(err, &answer)
	f := Fail(statusOf(answer.Code()), "%s", answer.Message())
	typ, object := "", ""
	if about == OfWorkflow && len(args) > 0 {
		typ, object = args[0], strings.Join(args[:min(2, len(args))], " ")
	}
	hint := ""
	switch reason := client.Reason(answer); {
	case reason == reasonUnknownType:
		hint = s.typesHint(ctx, typ)
	case reason == reasonNotFound:
		hint = map[Subject]string{
			OfWorkflow: "to list them: lifecyclectl list " + typ,
			OfWorker:   "to list them: lifecyclectl workers list",
			OfProcess:  "to list them: lifecyclectl processes list",
		}[about]
	case reason == reasonStale || reason == reasonContention:
		hint = "read it again: lifecyclectl get " + object
	case reason == reasonInvalid:
		hint = "to see the table: lifecyclectl diagram workflow " + typ
	case reason == reasonNotWritable:
		f.Status = ExitUsage
		hint = "to list the writable fields: lifecyclectl definitions " + typ
	case reason == reasonExpired:
		hint = "get new credentials, and put them into --token-file or --cert-file; or sign in again: lifecyclectl login"
	case answer.Code() == connect.CodeUnauthenticated:
		hint = "give credentials: --token-file FILE (LIFECYCLECTL_TOKEN_FILE), or --cert-file and --key-file; " +
			"or sign in: lifecyclectl login"
	case answer.Code() == connect.CodePermissionDenied:
		hint = "lifecyclectl whoami shows your name and role"
	}
	if hint != "" {
		f.Hints = []string{hint}
	}
	return f
}

// unreachable explains a call that got no answer from an operator server.
func (s *Server) unreachable(err error) error {
	text := strings.TrimPrefix(client.Message(err), "unavailable: ")
	var (
		verify *tls.CertificateVerificationError
		slow   net.Error
	)
	switch {
	case errors.As(err, &verify):
		return Fail(ExitUnreachable, "the certificate of %s is not trusted: %s", s.URL, text).
			Hint("trust its certificate with --ca-file FILE, or use the name that the certificate is for")
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &slow) && slow.Timeout():
		return Fail(ExitUnreachable, "%s did not answer in time", s.URL).
			Hint("if the command writes, its write may have been stored: read before trying again; --timeout waits longer")
	}
	return Fail(ExitUnreachable, "no operator server can be reached at %s: %s", s.URL, text).
		Hint("is it running? It is a service of the fleet; on Kubernetes: kubectl port-forward service/NAME 8090").
		Hint("say where it is with --server URL or LIFECYCLECTL_SERVER; https:// when it speaks TLS")
}

// typesHint suggests the type that was probably meant, or how to list all.
func (s *Server) typesHint(ctx context.Context, typ string) string {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if meant := suggest.Nearest(typ, s.types(ctx)); meant != "" {
		return fmt.Sprintf("did you mean %s?", meant)
	}
	return "to list them: lifecyclectl definitions"
}

// types returns the names of the workflows, none after an error.
func (s *Server) types(ctx context.Context) (names []string) {
	list, err := s.Workflows.ListDefinitions(ctx, &operatorv1.ListDefinitionsRequest{})
	if err != nil {
		return nil
	}
	for _, d := range list.GetDefinitions() {
		names = append(names, d.GetType())
	}
	return names
}

// The exit statuses of every command. Statuses describes them.
const (
	ExitOK          = 0
	ExitFindings    = 1 // the command did its work, and the answer is no
	ExitUsage       = 2 // the command line, a file or a field is wrong
	ExitNotFound    = 3
	ExitConflict    = 4
	ExitDenied      = 5
	ExitUnreachable = 6
	ExitInterrupted = 130 // 128 and SIGINT, as in shells
)

// Statuses describes the exit statuses, for the help and the reference.
var Statuses = []struct {
	Status int
	Means  string
}{
	{ExitOK, "done, and nothing is wrong"},
	{ExitFindings, "the answer is no: a finding, a refusal, a failure of the server"},
	{ExitUsage, "the command line, a file or a field is wrong; nothing was done"},
	{ExitNotFound, "there is no such type, entity, worker, process or dead letter"},
	{ExitConflict, "it has changed since, or exists already"},
	{ExitDenied, "the credentials or the role do not suffice"},
	{ExitUnreachable, "the server, or the process behind it, does not answer: try again"},
	{ExitInterrupted, "interrupted before it was done; watch ends with 0"},
}

// ExitHelp is the part of the help about exit statuses.
func ExitHelp() string {
	var b strings.Builder
	b.WriteString("Exit status:\n")
	for _, s := range Statuses {
		fmt.Fprintf(&b, "  %3d  %s\n", s.Status, s.Means)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Exit is an error that has been printed; only its status matters.
type Exit int

func (e Exit) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Failure is an error with its exit status, and with hints,
// a line each.
type Failure struct {
	Status int
	Err    error
	Hints  []string
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// Fail returns an error with its exit status.
func Fail(status int, format string, args ...any) *Failure {
	return &Failure{Status: status, Err: fmt.Errorf(format, args...)}
}

// Hint adds a line that says what to do, and returns f.
func (f *Failure) Hint(format string, args ...any) *Failure {
	f.Hints = append(f.Hints, fmt.Sprintf(format, args...))
	return f
}

// statusOf returns the exit status for the code of an answer.
func statusOf(code connect.Code) int {
	switch code {
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		return ExitUsage
	case connect.CodeNotFound:
		return ExitNotFound
	case connect.CodeAborted, connect.CodeAlreadyExists:
		return ExitConflict
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		return ExitDenied
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeResourceExhausted:
		return ExitUnreachable
	}
	return ExitFindings
}

// StatusOf returns the exit status for the error of a command.
func StatusOf(err error) int {
	var printed Exit
	var f *Failure
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &printed):
		return int(printed)
	case errors.As(err, &f):
		return f.Status
	}
	return ExitUsage
}
