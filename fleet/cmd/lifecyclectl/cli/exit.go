package cli

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
)

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
	{ExitInterrupted, "interrupted before it was done; watch and top end with 0"},
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
	f.addHint(format, args...)
	return f
}

func (f *Failure) addHint(format string, args ...any) {
	f.Hints = append(f.Hints, fmt.Sprintf(format, args...))
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
