package call

import (
	"fmt"
	"path"
	"strings"
)

// AbandonedError says that a worker, hook or drainer did not return by its
// deadline. Its goroutine goes on until it returns by itself, because Go cannot
// end a goroutine.
type AbandonedError struct {
	Name  string // of the worker, hook or drainer
	Where string // the top of its goroutine's stack, one line
	Stack string // the stacks of its goroutine and of goroutines that it has started, when it was abandoned; "" when none was found
}

// Error names the abandoned part and the top of its stack.
func (e *AbandonedError) Error() string {
	if e.Where == "" {
		return fmt.Sprintf("%s: did not return in time and was abandoned", e.Name)
	}
	return fmt.Sprintf("%s: did not return in time and was abandoned in %s", e.Name, e.Where)
}

// Abandoned returns the error for a call of this kind and name that does not return. It
// takes the goroutine profile and looks for the goroutines with the two labels. It finds
// none when the function has replaced its labels. Calls that are abandoned at the same
// moment share one profile.
func Abandoned(kind, name string) *AbandonedError {
	stack := stacksOf(profile(), kind, name)
	return &AbandonedError{Name: name, Where: topOf(stack), Stack: stack}
}

// topOf returns the function of the innermost frame that is not the runtime's
// own, with its file and line.
func topOf(stack string) string {
	function := ""
	for line := range strings.Lines(stack) {
		line = strings.TrimSuffix(line, "\n")
		file, isFile := strings.CutPrefix(line, "\t")
		switch {
		case isFile && function != "":
			return function + " (" + path.Base(file) + ")"
		case isFile || strings.HasSuffix(line, ":"):
		default:
			function, _ = strings.CutSuffix(line, "(...)")
			for _, std := range []string{"runtime.", "internal/", "sync.", "time."} {
				if strings.HasPrefix(function, std) {
					function = ""
					break
				}
			}
		}
	}
	return ""
}
