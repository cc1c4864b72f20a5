package safe

import (
	"fmt"
	"sync"
	"time"
)

// AnswerIn is how long [Ask] waits for an answer that is to take no time.
const AnswerIn = time.Second

// ErrNoAnswer is returned by [Ask] for a question that was not answered in time.
var ErrNoAnswer = fmt.Errorf("did not return within %v", AnswerIn)

// Answers keeps account of the questions that somebody of unknown making has yet
// to answer. The zero value is ready. It may be used concurrently.
type Answers struct {
	mu      sync.Mutex     // guards what follows
	overdue map[string]int // questions that were not answered in time, and still run
}

// Ask calls one of somebody's methods and waits for it no longer than
// [AnswerIn]: one that panics, exits its goroutine or does not return is an error.
// While an answer is overdue the question is not asked again, and is
// [ErrNoAnswer] at once, so that whoever blocks holds few goroutines.
func Ask[T any](a *Answers, method string, call func() T) (T, error) {
	var none T
	a.mu.Lock()
	known := a.overdue[method] > 0
	a.mu.Unlock()
	if known {
		return none, fmt.Errorf("%s: %w", method, ErrNoAnswer)
	}
	var out T // read when the call has ended, and not before
	var late bool
	answered := make(chan error, 1)
	Go(method, func() error { out = call(); return nil }, nil, func(err error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if late {
			a.overdue[method]--
		}
		answered <- err
	})
	patience := time.NewTimer(AnswerIn)
	defer patience.Stop()
	select {
	case err := <-answered:
		return out, err
	case <-patience.C:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case err := <-answered: // both were true
		return out, err
	default:
	}
	late = true
	if a.overdue == nil {
		a.overdue = make(map[string]int)
	}
	a.overdue[method]++
	return none, fmt.Errorf("%s: %w", method, ErrNoAnswer)
}
