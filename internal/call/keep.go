package call

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// maxText bounds the text of an error that the library keeps, in bytes. A longer text is cut,
// and ends with the length that it had. Container runtimes split lines of a log that are longer.
const maxText = 16 << 10

// kept is a foreign error behind the text that it had at the door.
type kept struct {
	err  error // the foreign error
	text string
	tree node

	lazy *lazyRead // of [Take]; nil when text and tree are there from the beginning
}

// lazyRead is the reading of an error on a goroutine of its own, which begins when the
// library first needs the text.
type lazyRead struct {
	name  string
	begin sync.Once
	done  chan struct{} // closed once text and tree are there
	late  atomic.Bool   // a caller has waited for done, and it did not come in time
}

// Error returns the text that the foreign error had when the library got it.
func (k *kept) Error() string {
	if !k.isRead() {
		return fmt.Sprintf("a %T, whose text is not known: its Error method has not returned", k.err)
	}
	return k.text
}

// Unwrap returns the foreign error: errors.Is and errors.As call its methods, on the
// goroutine of the caller who asks. It returns nil for a nil pointer, whose methods would
// panic there.
func (k *kept) Unwrap() error {
	if IsNil(k.err) {
		return nil
	}
	return k.err
}

// Format prints the foreign error by its own Format method, if it has one.
func (k *kept) Format(s fmt.State, verb rune) {
	if f, ok := k.err.(fmt.Formatter); ok {
		f.Format(s, verb)
		return
	}
	fmt.Fprintf(s, fmt.FormatString(s, verb), k.Error())
}

// isRead reports whether text and tree are there. The first time it waits for them, for
// [AnswerIn] at most.
func (k *kept) isRead() bool {
	lazy := k.lazy
	if lazy == nil {
		return true
	}
	lazy.begin.Do(func() { go k.readLater() })
	if !lazy.late.Load() {
		await(lazy.done, AnswerIn)
	}
	select {
	case <-lazy.done:
		return true
	default:
		lazy.late.Store(true)
		return false
	}
}

// readLater reads the error of a lazyRead. When the Error method calls runtime.Goexit, the
// text stays unknown.
func (k *kept) readLater() {
	if unreadable := k.readUnder(k.lazy.name); unreadable != nil {
		k.text = unreadable.Error()
	}
	close(k.lazy.done)
}

// Keep takes the text of a foreign error once, cut to a length, and looks at what it wraps.
// It returns an error with that text, which unwraps to the foreign error. nil stays nil.
// Call it on the goroutine that ran the code that made the error, as [Do], [Go] and [Ask]
// do: the methods of the error may panic, exit their goroutine or block.
//
// An error whose text cannot be read, like many nil pointers, becomes a [*PanicError] that
// does not unwrap to it. Errors made by errors.New and errors of this package stay as
// they are: their methods are known to return.
func Keep(name string, err error) error {
	if err == nil || isPlain(err) {
		return err
	}
	k := &kept{err: err}
	if unreadable := k.readUnder(name); unreadable != nil {
		return unreadable
	}
	return k
}

// readUnder reads the error's text and tree. It returns an error when the text cannot be read.
func (k *kept) readUnder(name string) (unreadable *PanicError) {
	defer func() {
		if v := recover(); v != nil {
			why := fmt.Sprintf("%s: the error that it returned, a %T, cannot be read", textOf(v), k.err)
			unreadable = &PanicError{Name: name, Value: why, Stack: debug.Stack(), text: why}
		}
	}()
	k.text = text.Excerpt(k.err.Error(), maxText)
	k.tree = look(k.err)
	return nil
}

// isPlain reports whether Keep leaves err as it is.
func isPlain(err error) bool {
	switch e := err.(type) { //nolint:errorlint // err itself
	case *kept:
		return true
	case *PanicError:
		return e != nil && e.caught()
	case *AbandonedError:
		return e != nil
	}
	return isLeaf(err) && len(err.Error()) <= maxText
}

// isLeaf reports whether err was made by errors.New or has the type of
// context.DeadlineExceeded: these wrap nothing.
func isLeaf(err error) bool {
	t := reflect.TypeOf(err)
	return t == newType || t == deadlineType
}

// The types of these errors are not exported.
var (
	newType      = reflect.TypeOf(errors.New(""))
	deadlineType = reflect.TypeOf(context.DeadlineExceeded)
)

// Take keeps an error that no call returned, such as the cause of a context, and returns
// at once. A goroutine of its own reads the error when the library first needs its text. The
// Error method of the result waits for that, for at most [AnswerIn] the first time, and then
// says that the text is not known.
func Take(name string, err error) error {
	if err == nil || isPlain(err) {
		return err
	}
	return &kept{err: err, lazy: &lazyRead{name: name, done: make(chan struct{})}}
}
