//go:build !unix

package sig

import (
	"errors"
	"os"
)

// User returns nil for the empty name, and otherwise an error: there is no such signal.
func User(name string) (os.Signal, error) {
	if name == "" {
		return nil, nil
	}
	return nil, errors.New("this system has no signals for that")
}
