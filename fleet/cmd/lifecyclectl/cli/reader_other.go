//go:build !unix

package cli

import "io"

// HasReader is for systems that report a reader that has gone only with the next line.
func HasReader(io.Writer) bool { return true }
