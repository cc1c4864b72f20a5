package sig

import (
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A signal that came before the end is told, whichever of the two the watcher sees first:
// the App that was about to run once more then stops.
func TestWatcherTellsTheFirstSignalBeforeItEnds(t *testing.T) {
	for range 200 {
		stops := make(chan os.Signal, 1)
		told := make(chan os.Signal, 1)
		stop := Watcher{Stops: stops, Debounce: time.Hour,
			First:   func(s os.Signal) { told <- s },
			Further: func(os.Signal) { t.Error("a further signal, and there was one") },
		}.Start()
		stops <- syscall.SIGTERM
		stop()
		select {
		case s := <-told:
			if s != syscall.SIGTERM {
				t.Fatalf("told of %v", s)
			}
		default:
			t.Fatal("the signal was lost")
		}
	}
}
