package operator

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// Domain is the domain of every google.rpc.ErrorInfo of this API.
const Domain = "lifecycle-go"

// Reasons of errors, in google.rpc.ErrorInfo. They are stable.
const (
	ReasonInvalid           = "INVALID_REQUEST"     // fields are missing, too long or malformed
	ReasonMalformed         = "MALFORMED_REQUEST"   // the body or the query does not follow the contract
	ReasonBodyTooLarge      = "BODY_TOO_LARGE"      // the body is too large
	ReasonCompressed        = "COMPRESSED_REQUEST"  // the request is compressed
	ReasonUnauthenticated   = "UNAUTHENTICATED"     // no credentials, or unknown ones
	ReasonExpired           = "CREDENTIALS_EXPIRED" // the credentials have expired
	ReasonForbidden         = "ROLE_NOT_SUFFICIENT" // a viewer tried to act
	ReasonOrigin            = "CROSS_ORIGIN"        // the request comes from another site's page
	ReasonHost              = "HOST_NOT_ALLOWED"    // the Host header names another server
	ReasonRateLimited       = "RATE_LIMITED"        // too many requests
	ReasonTooManyStreams    = "TOO_MANY_STREAMS"    // too many watches at once
	ReasonStreamOver        = "STREAM_OVER"         // the watch is too old or too slow, or the server stops: watch again
	ReasonNotServed         = "AREA_NOT_SERVED"     // this server has no workflows, workers or processes
	ReasonUnknownType       = "UNKNOWN_TYPE"        // no such type of workflow
	ReasonNotFound          = "NOT_FOUND"           // no such entity, worker or process
	ReasonInvalidTransition = "INVALID_TRANSITION"  // the table has no such edge
	ReasonTerminal          = "TERMINAL_PHASE"      // the entity's phase is terminal
	ReasonNotWritable       = "FIELD_NOT_WRITABLE"  // operators may not write the field
	ReasonStale             = "STALE_ETAG"          // the object changed after if_match was read
	ReasonRedriven          = "ALREADY_REDRIVEN"    // another call has redriven the dead letter
	ReasonContention        = "CONTENTION"          // too many others write it
	ReasonDegraded          = "DEGRADED"            // the stored record cannot be decoded
	ReasonExists            = "ALREADY_EXISTS"      // the id is taken
	ReasonBadCode           = "CODE_REJECTED"       // the code does not load or may not be fetched
	ReasonNotGranted        = "NOT_GRANTED"         // the host grants the tenant no such variable or secret
	ReasonNotSigned         = "NOT_SIGNED"          // the tenant's code must be signed, and is not by one of the keys
	ReasonUnreachable       = "PROCESS_UNREACHABLE" // the process did not answer
	ReasonRefused           = "PROCESS_REFUSED"     // the process refused
	ReasonUnavailable       = "BACKEND_UNAVAILABLE" // a backend is not available now; a write may have been stored
	ReasonTimeout           = "DEADLINE_EXCEEDED"   // the call took too long; a write may have been stored
	ReasonInternal          = "INTERNAL"            // a defect; the server's log has the incident
)

// Error is an error of an area that the server reports to the caller. The server
// logs any other error with an incident number and reports only that number, as
// an internal error.
type Error struct {
	Code    connect.Code
	Reason  string // one of the Reason constants
	Field   string // the field of the request that is wrong, "" for none
	Message string
	Err     error // for errors.Is; the caller does not see it
}

// Error returns the message.
func (e *Error) Error() string { return e.Message }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an *Error.
func Errorf(code connect.Code, reason, field, format string, args ...any) *Error {
	return &Error{Code: code, Reason: reason, Field: field, Message: fmt.Sprintf(format, args...)}
}

// invalid is the error for a field of a request.
func invalid(field, format string, args ...any) error {
	return Errorf(connect.CodeInvalidArgument, ReasonInvalid, field, format, args...)
}

// malformed is the error for a request that does not follow the contract.
func malformed(field, format string, args ...any) error {
	return Errorf(connect.CodeInvalidArgument, ReasonMalformed, field, format, args...)
}

