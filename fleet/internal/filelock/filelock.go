// Package filelock takes files for one process at a time. Begin with [Take].
package filelock

import "errors"

// ErrTaken is returned by [Take] while another process has the file.
var ErrTaken = errors.New("another process has the file")
