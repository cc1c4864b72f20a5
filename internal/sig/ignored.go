package sig

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// inherited has the signals that the parent of this process ignored, as a shell does for
// a background job. The program has not asked for that.
var inherited = slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGTERM}, func(s os.Signal) bool { return !signal.Ignored(s) })

// NotIgnored returns the signals without the ones that the program has ignored by
// [signal.Ignore]. It knows which of SIGINT and SIGTERM the parent had ignored before.
func NotIgnored(signals []os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(signals), func(s os.Signal) bool {
		return signal.Ignored(s) && !slices.Contains(inherited, s)
	})
}
