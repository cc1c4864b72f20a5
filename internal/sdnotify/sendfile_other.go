//go:build !unix

package sdnotify

import (
	"errors"
	"os"
)

// sendFile is for service managers that pass files. This system has none.
func (s *Socket) sendFile([]byte, *os.File) error { return errors.ErrUnsupported }
