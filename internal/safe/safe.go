// Package safe forwards to [call], its successor, until the last user is gone.
package safe

import "github.com/pleme-io/lifecycle-go/internal/call"

type (
	PanicError = call.PanicError
	Answers    = call.Answers
)

const (
	MaxDump  = call.MaxDump
	AnswerIn = call.AnswerIn
)

var (
	ErrGoexit   = call.ErrGoexit
	ErrNoAnswer = call.ErrNoAnswer
)

func Go(name string, fn func() error, started func(goid uint64), done func(error)) {
	call.Go(name, func() error {
		if started != nil {
			started(call.GoroutineID())
		}
		return fn()
	}, done)
}

func Do(name string, fn func() error) error                        { return call.Do(name, fn) }
func Only(err error, is func(error) bool) bool                     { return call.Only(err, is) }
func Same(a, b error) bool                                         { return call.Same(a, b) }
func Ask[T any](a *Answers, method string, fn func() T) (T, error) { return call.Ask(a, method, fn) }
func GoroutineID() uint64                                          { return call.GoroutineID() }
func Dump() []byte                                                 { return call.Dump() }
func Stack(goid uint64) string                                     { return call.Stack(goid) }
