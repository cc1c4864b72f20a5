package call

import (
	"sync"
	"time"
)

// Last calls all steps at once, each in a goroutine of its own, and waits until all have
// returned or the time is over. Time during which the process was suspended does not count. Last
// is for what a process writes before it is ended by force: a step that blocks or panics ends
// with the process.
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
	await(all, within)
}
