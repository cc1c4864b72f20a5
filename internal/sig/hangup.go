package sig

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

// keptVar has the id of a process that ignores SIGHUP only until its next program catches
// the signal. A child has another id and does not take it for its own.
const keptVar = "LIFECYCLE_SIGHUP_KEPT"

// KeepHangup ignores SIGHUP for the program that this process is about to exec: its
// default effect would end the process before that program catches it.
func KeepHangup() {
	_ = os.Setenv(keptVar, strconv.Itoa(os.Getpid())) // fails only for a name that cannot be set
	signal.Ignore(syscall.SIGHUP)
}

// HangupIgnored reports whether SIGHUP is to stay ignored: the process was started so, as
// nohup does.
func HangupIgnored() bool {
	return signal.Ignored(syscall.SIGHUP) && os.Getenv(keptVar) != strconv.Itoa(os.Getpid())
}
