//go:build !unix

package cli

import "io"

// hasReader is for systems that report a reader that has gone only with the next line.
func hasReader(io.Writer) bool { return true }
