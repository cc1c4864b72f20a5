package call_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pleme-io/lifecycle-go/internal/call"
)

// Ask waits only once for an overdue answer. Once the answer has come, Ask calls
// the method again.
func TestAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a call.Answers
		release := make(chan struct{})
		calls := 0
		slow := func() int { calls++; <-release; return 7 }
		began := time.Now()
		if _, err := call.Ask(&a, "State", slow); !errors.Is(err, call.ErrNoAnswer) || time.Since(began) != call.AnswerIn {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		for range 3 {
			if _, err := call.Ask(&a, "State", slow); !errors.Is(err, call.ErrNoAnswer) || time.Since(began) != call.AnswerIn {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		}
		if n, err := call.Ask(&a, "Err", func() int { return 5 }); n != 5 || err != nil {
			t.Errorf("another question: %d, %v", n, err)
		}
		close(release)
		synctest.Wait()
		if n, err := call.Ask(&a, "State", slow); n != 7 || err != nil || calls != 2 {
			t.Errorf("once it has answered: %d, %v, %d calls", n, err, calls)
		}
		if _, err := call.Ask(&a, "State", func() int { panic("boom") }); err == nil || !strings.Contains(err.Error(), "State: panic: boom") {
			t.Errorf("a panic: %v", err)
		}
		if _, err := call.Ask(&a, "State", func() int { runtime.Goexit(); return 0 }); !errors.Is(err, call.ErrGoexit) {
			t.Errorf("Goexit: %v", err)
		}
	})
}

// Ask keeps an answer that is an error on the goroutine of the call, within the
// same bound.
func TestAskKeepsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a call.Answers
		release := make(chan struct{})
		began := time.Now()
		_, err := call.Ask(&a, "Err", func() error { return blocker{release} })
		if !errors.Is(err, call.ErrNoAnswer) || time.Since(began) != call.AnswerIn {
			t.Errorf("an error that cannot be read in time: %v after %v", err, time.Since(began))
		}
		close(release)
		synctest.Wait()
		told, err := call.Ask(&a, "Err", func() error { return blocker{release} })
		if err != nil || told.Error() != "at last" || !errors.Is(told, blocker{release}) {
			t.Errorf("got %v, %v", told, err)
		}
		told, err = call.Ask(&a, "Err", func() error { return (*nilable)(nil) })
		if err != nil || !strings.Contains(told.Error(), "Err: panic: ") {
			t.Errorf("a nil error with a type: %v, %v", told, err)
		}
	})
}
