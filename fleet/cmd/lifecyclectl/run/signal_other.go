//go:build !unix

package run

import "syscall"

// signals are those that one may name; the others of the default are passed
// over, since nobody can send them here.
var signals = map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "HUP": syscall.SIGHUP, "USR1": -1, "USR2": -1, "WINCH": -1}
