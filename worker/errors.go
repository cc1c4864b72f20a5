package worker

import (
	"fmt"
	"time"
)

// BackoffError is the cause of the event of a worker that becomes Pending because it
// waits for a restart. In a [Supervisor] with another strategy than OneForOne the children
// that are restarted together have the same cause. When the wait is over, the worker
// changes from Pending to Starting.
type BackoffError struct {
	Name     string        // the worker that failed or ended
	Wait     time.Duration // how long it waits
	Due      time.Time     // when it is over
	Failures int           // in a row, this one included
	Err      error         // how the worker ended; nil when it ended without an error
}

// Error says why the worker waits.
func (e *BackoffError) Error() string {
	if e.Err == nil {
		return "backoff after it had ended"
	}
	return fmt.Sprintf("backoff after: %v", e.Err)
}

// Unwrap returns Err.
func (e *BackoffError) Unwrap() error { return e.Err }

// KilledError ends a process or a container that did not stop when it was asked to, and
// was killed. A function that does not stop ends with an [AbandonedError], because Go
// cannot end it.
type KilledError struct {
	Name string // of the worker
	Err  error  // how the program ended; nil when only its exit code is known
}

// Error names the worker.
func (e *KilledError) Error() string {
	text := e.Name + ": did not stop when asked and was killed"
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns Err.
func (e *KilledError) Unwrap() error { return e.Err }