// knownError is an error of an area, and what the caller gets for it.
type knownError struct {
	err    error
	code   connect.Code
	reason string
	field  string
}

// translate turns err into the first answer that fits. Another error stays as it is.
func translate(err error, table []knownError) error {
	for _, a := range table {
		if errors.Is(err, a.err) {
			return &Error{Code: a.code, Reason: a.reason, Field: a.field, Message: err.Error(), Err: err}
		}
	}
	return err
}

// partly is the error of a call that has done a part of its work. The caller gets both.
type partly struct {
	error
	done string // what it has done
}

func (p partly) Unwrap() error { return p.error }

// afterSome adds to an error how many letters a call had done before it; did is what it
// does.
func afterSome(err error, n int, did string) error {
	if err == nil || n == 0 {
		return err
	}
	return partly{err, fmt.Sprintf("dead letters %s: %d, and then: ", did, n)}
}

// violations collects what is wrong with the fields of a request.
type violations []*errdetails.BadRequest_FieldViolation

func (v *violations) add(field, format string, args ...any) {
	*v = append(*v, &errdetails.BadRequest_FieldViolation{Field: field, Description: fmt.Sprintf(format, args...)})
}

// details returns the violations as details of an error.
func (v violations) details() []proto.Message {
	if len(v) == 0 {
		return nil
	}
	return []proto.Message{&errdetails.BadRequest{FieldViolations: v}}
}

// err returns all violations as one error, nil when there are none.
func (v violations) err() error {
	if len(v) == 0 {
		return nil
	}
	texts := make([]string, len(v))
	for i, f := range v {
		texts[i] = f.GetField() + " " + f.GetDescription()
	}
	err := connect.NewError(connect.CodeInvalidArgument, errors.New("invalid request: "+strings.Join(texts, "; ")))
	return withDetails(err, ReasonInvalid, nil, v.details()...)
}

// withDetails adds an ErrorInfo and further details to err.
func withDetails(err *connect.Error, reason string, metadata map[string]string, more ...proto.Message) *connect.Error {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: Domain, Metadata: metadata}
	for _, m := range append([]proto.Message{info}, more...) {
		if d, failed := connect.NewErrorDetail(m); failed == nil { // our messages never fail
			err.AddDetail(d)
		}
	}
	return err
}

// wire turns any error into the one that the caller gets. It logs an error that the caller must not
// see, and gives the caller the number of that line.
func wire(ctx context.Context, log *slog.Logger, action string, err error) error {
	var ours *Error
	var ready *connect.Error
	var some partly
	errors.As(err, &some)
	answer := func(code connect.Code, reason, text string, metadata map[string]string, more ...proto.Message) error {
		return withDetails(connect.NewError(code, errors.New(some.done+text)), reason, metadata, more...)
	}
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ready):
		return ready
	case errors.As(err, &ours):
		message := text.Valid(ours.Message) // stored texts may not be UTF-8
		if ours.Field == "" {
			return answer(ours.Code, ours.Reason, message, nil)
		}
		var v violations
		v.add(ours.Field, "%s", some.done+message)
		return answer(ours.Code, ours.Reason, message, map[string]string{"field": ours.Field}, v.details()...)
	case errors.Is(err, context.Canceled):
		return answer(connect.CodeCanceled, ReasonStreamOver, "the caller disconnected", nil)
	case errors.Is(err, context.DeadlineExceeded):
		late := "the call took too long; a write may have been stored, so read before you try again"
		if isRead := needs[action] == RoleViewer || needs[action] == RoleInspector; isRead {
			late = "the call took too long: try again"
		}
		return answer(connect.CodeDeadlineExceeded, ReasonTimeout, late, nil)
	}
	incident := make([]byte, 6)
	rand.Read(incident)
	id := hex.EncodeToString(incident)
	log.ErrorContext(ctx, "operator: internal error", "action", action, "incident", id, "error", err)
	return answer(connect.CodeInternal, ReasonInternal,
		"internal error: the server's log has it as incident "+id, map[string]string{"incident": id})
}
