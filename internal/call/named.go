package call

import (
	"fmt"
	"strings"

	"github.com/pleme-io/lifecycle-go/internal/text"
)

// About puts the kind and the name before err, as in "unit db: ". The errors of a panic
// and of an abandoned call already begin with the name; About then adds only the kind.
func About(kind, name string, err error) error {
	if strings.HasPrefix(err.Error(), name+": ") {
		return fmt.Errorf("%s %w", kind, err)
	}
	return fmt.Errorf("%s %s: %w", kind, name, err)
}

// Unnamed returns err without the name in front, for places that show the name
// separately.
func Unnamed(name string, err error) error {
	if rest, named := strings.CutPrefix(err.Error(), name+": "); named {
		return &unnamedError{err, rest}
	}
	return err
}

// maxStack is the most of a stack that a line of a log has.
const maxStack = 16 << 10

// Logged returns the attributes of a line of a log about err. When err is a panic, it adds
// the stack, without which its place could not be found.
func Logged(err error, attributes ...any) []any {
	if p, ok := As[*PanicError](err); ok && len(p.Stack) > 0 {
		attributes = append(attributes, "stack", text.Excerpt(string(p.Stack), maxStack))
	}
	return attributes
}

type unnamedError struct {
	error
	text string
}

func (e *unnamedError) Error() string { return e.text }
func (e *unnamedError) Unwrap() error { return e.error }
