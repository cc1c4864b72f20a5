package call

import (
	"fmt"
	"strings"
)

// AbandonedError says that a worker, hook or drainer did not return by its
// deadline. Its goroutine goes on until it returns by itself, because Go cannot
// end a goroutine.
type AbandonedError struct {
	Name  string // of the worker, hook or drainer
	Where string // the top of its goroutine's stack, one line
	Stack string // the whole stack of its goroutine when it was abandoned; "" when it could not be found
}

// Error names the abandoned part and the top of its stack.
func (e *AbandonedError) Error() string {
	if e.Where == "" {
		return fmt.Sprintf("%s: did not return in time and was abandoned", e.Name)
	}
	return fmt.Sprintf("%s: did not return in time and was abandoned in %s", e.Name, e.Where)
}

// Abandoned returns the error for name, whose call has this number and does not
// return. It takes a dump, which stops the process for a moment. Calls that are
// abandoned at the same moment share one dump (see [Stack]).
func Abandoned(name string, number uint64) *AbandonedError {
	stack := Stack(number)
	return &AbandonedError{Name: name, Where: topOf(stack), Stack: stack}
}

// topOf returns the function of the innermost frame that is not the runtime's
// own, with its file and line.
func topOf(stack string) string {
	lines := strings.Split(stack, "\n")
	for i := 1; i+1 < len(lines); i += 2 {
		call, file := lines[i], strings.TrimSpace(lines[i+1])
		if strings.HasPrefix(call, "runtime.") || strings.HasPrefix(call, "internal/") || strings.HasPrefix(call, "sync.") || strings.HasPrefix(call, "time.") {
			continue
		}
		if j := strings.LastIndex(call, "("); j > 0 {
			call = call[:j]
		}
		file, _, _ = strings.Cut(file, " +0x")
		if j := strings.LastIndex(file, "/"); j >= 0 {
			file = file[j+1:]
		}
		return call + " (" + file + ")"
	}
	return ""
}
