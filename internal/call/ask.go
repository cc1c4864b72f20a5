package call

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// AnswerIn is how long [Ask] waits for a method that should answer at once.
const AnswerIn = time.Second

// ErrNoAnswer is returned by [Ask] for a method that did not answer in time.
var ErrNoAnswer = fmt.Errorf("did not return within %v", AnswerIn)

// Answers keeps the overdue calls of [Ask] for one foreign value. The zero value
// is ready to use. It may be used concurrently.
type Answers struct {
	mu      sync.Mutex         // guards overdue
	overdue map[string][]*Call // by method: calls that did not return in time
}

// Ask calls a method of a foreign value and waits for it for at most [AnswerIn].
// It returns an error for a method that panics, exits its goroutine or does not
// return. An answer that is itself an error is kept.
//
// While a call of the method is overdue, Ask does not call it again and returns
// [ErrNoAnswer] at once. So a value that blocks holds few goroutines.
func Ask[T any](a *Answers, method string, fn func() T) (T, error) {
	var none T
	if a.isOverdue(method) {
		return none, fmt.Errorf("%s: %w", method, ErrNoAnswer)
	}
	var out T      // must not be read before the call has ended
	c := new(Call) // without a stack: nothing waits for its end
	Go(method, func() error {
		out = fn()
		if err, ok := any(&out).(*error); ok {
			*err = Keep(method, *err)
		}
		return nil
	}, c.end)
	await(c.Done(), AnswerIn)
	if ended, err := a.collect(method, c); ended {
		return out, err
	}
	return none, fmt.Errorf("%s: %w", method, ErrNoAnswer)
}

// isOverdue reports whether a call of the method did not return in time and has
// not returned since.
func (a *Answers) isOverdue(method string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	left := slices.DeleteFunc(a.overdue[method], func(c *Call) bool {
		ended, _ := c.Ended()
		return ended
	})
	if len(left) == 0 {
		delete(a.overdue, method)
		return false
	}
	a.overdue[method] = left
	return true
}

// collect returns the result of the call, or records that the call is overdue.
func (a *Answers) collect(method string, c *Call) (ended bool, err error) {
	if ended, err := c.Ended(); ended {
		return true, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.overdue == nil {
		a.overdue = make(map[string][]*Call)
	}
	a.overdue[method] = append(a.overdue[method], c)
	return false, nil
}
