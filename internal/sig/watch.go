package sig

import (
	"os"
	"sync"
	"syscall"
	"time"
)

// Watcher reads signals and calls Reload, Upgrade, First or Further for each. All but First run on
// the goroutine that reads and must not block.
type Watcher struct {
	Stops, Reloads, Upgrades <-chan os.Signal // signals of the process

	Given         <-chan os.Signal // signals that the program gives instead; may be nil or closed
	Debounce      time.Duration    // a signal within it after the last one that counted does not count
	UpgradeSignal os.Signal        // asks for an upgrade; nil for none

	Reload  func()          // for each SIGHUP
	Upgrade func()          // for each UpgradeSignal
	First   func(os.Signal) // for the first signal that counts
	Further func(os.Signal) // for each later one
}

// Start reads the signals until stop is called. stop waits for First and Further.
func (w Watcher) Start() (stop func()) {
	quit := make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		var last time.Time // of the signals that counted
		for {
			var s os.Signal
			select {
			case <-quit:
				return
			case s = <-w.Stops:
			case s = <-w.Reloads:
			case s = <-w.Upgrades:
			case given, ok := <-w.Given:
				if !ok {
					w.Given = nil // no more will come
					continue
				}
				s = given
			}
			if s == nil {
				continue // the program has sent a nil
			}
			if s == w.UpgradeSignal {
				w.Upgrade()
				continue
			}
			if s == syscall.SIGHUP {
				w.Reload()
				continue
			}
			now := time.Now()
			// The debounce time begins with the last signal that counted. So a user that
			// presses Ctrl-C all the time still sends a second signal.
			isFirst := last.IsZero()
			isRepeat := !isFirst && w.Debounce > 0 && now.Sub(last) <= w.Debounce
			if isRepeat {
				continue
			}
			last = now
			if isFirst {
				// If the beginning of the stop blocks, the loop still sees the signals
				// that end the process.
				ended.Go(func() { w.First(s) })
				continue
			}
			w.Further(s)
		}
	})
	return func() {
		close(quit)
		ended.Wait()
	}
}
