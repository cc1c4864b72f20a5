package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
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
	reasonForbidden   = "ROLE_NOT_SUFFICIENT"
	reasonTimeout     = "DEADLINE_EXCEEDED"
	reasonInvalid     = "INVALID_TRANSITION"
	reasonNotWritable = "FIELD_NOT_WRITABLE"
)

// subject is the object of a call, for the hints of an error.
type subject struct {
	kind string // "workflow", "worker", "process"
	typ  string // of a workflow
	id   string
}

// explain turns the error of a call into one that says what happened, to
// which object, and what to do about it.
func (a *api) explain(ctx context.Context, err error, about subject) error {
	var own *failure // of the login
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Canceled
	case errors.As(err, &own):
		return own
	case !connect.IsWireError(err):
		return a.unreachable(err)
	}
	var answer *connect.Error
	errors.As(err, &answer)
	f := &failure{status: statusOf(answer.Code()), err: errors.New(answer.Message())}
	hint := func(format string, args ...any) { f.hints = append(f.hints, fmt.Sprintf(format, args...)) }
	switch reason := client.Reason(answer); {
	case reason == reasonUnknownType:
		f.hints = a.typesHint(ctx, about.typ)
	case reason == reasonNotFound:
		switch about.kind {
		case "workflow":
			hint("to list them: lifecyclectl list %s", about.typ)
		case "worker":
			hint("to list them: lifecyclectl workers list")
		case "process":
			hint("to list them: lifecyclectl processes list")
		}
	case reason == reasonStale || reason == reasonContention:
		hint("read it again: lifecyclectl get %s %s", about.typ, about.id)
	case reason == reasonInvalid:
		hint("to see the table: lifecyclectl diagram workflow %s", about.typ)
	case reason == reasonNotWritable:
		hint("to list the writable fields: lifecyclectl definitions %s", about.typ)
	case reason == reasonForbidden:
		hint("lifecyclectl whoami shows your role")
	case reason == reasonTimeout:
		hint("a write may have been stored: read before trying again")
	case reason == reasonExpired:
		hint("get new credentials, and put them into --token-file or --cert-file; or sign in again: lifecyclectl login")
	case answer.Code() == connect.CodeUnauthenticated:
		hint("give credentials: --token-file FILE (LIFECYCLECTL_TOKEN_FILE), or --cert-file and --key-file; or sign in: lifecyclectl login")
	case answer.Code() == connect.CodePermissionDenied:
		hint("lifecyclectl whoami shows your name and role")
	}
	return f
}

// unreachable explains a call that got no answer from an operator server.
func (a *api) unreachable(err error) error {
	f := &failure{status: exitUnreachable}
	hint := func(format string, args ...any) { f.hints = append(f.hints, fmt.Sprintf(format, args...)) }
	text := strings.TrimPrefix(message(err), "unavailable: ")
	var (
		unknown   x509.UnknownAuthorityError
		hostname  x509.HostnameError
		verify    *tls.CertificateVerificationError
		dialing   *net.OpError
		noSuchDNS *net.DNSError
		slow      net.Error
	)
	where := "say where it is with --server URL or LIFECYCLECTL_SERVER"
	switch {
	case errors.As(err, &unknown), errors.As(err, &hostname), errors.As(err, &verify):
		f.err = fmt.Errorf("the certificate of %s is not trusted: %s", a.url, text)
		hint("trust its certificate with --ca-file FILE, or use the name that the certificate is for")
	case errors.Is(err, http.ErrSchemeMismatch):
		f.err = fmt.Errorf("%s speaks plain HTTP", a.url)
		hint("use --server %s", strings.Replace(a.url, "https:", "http:", 1))
	case errors.As(err, &noSuchDNS), errors.As(err, &dialing) && dialing.Op == "dial":
		f.err = fmt.Errorf("no operator server can be reached at %s: %s", a.url, text)
		hint("is it running? A service has one with operator.New of package fleet/operator and app.Serve")
		hint("%s", where)
	case errors.As(err, &slow) && slow.Timeout():
		f.err = fmt.Errorf("%s did not answer in time", a.url)
		hint("a write may have been stored: read before trying again; --timeout waits longer")
	case errors.As(err, &dialing):
		f.err = fmt.Errorf("the connection to %s broke: %s", a.url, text)
		hint("a write may have been stored: read before trying again")
	default:
		f.err = fmt.Errorf("the server at %s is not an operator server: %s", a.url, text)
		if strings.HasPrefix(a.url, "http:") {
			hint("if it speaks TLS: --server %s", strings.Replace(a.url, "http:", "https:", 1))
		}
		hint("%s", where)
	}
	return f
}

// typesHint suggests the type that was probably meant, or how to list all.
func (a *api) typesHint(ctx context.Context, typ string) []string {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	names := a.types(ctx)
	if meant := suggest.Nearest(typ, names); meant != "" {
		return []string{fmt.Sprintf("did you mean %s?", meant)}
	}
	if len(names) == 0 {
		return []string{"to list them: lifecyclectl definitions"}
	}
	return []string{"there are " + strings.Join(names, ", ")}
}

// types returns the names of the workflows, none after an error.
func (a *api) types(ctx context.Context) (names []string) {
	list, err := a.Workflows.ListDefinitions(ctx, &operatorv1.ListDefinitionsRequest{})
	if err != nil {
		return nil
	}
	for _, d := range list.GetDefinitions() {
		names = append(names, d.GetType())
	}
	return names
}

// message returns the text of an error without its code.
func message(err error) string {
	var answer *connect.Error
	if errors.As(err, &answer) {
		return answer.Message()
	}
	return err.Error()
}
