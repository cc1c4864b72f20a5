// Package endclass names the classes of the end of a process: the To of an event "exit" or "lost".
//
// Package presence says what each means. Begin with [Clean].
package endclass

// The classes of an end.
const (
	Clean    = "clean"
	Failed   = "failed"
	Hung     = "hung"
	Cut      = "cut"
	Lost     = "lost"
	OOM      = "oom"
	Forced   = "forced"
	Panicked = "panicked"
	Killed   = "killed"
	Evicted  = "evicted"
)
