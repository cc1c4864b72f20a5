package call

import (
	"sync"
	"time"
)

// Last calls all steps at once, each in a goroutine of its own, and waits until all have
// returned or the time is over. It is for the last words of a process: a step that blocks
// or panics may end with the process.
func Last(within time.Duration, steps ...func()) {
	var running sync.WaitGroup
	for _, step := range steps {
		running.Go(step)
	}
	all := make(chan struct{})
	go func() {
		running.Wait()
		close(all)
	}()
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case <-all:
	case <-late.C:
	}
}
