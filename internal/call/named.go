package call

import (
	"fmt"
	"strings"
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
	if text, named := strings.CutPrefix(err.Error(), name+": "); named {
		return &unnamedError{err, text}
	}
	return err
}

type unnamedError struct {
	error
	text string
}

func (e *unnamedError) Error() string { return e.text }
func (e *unnamedError) Unwrap() error { return e.error }
