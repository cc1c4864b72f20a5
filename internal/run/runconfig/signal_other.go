//go:build !unix

package runconfig

import "syscall"

// signals are the signals that may be named. The other default ones are
// ignored, since they cannot be sent on this system.
var signals = map[string]syscall.Signal{
	"TERM":  syscall.SIGTERM,
	"INT":   syscall.SIGINT,
	"QUIT":  syscall.SIGQUIT,
	"HUP":   syscall.SIGHUP,
	"USR1":  -1,
	"USR2":  -1,
	"WINCH": -1,
}
