package sig

import (
	"os"
	"reflect"
	"strings"
	"syscall"
)

// OfNotifyContext returns the signal that ended a context of [signal.NotifyContext], whose
// cause this is, and nil for any other cause. Since Go 1.26 the cause is an error of a type
// without a name, with the text "terminated signal received".
//
// [signal.NotifyContext]: https://pkg.go.dev/os/signal#NotifyContext
func OfNotifyContext(cause error) os.Signal {
	if cause == nil || reflect.TypeOf(cause).PkgPath() != "os/signal" {
		return nil
	}
	name, ok := strings.CutSuffix(cause.Error(), " signal received")
	if !ok {
		return nil
	}
	if name == os.Interrupt.String() {
		return os.Interrupt
	}
	for n := syscall.Signal(1); n < 65; n++ {
		if n.String() == name {
			return n
		}
	}
	return nil
}
