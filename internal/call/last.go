package call

import (
	"sync"
	"time"
)

// Last calls all steps at once, each in a goroutine of its own, and waits until all have
// returned or the time is over, a time in which the process stood still not counted. It is for the last words of a process: a step that blocks
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
	await(all, within)
}
