package prove

import "fmt"

// Reason says why a proof was refused or not finished.
type Reason int

// The reasons.
const (
	Failed      Reason = iota // the cluster did not do what was asked
	Usage                     // the command line or a manifest is wrong; nothing was touched
	NotFound                  // an object does not exist
	Denied                    // a permission is missing
	Unreachable               // the API server does not answer
)

// Error is why a proof was refused or not finished.
type Error struct {
	Reason Reason
	Text   string
	Hints  []string // what to do about it, a line each
}

func (e *Error) Error() string { return e.Text }

func refuse(why Reason, format string, args ...any) *Error {
	return &Error{Reason: why, Text: fmt.Sprintf(format, args...)}
}

// hint adds a line.
func (e *Error) hint(format string, args ...any) *Error {
	e.Hints = append(e.Hints, fmt.Sprintf(format, args...))
	return e
}
