//go:build !unix

package main

import (
	"context"
	"io"
)

// whileRead is for systems that tell of a reader that has gone with the next
// line only.
func whileRead(ctx context.Context, _ io.Writer) (_ context.Context, stop func()) {
	return ctx, func() {}
}
