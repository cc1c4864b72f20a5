package sig

import (
	"os"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A signal means what the watcher was told: a stop, a reload or an upgrade.
func TestWatcherTellsSignalsApart(t *testing.T) {
	given, told := make(chan os.Signal, 4), make(chan string, 4)
	stop := Watcher{
		Given:         given,
		UpgradeSignal: syscall.SIGPIPE, // any signal that every system has
		Reload:        func() { told <- "reload" },
		Upgrade:       func() { told <- "upgrade" },
		First:         func(os.Signal) { told <- "stop" },
		Further:       func(os.Signal) { told <- "further" },
	}.Start()
	for _, tt := range []struct {
		signal os.Signal
		want   string
	}{{syscall.SIGHUP, "reload"}, {syscall.SIGPIPE, "upgrade"}, {syscall.SIGTERM, "stop"}, {syscall.SIGTERM, "further"}} {
		given <- tt.signal
		if got := <-told; got != tt.want {
			t.Errorf("%v is told as %s, want %s", tt.signal, got, tt.want)
		}
	}
	stop()
}
