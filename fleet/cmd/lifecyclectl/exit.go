package main

import (
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
)

// The exit statuses of every command. exitStatuses describes them.
const (
	exitOK          = 0
	exitFindings    = 1 // the command did its work, and the answer is no
	exitUsage       = 2 // the command line, a file or a field is wrong
	exitNotFound    = 3
	exitConflict    = 4
	exitDenied      = 5
	exitUnreachable = 6
	exitInterrupted = 130 // 128 and SIGINT, as in shells
)

// exitStatuses describes them, for the help and the reference.
var exitStatuses = []struct {
	status int
	means  string
}{
	{exitOK, "done, and nothing is wrong"},
	{exitFindings, "the answer is no: a finding, a refusal, a failure of the server"},
	{exitUsage, "the command line, a file or a field is wrong; nothing was done"},
	{exitNotFound, "there is no such type, entity, worker, process or dead letter"},
	{exitConflict, "it has changed since, or exists already"},
	{exitDenied, "the credentials or the role do not suffice"},
	{exitUnreachable, "the server, or the process behind it, does not answer: try again"},
	{exitInterrupted, "interrupted before it was done; watch and top end with 0"},
}

func exitHelp() string {
	var b strings.Builder
	b.WriteString("Exit status:\n")
	for _, s := range exitStatuses {
		fmt.Fprintf(&b, "  %3d  %s\n", s.status, s.means)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// exitStatus is an error that has been printed; only its status matters.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// failure is an error with its exit status, and with hints,
// a line each.
type failure struct {
	status int
	err    error
	hints  []string
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// statusOf returns the exit status for the code of an answer.
func statusOf(code connect.Code) int {
	switch code {
	case connect.CodeInvalidArgument, connect.CodeOutOfRange:
		return exitUsage
	case connect.CodeNotFound:
		return exitNotFound
	case connect.CodeAborted, connect.CodeAlreadyExists:
		return exitConflict
	case connect.CodeUnauthenticated, connect.CodePermissionDenied:
		return exitDenied
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeResourceExhausted:
		return exitUnreachable
	}
	return exitFindings
}

// statusOfError returns the exit status for the error of a command.
func statusOfError(err error) int {
	var told exitStatus
	var f *failure
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &told):
		return int(told)
	case errors.As(err, &f):
		return f.status
	}
	return exitUsage
}
